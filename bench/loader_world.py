"""Data, source and cache for the loader's scenarios.

Photographs on a local disk, sources that are slow each in its own way, and nodes with an agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import forebay
from bench.session import LINE_S, BenchSession, CountedSource, ProgramError, end_all_of, environment, program, session
from bench.world import QUIET_S, SourceTraffic
from testbed import datasets
from testbed.testbed import Gluster, SlowFs, drop_caches, gluster, have_fuse, have_gluster, slowfs

# In megabytes a second, milliseconds, microseconds. Everything beside what makes them slow costs next to nothing, and
# the server works on more reads at once than anybody makes.
LATENCY, BANDWIDTH, GLUSTER = "latency", "bandwidth", "gluster"
SOURCES: dict[str, dict[str, float]] = {
    LATENCY: {"mbps": 0, "open_ms": 4, "meta_us": 2000, "read_us": 4000, "slots": 64, "attr_ttl_ms": 60_000, "threads": 64},
    BANDWIDTH: {"mbps": 20, "open_ms": 0.2, "meta_us": 100, "read_us": 100, "slots": 64, "attr_ttl_ms": 60_000, "threads": 64},
}
# Of GlusterFS's two links. What two cores can serve beside what is measured.
GLUSTER_RATE = "100mbit"
# As many reads at once as a rank has (forebay.loader.source.READS_AT_ONCE), which is what the source is measured with
# beforehand.
READS_MAX = 16
# Threads or processes of each loader.
WORKERS = 2
# Steps for which there is room: those that the loader asks for ahead, and those that are decoded meanwhile. Its own
# window has room for far more, and would hold all of the data here.
WINDOW = 13


@dataclass(frozen=True)
class LoaderSize:
    """Numbers of files, epochs and rounds to measure."""

    # Photographs on the sources, and samples of a batch of all ranks.
    files: int
    batch: int
    # Of each timed figure, and of each count.
    pairs: int
    runs: int
    # Photographs that are decoded.
    jpegs: int
    # Samples of 4 KiB.
    rows: int
    epochs_of_memory: int
    # Pictures of each class that a network is trained with, epochs, and with how many seeds.
    pictures: int
    epochs: int
    seeds: int


FULL = LoaderSize(files=6_400, batch=16, pairs=9, runs=3, jpegs=1_500, rows=131_072, epochs_of_memory=20, pictures=600, epochs=4, seeds=5)
QUICK = LoaderSize(files=1_600, batch=16, pairs=2, runs=1, jpegs=200, rows=16_384, epochs_of_memory=8, pictures=20, epochs=1, seeds=2)
JPEG_KB = 120


@dataclass(frozen=True)
class SlowSource:
    """A slow file system."""

    mnt: Path
    fs: SlowFs | None = None
    cluster: Gluster | None = None

    def traffic(self) -> SourceTraffic:
        """So far: what its server read for its clients, or, of GlusterFS, all that went over the links."""
        if self.fs is not None:
            stats = self.fs.stats()
            operations = {name: count for name, count in stats.items() if not name.startswith("bytes_")}
            return SourceTraffic(stats["bytes_read"], (operations,))
        assert self.cluster
        counts = self.cluster.stats()
        return SourceTraffic(counts["sent_bytes"] + counts["received_bytes"], tuple(brick["operations"] for brick in counts["bricks"]))

    def drop_caches(self) -> None:
        """Everything that the kernel keeps of any file goes, and servers have fallen silent."""
        drop_caches()
        time.sleep(QUIET_S)


class InMemory(CountedSource):
    """Nothing is slow, and nothing is dropped."""

    def traffic(self) -> SourceTraffic:
        """None."""
        return SourceTraffic(0, ())

    def drop_caches(self) -> None:
        """Leaves memory as it is: data is to stay there."""


@dataclass(frozen=True)
class BenchNode:
    """A node of its own: programs with its variables share a loader agent, which ends with its last rank."""

    root: Path

    @property
    def variables(self) -> dict[str, str]:
        """Where the agent is looked for."""
        return {"FOREBAY_RUNTIME_DIR": str(self.root / "run"), "FOREBAY_STATE_DIR": str(self.root / "state")}

    def agent(self) -> int | None:
        """The loader agent's process; None where there is none."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.connect(str(self.root / "run/loaders/loader.sock"))
            except OSError:
                return None
            return int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)

    def agent_cpu_s(self) -> float:
        """CPU seconds of the agent so far; 0 if there is none."""
        pid = self.agent()
        # The number of the clock that counts a process's CPU: linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK with
        # CPUCLOCK_SCHED.
        return 0.0 if pid is None else time.clock_gettime(~pid << 3 | 2)

    def agent_mib(self) -> float:
        """Resident memory of the agent: shared memory counts by half where a rank has mapped it, too."""
        pid = self.agent()
        return 0.0 if pid is None else resident_mib(pid)


def resident_mib(pid: int) -> float:
    """A process's proportional set size, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@contextlib.contextmanager
def node() -> Iterator[BenchNode]:
    """A node until the block ends."""
    # The path of a socket has room for 108 bytes.
    root = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    try:
        yield BenchNode(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True)
class LoaderBench:
    """Places and sizes."""

    place: Path
    size: LoaderSize

    @cached_property
    def files(self) -> Path:
        """Small photographs on the local disk."""
        path = self.place / "files"
        datasets.photos(path, self.size.files)
        return path

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of the files, in bytes."""
        return [path.stat().st_size for path in self.files.rglob("*.jpg")]

    @property
    def bytes(self) -> int:
        """Size of all files together: S."""
        return sum(self.sizes)

    @property
    def window_bytes(self) -> int:
        """Room for what was read ahead: W."""
        return WINDOW * self.size.batch * self.bytes // len(self.sizes) + max(self.sizes)

    @cached_property
    def jpegs(self) -> Path:
        """Photographs as large as ImageNet's, in memory."""
        path = self.memory / "jpegs"
        datasets.photos(path, self.size.jpegs, size_kb=JPEG_KB)
        return path

    @property
    def memory(self) -> Path:
        """A directory in memory, gone in the end."""
        return Path("/dev/shm") / self.place.name  # noqa: S108

    @contextlib.contextmanager
    def source(self, kind: str, **settings: float) -> Iterator[SlowSource]:
        """The small photographs on a slow file system."""
        place = Path(tempfile.mkdtemp(prefix="source-", dir=self.place))
        if kind == GLUSTER:
            with gluster(place, rate=GLUSTER_RATE, populate=self.files) as cluster:
                yield SlowSource(cluster.mnt, cluster=cluster)
            return
        mnt = place / "mnt"
        mnt.mkdir()
        with slowfs(self.files, mnt, allow_other=True, readdirplus=True, **(SOURCES[kind] | settings)) as fs:
            yield SlowSource(mnt, fs)

    def cache(self, share: float) -> dict[str, Any]:
        """The agent's settings: room in memory for a share of the data, C, and beside it the window, W."""
        return {"memory_bytes": int(share * self.bytes), "window_bytes": self.window_bytes}


@contextlib.contextmanager
def world(size: LoaderSize, parent: Path) -> Iterator[LoaderBench]:
    """Made on entry, gone on leaving; data are made when they are first asked for."""
    place = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=parent))
    here = LoaderBench(place, size)
    here.memory.mkdir()
    try:
        yield here
    finally:
        shutil.rmtree(here.memory, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)


def whole_read_s(source: SlowSource, files: int) -> list[float]:
    """How long it takes to read all of it from cold caches, with as many reads at once as our loader may have.

    Three times.
    """
    words = program("read_files", source.mnt, "--step", "--threads", READS_MAX, "--batch", files)
    with session(source, words) as running:
        return [running.epoch().seconds for _ in range(3)]


def epochs(loader: str, source: Path, size: LoaderSize, *, step_ms: float, agent: Mapping[str, object] | None = None) -> list[str]:
    """The command line of a program that reads epochs with a loader."""
    options: list[object] = ["--loader", loader, "--batch", size.batch, "--threads", WORKERS, "--pace-ms", step_ms]
    return program("loader_epochs", source, "--step", *options, *(["--agent", json.dumps(agent)] if agent is not None else []))


def start(
    running: contextlib.ExitStack, source: CountedSource, words: Sequence[str], variables: Mapping[str, str] | None = None
) -> tuple[BenchSession, BenchNode]:
    """A program on a node of its own, until the stack is left; `variables` join its environment."""
    here = running.enter_context(node())
    return running.enter_context(session(source, words, variables={**here.variables, **(variables or {})})), here


def lines(words: Sequence[str], variables: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Collects a program's lines from its start to its end.

    Raises:
        ProgramError: it fails; with what it wrote on standard error.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        kept = environment(None) | dict(variables or {})
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=kept, start_new_session=True)
        try:
            code = running.wait(timeout=2 * LINE_S)
        finally:
            end_all_of(running)
        out.seek(0)
        errors.seek(0)
        if code != 0:
            raise ProgramError(f"{Path(words[1]).name}, exit code {code}: {errors.read().decode(errors='replace').strip()[-2000:]}")
        # Libraries may have said something, too.
        return [json.loads(line) for line in out.read().splitlines() if line.startswith(b"{")]


def agree(said: Mapping[str, Any]) -> None:
    """Every way must have given the same samples in the same order.

    Raises:
        ProgramError: they did not.
    """
    if len(set(said.values())) > 1:
        raise ProgramError(f"not all loaders gave the same batches: {said}")


def lacking(missing: Sequence[str]) -> str | None:
    """Why this can't be measured here; None where it can.

    Args:
        missing: modules that are not installed.
    """
    if os.geteuid() != 0:
        return "caches are dropped before each epoch, which needs root"
    if reason := have_fuse() or have_gluster():
        return reason
    if missing:
        return f"missing: {', '.join(missing)} (make bench-loader installs them)"
    try:
        forebay.command()
    except FileNotFoundError as error:
        return str(error)
    return None
