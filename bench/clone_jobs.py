"""Jobs that are forked, the clones that stand by, and the node on which they meet."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forebay
from bench.session import PROGRAMS, ProgramError, end_all_of, environment

# What a rank is given to answer: a model of 300 MB trains a step in a second or two, and a dozen of them is one answer.
LINE_S = 600.0
JOB = "trunk"
# Says by which fork it was started, and ends when its standard input does.
ASKED = ("sh", "-c", 'printf "%s\\n" "$FOREBAY_CLONE"; exec cat')

Told = dict[str, Any]


@dataclass(frozen=True)
class ForkNode:
    """A node of its own: what is started in its environment meets at its fork agent.

    `place` takes what peers write into files.

    `command` is Forebay's, and `variables` join the environment: both name another installation than this process's
    own.
    """

    root: Path
    place: Path
    command: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """For programs: one thread each, since several ranks share the cores."""
        kept = {name: value for name, value in environment(None).items() if not name.startswith(("SLURM", "PBS", "LSB"))}
        own = {"FOREBAY_RUNTIME_DIR": str(self.root / "run"), "FOREBAY_STATE_DIR": str(self.root / "state"), "FOREBAY_JOB": JOB}
        return {**kept, **own, "OMP_NUM_THREADS": "1", **self.variables}

    @contextlib.contextmanager
    def cloning(self, at: str = "next") -> Iterator[str]:
        """A fork that `forebay clone` has asked for, until the block ends.

        What its program is to find in FOREBAY_CLONE.

        Raises:
            ProgramError: there is no job to be forked.
        """
        words = [str(self.command or forebay.command()), "clone", JOB, "--at", at, "--", *ASKED]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
            assert running.stdin
            assert running.stdout
            assert running.stderr
            try:
                asked = running.stdout.readline().removesuffix("\n")
                if not asked:
                    raise ProgramError(running.stderr.read().strip())
                yield asked
            finally:
                running.stdin.close()

    def agent_cpu_s(self) -> float:
        """CPU seconds of the fork agent so far; 0 if there is none."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.connect(str(self.root / "run/forks/fork.sock"))
            except OSError:
                return 0.0
            pid = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        # The number of the clock that counts a process's CPU: linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK with
        # CPUCLOCK_SCHED.
        return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def node(place: Path, command: Path | None = None, variables: Mapping[str, str] | None = None) -> Iterator[ForkNode]:
    """A node until the block ends. Its agent ends with its last job. `command` and `variables` as for `Node`."""
    # A socket's name is short, so this is where names are.
    root = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    files = Path(tempfile.mkdtemp(prefix="bench-clone-", dir=place))
    try:
        yield ForkNode(root, files, command, variables or {})
    finally:
        shutil.rmtree(files, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)


class LineRanks:
    """Ranks, each of which does what it is told by a line of its own."""

    def __init__(self, lines: dict[int, socket.socket], rest: dict[int, bytes], said: Callable[[], str]) -> None:
        """`said` gives what they wrote on standard error."""
        self._lines = lines
        self._rest = rest
        self._said = said

    def part(self, numbers: Iterable[int]) -> LineRanks:
        """Some of them."""
        return LineRanks({number: self._lines[number] for number in numbers}, self._rest, self._said)

    def __len__(self) -> int:
        return len(self._lines)

    def tell(self, **told: object) -> None:
        """All of them."""
        self.tell_each([told] * len(self._lines))

    def tell_each(self, each: Sequence[Mapping[str, object]]) -> None:
        """Each its own, in the order of ranks."""
        for rank, told in zip(sorted(self._lines), each, strict=True):
            self._lines[rank].sendall(json.dumps(told).encode() + b"\n")

    def hear(self) -> list[Told]:
        """Returns the next line of each rank, in the order of ranks."""
        return [self.hear_from(rank) for rank in sorted(self._lines)]

    def hear_first(self) -> Told:
        """Returns the next line of the first rank that speaks."""
        return self.hear_from(min(self._lines))

    def hear_from(self, rank: int) -> Told:
        """Returns the next line of one rank.

        Raises:
            ProgramError: it says nothing any more; with what all said last on standard error.
        """
        while b"\n" not in self._rest[rank]:
            try:
                piece = self._lines[rank].recv(1 << 20)
            except TimeoutError as error:
                raise ProgramError(f"rank {rank} said nothing for {LINE_S:.0f} s: {self._said()}") from error
            if not piece:
                raise ProgramError(f"rank {rank} has ended: {self._said()}")
            self._rest[rank] += piece
        line, _, self._rest[rank] = self._rest[rank].partition(b"\n")
        told: Told = json.loads(line)
        return told

    def ask(self, **told: object) -> list[Told]:
        """Tells all, and hears from each."""
        self.tell(**told)
        return self.hear()


class LaunchedRanks(LineRanks):
    """All that a launcher has started."""

    def __init__(self, node: ForkNode, count: int, words: Sequence[str]) -> None:
        """Returns when all of them stand ready.

        Raises:
            ProgramError: one has ended before.
        """
        super().__init__({}, {}, self._written)
        place = Path(tempfile.mkdtemp(prefix="r-", dir=node.root))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `kill`
        environment = {**node.environment, "BENCH_SOCKET": str(place / "s")}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(environment["BENCH_SOCKET"])
            listening.listen(count)
            self._process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors, start_new_session=True
            )
            try:
                self._accept(listening, count)
                self.hear()
            except BaseException:
                self.kill()
                raise

    def _accept(self, listening: socket.socket, count: int) -> None:
        deadline = time.monotonic() + LINE_S
        listening.settimeout(1.0)
        while len(self._lines) < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ProgramError(f"not all ranks came: {self._said()}")
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                connection.settimeout(LINE_S)
                # Known by no number before it has said it.
                self._lines[-1], self._rest[-1] = connection, b""
                rank = self.hear_from(-1)["rank"]
                self._lines[rank], self._rest[rank] = self._lines.pop(-1), self._rest.pop(-1)

    def _written(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace").strip()

    def end(self) -> None:
        """Lets them end by themselves.

        Raises:
            ProgramError: they do not, or not well.
        """
        for line in self._lines.values():
            line.shutdown(socket.SHUT_WR)
        if (code := self._process.wait(timeout=LINE_S)) != 0:
            raise ProgramError(f"exit code {code}: {self._said()}")

    def kill(self) -> None:
        """Ends all of it, whatever state it is in."""
        end_all_of(self._process)
        for line in self._lines.values():
            line.close()
        self._errors.close()


@contextlib.contextmanager
def ranks(node: ForkNode, count: int, words: Sequence[str]) -> Iterator[LaunchedRanks]:
    """Ranks for the length of a `with` block, at whose end they end by themselves."""
    running = LaunchedRanks(node, count, words)
    try:
        yield running
        running.end()
    finally:
        running.kill()


def torchrun(count: int, *words: str) -> list[str]:
    """Returns the command line of `count` ranks of `clone_rank`."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, str(PROGRAMS / "clone_rank.py"), *words]
