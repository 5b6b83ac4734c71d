"""A rank of a job that is forked, or of a clone.

It does what it is told by a socket, a line of JSON each, and answers with one.

Usage: clone_rank.py source|clone MODEL OPTIMIZER [--alone]

Started by torchrun, with the socket's name in BENCH_SOCKET. With --alone each rank is a job of its own. Times are of
the clock that all processes of the machine share (CLOCK_MONOTONIC), in seconds; digests are the inventory's, by path.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import mmap
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
from clone_cost import Own
from clone_models import ModelJob, made
from torch.nn.parallel import DistributedDataParallel

import forebay.clone as clone

# The first ones make what training needs: gradients, the optimizer's state, threads of the process group.
FIRST_STEPS = 2


class CommandSocket:
    """The socket."""

    def __init__(self, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.environ["BENCH_SOCKET"])
        self._lines = self._socket.makefile("r")
        self.say(rank=rank)

    def say(self, **told: object) -> None:
        """One line."""
        self._socket.sendall(json.dumps(told).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """One line; None at the end."""
        line = self._lines.readline()
        return json.loads(line) if line else None


class BenchRank:
    """Does what it is told, until nobody tells it any more."""

    def __init__(self, job: ModelJob, line: CommandSocket, rank: int, ranks: int) -> None:
        self.job = job
        self.line = line
        self.rank = rank
        self.ranks = ranks
        self.own: Own | None = None
        self.session: clone.Session | None = None
        self.step = 0
        self.operations: dict[str, Callable[..., None]] = {
            "run": self.run,
            "become": self.become,
            "leave": self.leave,
            "memcpy": self.memcpy,
            "turns": self.turns,
        }

    def train(self) -> None:
        """Begins as a job that can be forked, by the name in FOREBAY_JOB."""
        for _ in range(FIRST_STEPS):
            self.job.step()
        self.own = Own()
        with self.own.watching(self.job.optimizer):
            self.session = clone.session(**self.job.given(), warm=self._warm())

    def serve(self) -> None:
        """Until the other end closes the line."""
        self.line.say(ready=True)
        while (told := self.line.hear()) is not None:
            self.operations[told.pop("op")](**told)
        self.leave(answer=False)

    def run(
        self, *, steps: int = 0, until_forked: bool = False, within: float = 0.0, after: int = 0, mark: int = 0, digest: bool = False
    ) -> None:
        """Trains so many steps, or until it has been forked, for which it has `within` seconds, and `after` steps on.

        Rank 0 says a line beforehand at the end of step number `mark`, if there is one. With `digest` the state after
        the step that was forked is digested, outside of what is timed, and the last state is.
        """
        records: list[dict[str, Any]] = []
        before = self._cost()
        left, deadline = steps, time.monotonic() + within
        while left > 0 or (until_forked and time.monotonic() < deadline):
            digests = digest and until_forked
            records.append(self.one(self._point, digests=digests))
            left -= 1
            if until_forked and self._forks_at(self.step):
                left, until_forked = after, False
            elif digests:
                del records[-1]["digests"]
            if len(records) == mark and self.rank == 0:
                self.line.say(mark=records[-1]["point"])
        for record in records:
            record["fork"] = self._forks_at(record["step"])
        self.line.say(before=before, steps=records, digests=self.digests() if digest else {})

    def one(self, at_end: Callable[[], None], *, digests: bool = False) -> dict[str, Any]:
        """One step, and what comes at its end."""
        assert self.session
        begin = time.monotonic()
        loss = self.job.step()
        self.step += 1
        trained = time.monotonic()
        found = self.digests() if digests else {}
        point = time.monotonic()
        at_end()
        end = time.monotonic()
        return {
            "step": self.step,
            "loss": loss,
            "seconds": trained - begin + end - point,
            "begin": begin,
            "point": point,
            **self._cost(),
            "digests": found,
        }

    def _forks_at(self, step: int) -> list[dict[str, Any]]:
        """Returns the session's figures of each fork that was made at a step."""
        assert self.session
        forks = [fork for fork in self.session.forks if fork.step == step]
        return [{"bytes": fork.length, "aside_bytes": fork.copied + fork.aside, "stall_s": fork.stall_s} for fork in forks]

    def _cost(self) -> dict[str, float]:
        """Returns the session's own wall and CPU seconds so far.

        What is digested here is not in it: the training thread does that, outside of the session's calls.
        """
        return {"own_wall_s": self.own.wall_s if self.own else 0.0, "own_cpu_s": self.own.cpu_s if self.own else 0.0}

    def _point(self) -> None:
        session = self.session
        assert session

        def call() -> None:
            session.point(epoch=0, step=self.step)

        if self.own:
            self.own.call(call)
        else:
            call()

    def become(self, *, asked: str, digest: bool = False) -> None:
        """Becomes a clone, as `asked` says, with an optimizer that has no state yet.

        What a program that has just begun has.

        If its parent drops it, it says so, and may be told to become another.
        """
        self.job.forget()
        os.environ["FOREBAY_CLONE"] = asked
        try:
            self.session = clone.session(**self.job.given(), warm=self._warm())
        except clone.CloneError as error:
            self.line.say(refused=str(error))
            return
        ready = time.monotonic()
        assert self.session.resumed
        self.step = self.session.resumed["step"]
        self.line.say(ready=ready, digests=self.digests() if digest else {})

    def leave(self, *, answer: bool = True) -> None:
        """Is no job that can be forked any more."""
        if self.session:
            self.session.close()
            self.session = None
        if answer:
            self.line.say(left=True)

    def memcpy(self, *, length: int) -> None:
        """When it is told to go on, copies so many bytes into touched memory."""
        source, target = touched(length), touched(length)
        self.line.say(ready=True)
        self.line.hear()
        begun = time.monotonic()
        ctypes.memmove(ctypes.addressof(target), ctypes.addressof(source), length)
        self.line.say(begun=begun, ready=time.monotonic())

    def turns(self, *, pairs: int, seconds: float, model: str, optimizer: str) -> None:
        """Measures steps alternately with an equal job that has no session.

        Seconds a step of each, a mean over about `seconds` of them.
        """
        plain = made(model, optimizer)
        for _ in range(FIRST_STEPS):
            plain.step()
        count: int = max(1, math.ceil(seconds / self.one(self._point)["seconds"]))

        def mine() -> float:
            return float(sum(self.one(self._point)["seconds"] for _ in range(count)) / count)

        def other() -> float:
            begun = time.monotonic()
            for _ in range(count):
                plain.step()
            return (time.monotonic() - begun) / count

        found = [(mine(), other(), other(), mine()) for _ in range(pairs)]
        self.line.say(mine=[(a + d) / 2 for a, _, _, d in found], plain=[(b + c) / 2 for _, b, c, _ in found])

    def digests(self) -> dict[str, str]:
        """Returns the digest of every entry of the state; the step is counted beside it."""
        described = clone.inventory(**self.job.given(), counters={})
        return {entry.path: entry.digest for entry in described.manifest().entries}

    def _warm(self) -> Callable[[], object] | None:
        return self.job.backward if self.ranks > 2 else None


def touched(length: int) -> ctypes.Array[ctypes.c_char]:
    """New memory, every page of it there."""
    memory = (ctypes.c_char * length).from_buffer(mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    ctypes.memset(ctypes.addressof(memory), 1, length)
    return memory


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("source", "clone"))
    parser.add_argument("model")
    parser.add_argument("optimizer")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    line = CommandSocket(rank)
    if args.alone:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
        ranks = 1
    # Several ranks share two cores.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = made(args.model, args.optimizer)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        job.model = DistributedDataParallel(job.model)
    torch.manual_seed(rank)
    working = BenchRank(job, line, rank, ranks)
    if args.role == "source":
        working.train()
    working.serve()
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
