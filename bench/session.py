"""A measured program, as it is or under Forebay, that goes on epoch by epoch when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from bench.world import SourceTraffic, TierDirectory, TieringBench

PROGRAMS = Path(__file__).resolve().parent / "programs"
LINE_S = 600.0
SETTLE_S = 60.0
END_S = 30.0


class ProgramError(RuntimeError):
    """A measured program, or Forebay, did not do what it should."""


class CountedSource(Protocol):
    """A source whose server counts what it does."""

    def traffic(self) -> SourceTraffic:
        """So far."""

    def drop_caches(self) -> None:
        """Everything that the kernel keeps of any file goes."""


@dataclass(frozen=True)
class EpochFigures:
    """A program's report on an epoch, and the source's traffic in it."""

    seconds: float
    cpu_s: float
    files: int
    bytes: int
    digest: int
    traffic: SourceTraffic | None
    settled_after_s: float
    agent_cpu_ms: float
    # Where it was read in turns: how long each took.
    turns_s: tuple[float, ...] = ()
    # All that the program said of it, where it was not read in turns.
    said: Mapping[str, Any] = field(default_factory=dict)


def program(name: str, *words: object) -> list[str]:
    """The command line of one of our programs."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, words)]


def tiered(
    world: TieringBench, tier: TierDirectory, size: int, freshness: str, words: Sequence[str], source: Path | None = None
) -> list[str]:
    """The command line under Forebay."""
    return tiered_by(world.command, tier, size, freshness, words, source or world.cluster.mnt)


def tiered_by(command: Path, tier: TierDirectory, size: int, freshness: str, words: Sequence[str], source: Path) -> list[str]:
    """Returns the command line of `words` under this command, with one source and one tier of `size` bytes."""
    options = ["--source", str(source), "--tier", f"{tier.dir}={size}B", "--freshness", freshness]
    return [str(command), "run", *options, "--record", str(tier.dir.parent / "record.json"), "--quiet", "--", *words]


def environment(tier: TierDirectory | None) -> dict[str, str]:
    """Ours without what would lead to other settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY") and name != "LD_PRELOAD"}
    if tier:
        kept |= {"FOREBAY_RUNTIME_DIR": str(tier.runtime), "FOREBAY_STATE_DIR": str(tier.state)}
    return kept


class AgentProcess:
    """The agent of a tier, asked as the command asks it."""

    def __init__(self, tier: TierDirectory) -> None:
        self._tier = tier

    def status(self) -> dict[str, Any] | None:
        """Counters of the agent; None if there is no agent."""
        for path in self._tier.runtime.glob("*/control.sock"):
            # A wheel from before November 2026 has a stream socket with a line a request.
            for kind, request in ((socket.SOCK_SEQPACKET, b'{"request":"status"}'), (socket.SOCK_STREAM, b'{"op":"status"}\n')):
                with socket.socket(socket.AF_UNIX, kind) as connection, contextlib.suppress(OSError, ValueError):
                    connection.settimeout(20)
                    connection.connect(str(path))
                    connection.sendall(request)
                    status: dict[str, Any] = json.loads(connection.recv(1 << 16))
                    return status
        return None

    def settle(self) -> float:
        """Waits until no copy is being made; how long that took in seconds."""
        begun = time.monotonic()
        while (status := self.status()) and (status["in_flight"] or status["adopting"]):
            if time.monotonic() - begun > SETTLE_S:
                raise ProgramError(f"the agent is still busy after {SETTLE_S:.0f} s: {status}")
            time.sleep(0.05)
        return time.monotonic() - begun

    def pid(self) -> int | None:
        """Its process, as it wrote it into the lease of the tier."""
        for lease in self._tier.dir.glob("forebay-*/lease"):
            with contextlib.suppress(ValueError):
                pid = int(lease.read_text())
                if Path(f"/proc/{pid}").exists():
                    return pid
        return None

    def memory(self) -> dict[str, float]:
        """Memory of a process in MiB, its part of shared memory included: VmRSS, VmHWM, RssAnon and more.

        Raises:
            ProgramError: there is no agent.
        """
        if (pid := self.pid()) is None:
            raise ProgramError("there is no agent")
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words[2:] == ["kB"]}

    def wait_for_end(self) -> None:
        """Waits until it has ended with its last run."""
        deadline = time.monotonic() + END_S
        while self.pid() is not None:
            if time.monotonic() > deadline:
                raise ProgramError("the agent does not end")
            time.sleep(0.02)


class BenchSession:
    """A program that has begun: it has listed its files and waits for its first epoch."""

    def __init__(
        self,
        world: CountedSource,
        words: Sequence[str],
        tier: TierDirectory | None = None,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.world = world
        self.agent = AgentProcess(tier) if tier else None
        self._tier = tier
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `kill`
        self.started_at = time.monotonic()
        # A session of its own: it can be ended as a whole, and a Ctrl-C is ours alone.
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(tier) | dict(variables or {}),
            cwd=cwd,
            start_new_session=True,
        )
        self._rest = b""
        self.first = self._line()

    def epoch(self, *, pace_ms: float = 0, watch: bool = False) -> EpochFigures:
        """One epoch from cold caches; `watch`: with what the source saw meanwhile, until all copies were made."""
        self.world.drop_caches()
        before = self.world.traffic() if watch else None
        cpu_before = self.agent_cpu_ms()
        said = self.step(pace_ms=pace_ms)
        settled_after_s = self.agent.settle() if self.agent else 0.0
        traffic = self.world.traffic() - before if before else None
        return EpochFigures(
            seconds=said["seconds"],
            cpu_s=said["cpu_s"],
            files=said["files"],
            bytes=said["bytes"],
            digest=said["digest"],
            traffic=traffic,
            settled_after_s=settled_after_s,
            agent_cpu_ms=self.agent_cpu_ms() - cpu_before,
            said=said,
        )

    def step(self, **told: float | str) -> dict[str, Any]:
        """One epoch, or the part of one that is told, from whatever the caches hold; what the program says of it."""
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(told)}\n".encode())
        self._process.stdin.flush()
        return self._line()

    def agent_cpu_ms(self) -> float:
        """CPU milliseconds of the agent so far; 0 if there is none."""
        status = self.agent.status() if self.agent else None
        return float(status["cpu_ms"]) if status else 0.0

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout
        deadline = time.monotonic() + LINE_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise ProgramError(f"the program said nothing more: {self._said()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def end(self) -> Mapping[str, Any]:
        """Lets the program end; the record of the run, if Forebay made one."""
        assert self._process.stdin
        self._process.stdin.close()
        code = self._process.wait(timeout=END_S)
        if code != 0:
            raise ProgramError(f"exit code {code}: {self._said()}")
        if not self._tier or not self.agent:
            return {}
        self.agent.wait_for_end()
        record: dict[str, Any] = json.loads((self._tier.dir.parent / "record.json").read_text())
        return record

    def kill(self) -> None:
        """Ends all of it, whatever state it is in."""
        end_all_of(self._process)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self.agent:
            self.agent.wait_for_end()


@contextlib.contextmanager
def session(
    world: CountedSource, words: Sequence[str], tier: TierDirectory | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[BenchSession]:
    """A program for the length of a `with` block; `variables` join its environment."""
    running = BenchSession(world, words, tier, variables=variables)
    try:
        yield running
    finally:
        running.kill()


def hand_over_hand(
    running: BenchSession, roots: tuple[Path, Path], number: int, part: int, *, pace_ms: float = 0, apart: bool = False
) -> tuple[EpochFigures, EpochFigures]:
    """One epoch of each of two directories with the same files, in turns of `part` files.

    By one process, from cold caches.

    It reads every other turn in the first directory and what is between in the second, and then, from cold caches
    again, the other way round. So each file is read once by each name, and what drifts meets both alike. Two processes
    would not do: of two that were alike in all but their number, one took a tenth more processor time than the other in
    each of six epochs.

    `apart`: what the source saw is told of each directory, and a turn begins when all copies are made. Else what it saw
    of both is told with the first.
    """
    said: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    seen: list[SourceTraffic | None] = [None, None]
    settled_after_s, cpu_before, before = 0.0, running.agent_cpu_ms(), running.world.traffic()
    for half in range(2):
        running.world.drop_caches()
        for turn, begin in enumerate(range(0, running.first["files"], part)):
            which = (turn + half) % 2
            begun = running.world.traffic() if apart else None
            told: dict[str, float | str] = {
                "epoch": number,
                "root": str(roots[which]),
                "begin": begin,
                "end": begin + part,
                "pace_ms": pace_ms,
            }
            said[which].append(running.step(**told))
            if begun:
                settled_after_s = running.agent.settle() if running.agent else 0.0
                moved = running.world.traffic() - begun
                seen[which] = (seen[which] or moved - moved) + moved
    if not apart:
        settled_after_s = running.agent.settle() if running.agent else 0.0
        seen[0] = running.world.traffic() - before
    agent_cpu_ms = running.agent_cpu_ms() - cpu_before
    one, other = (
        EpochFigures(
            seconds=sum(turn["seconds"] for turn in turns),
            cpu_s=sum(turn["cpu_s"] for turn in turns),
            files=sum(turn["files"] for turn in turns),
            bytes=sum(turn["bytes"] for turn in turns),
            digest=sum(turn["digest"] for turn in turns) % 2**64,
            traffic=traffic,
            settled_after_s=settled_after_s,
            agent_cpu_ms=agent_cpu_ms,
            turns_s=tuple(turn["seconds"] for turn in turns),
        )
        for turns, traffic in zip(said, seen, strict=True)
    )
    return one, replace(other, settled_after_s=0.0, agent_cpu_ms=0.0)


def run_once(world: CountedSource, words: Sequence[str], tier: TierDirectory | None = None) -> tuple[list[dict[str, Any]], SourceTraffic]:
    """A program from start to end, from cold caches.

    Its lines, and what the source saw until the last copy was made.
    """
    world.drop_caches()
    before = world.traffic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        running = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment(tier), start_new_session=True
        )
        try:
            code = running.wait(timeout=LINE_S)
        finally:
            end_all_of(running)
        out.seek(0)
        errors.seek(0)
        if code != 0:
            raise ProgramError(f"exit code {code}: {errors.read().decode(errors='replace').strip()}")
        lines = [json.loads(line) for line in out.read().splitlines()]
    if tier:
        AgentProcess(tier).wait_for_end()
    return lines, world.traffic() - before


def end_all_of(running: subprocess.Popen[bytes]) -> None:
    """Ends a program that we started, with all that it has started."""
    if running.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(timeout=5)
            return
