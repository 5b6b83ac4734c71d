"""A rank of a source or of its clone, all of which mpiexec has started.

Does what `clone_rank` does, and brings states over in other ways.

Usage: clone_peer.py PLACE MODEL OPTIMIZER

The first half of MPI's ranks are the source; each half has a process group of its own. Files lie below PLACE.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from clone_models import ModelJob, made
from clone_rank import FIRST_STEPS, BenchRank, CommandSocket
from clone_ways import MESSAGE_S, State, Transfer, digests, fetch, leave, ways, wrong_digests
from mpi4py import MPI
from torch.distributed import FileStore  # type: ignore[attr-defined] # which its stub does not export
from torch.distributed.distributed_c10d import ProcessGroupGloo
from torch.nn.parallel import DistributedDataParallel

STEPS_AFTER = 4


class PeerRank(BenchRank):  # type: ignore[misc] # to mypy, what stands beside a program is Any
    """A rank that knows other ways."""

    def __init__(self, job: ModelJob, line: CommandSocket, rank: int, ranks: int, place: Path, known: dict[str, Transfer]) -> None:
        """`known`: the ways, by name."""
        super().__init__(job, line, rank, ranks)
        self._digests = place / f"digests-{rank}"
        self._ways = known
        self._tensors = 0
        self.operations |= {"give": self.give, "take": self.take}

    def stand_by(self) -> None:
        """Begins as a clone: all tensors are there and touched."""
        for _ in range(FIRST_STEPS):
            self.job.step()
        self._tensors = len(self.state())

    def give(self, *, way: str, digest: bool) -> None:
        """Trains a step, another at whose end the state is given, and some more.

        Where it is written, rank 0 says a line when all is.
        """
        giving = self._ways[way]
        is_done = threading.Event()

        def done() -> None:
            if giving.waits_for_word and self.rank == 0:
                self.line.say(mark=time.monotonic())
            is_done.set()

        def at_end() -> None:
            state = self.state()
            if digest:
                leave(self._digests, digests(state))
            giving.give(state, done)

        giving.clear()
        steps = [self.one(self._point), self.one(at_end), *(self.one(self._point) for _ in range(STEPS_AFTER))]
        if not is_done.wait(MESSAGE_S):
            raise TimeoutError(f"{way} was not done in {MESSAGE_S:.0f} s")
        self.line.say(steps=steps)

    def take(self, *, way: str, digest: bool) -> None:
        """Says when it stands by; then receives the state, or waits for the word that it is written, and reads it."""
        # One that was a clone of Forebay's has an optimizer without state.
        if len(self.state()) < self._tensors:
            self.job.step()
        state, taking = self.state(), self._ways[way]
        self.line.say(waits_for_word=taking.waits_for_word)
        if taking.waits_for_word:
            self.line.hear()
        begun = time.monotonic()
        taking.take(state)
        wrong = wrong_digests(fetch(self._digests), state) if digest else 0
        self.line.say(begun=begun, ready=time.monotonic(), wrong=wrong)

    def state(self) -> State:
        """Weights, and the optimizer's tensors: what all ranks hold alike.

        BatchNorm's statistics are each rank's own.
        """
        found: State = list(self.job.model.named_parameters())
        optimizer = self.job.optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            values = optimizer.state.get(parameter, {}).items()
            found += [(f"optimizer.{number}.{key}", value) for key, value in values if isinstance(value, torch.Tensor)]
        return found


def main() -> None:
    """See above."""
    place, model, optimizer = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    world = MPI.COMM_WORLD
    ranks = world.size // 2
    is_source, rank = world.rank < ranks, world.rank % ranks
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    line = CommandSocket(world.rank)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = made(model, optimizer)
    store = FileStore(str(place / ("source" if is_source else "clone")), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    if ranks > 1:
        job.model = DistributedDataParallel(job.model)
    torch.manual_seed(rank)
    across = FileStore(str(place / "across"), world.size)
    group = ProcessGroupGloo(across, world.rank, world.size, timedelta(seconds=MESSAGE_S))
    other = world.rank + ranks if is_source else world.rank - ranks
    peer = PeerRank(job, line, rank, ranks, place, ways(place, rank, other, group))
    if is_source:
        peer.train()
    else:
        peer.stand_by()
    peer.serve()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
