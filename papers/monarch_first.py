"""Measures the Monarch paper's first epoch and its long run in kind: `make papers-monarch-first`. Needs root.

The paper reads large files whole, ahead of the program (`--prefetch file`). Shards lie on a file system that answers a
read after 5 ms and works on 16 at the same time; its server counts reads and bytes. Three epochs of four readers: as
the program is, under Forebay with each way to read ahead, and on a local copy. Page caches are dropped before each
epoch, or kept, in as little memory as the paper's node had. `client`: another program reads the source meanwhile.
`long`: a network is trained for equal time with and without Forebay. At most 30 minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import forebay
from bench import command
from bench.epochs import moved
from bench.loader_world import SlowSource, lines
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import BenchSession, EpochFigures, ProgramError, program, session, tiered_by
from bench.world import TierDirectory, empty_tier
from testbed import datasets
from testbed.memory import memory_groups, memory_limit, within
from testbed.testbed import drop_caches, have_fuse, slowfs

SOURCE: dict[str, float] = {"mbps": 0, "open_ms": 5, "meta_us": 5000, "read_us": 5000, "slots": 16, "attr_ttl_ms": 60_000, "threads": 64}
EPOCHS = 3
READERS = 4
TIER_SHARE = 0.6
"""Room in the tier over the bytes of all files: the paper's 119 of 200 GiB."""
MEMORY_SHARE = 68 / 200
"""Page cache over the bytes of all files, where caches are kept: the paper's 68 of 200 GiB."""
PROGRAM_BYTES = 128 << 20
"""Memory of program and agent beside it."""
AS_IT_IS, LOCAL = "as it is", "local copy"
MODES = ("follow", "auto", "file")
PAPER_MODE = "file"
OTHER_READERS = 2
OTHER_PIECE = 128 << 10
MODEL = "alexnet"
BUSY_LOAD = 3.0


@dataclass(frozen=True)
class FirstSize:
    """Shards and their MiB, rounds, pictures, their size in kB, and seconds of training."""

    shards: int
    shard_mib: int
    rounds: int
    pictures: int
    picture_kb: int
    long_s: float


FULL = FirstSize(shards=16, shard_mib=16, rounds=3, pictures=1_600, picture_kb=30, long_s=300)
QUICK = FirstSize(shards=6, shard_mib=1, rounds=1, pictures=64, picture_kb=4, long_s=1)


class FirstEpochWay(NamedTuple):
    """A run of three epochs: as the program is or on a local copy (`mode` is None), or with a way to read ahead."""

    name: str
    mode: str | None = None


WAYS = (FirstEpochWay(AS_IT_IS), *(FirstEpochWay(f"Forebay, --prefetch {mode}", mode) for mode in MODES), FirstEpochWay(LOCAL))
PAPER_WAY = next(way for way in WAYS if way.mode == PAPER_MODE)


@dataclass(frozen=True)
class FirstBench:
    """Data on a local directory, which slow sources show."""

    size: FirstSize
    place: Path

    @cached_property
    def shards(self) -> Path:
        """Tar files."""
        path = self.place / "shards"
        datasets.shards(path, self.size.shards, mib=self.size.shard_mib)
        return path

    @cached_property
    def pictures(self) -> Path:
        """Pictures, each in the directory of the photograph that it is cut out of, which is its class."""
        path = self.place / "pictures"
        datasets.photos(path, self.size.pictures, size_kb=self.size.picture_kb, per_dir=None)
        return path

    @contextlib.contextmanager
    def memory(self) -> Iterator[list[str]]:
        """The words before a command that has as little memory for each byte of shards as the paper's node had."""
        limit = int(MEMORY_SHARE * bytes_of(self.shards)) + PROGRAM_BYTES
        with memory_limit(self.place.name, limit) as group:
            yield within(group)

    @contextlib.contextmanager
    def source(self, files: Path, *, keeps_caches: bool) -> Iterator[SlowSource]:
        """The files on a slow file system of their own."""
        mnt = Path(tempfile.mkdtemp(prefix="source-", dir=self.place))
        with slowfs(files, mnt, allow_other=True, readdirplus=True, **SOURCE) as fs:
            drop_caches()
            yield (KeptCaches if keeps_caches else SlowSource)(mnt, fs)


class KeptCaches(SlowSource):
    """A slow source whose page caches stay from epoch to epoch."""

    def drop_caches(self) -> None:
        """Leaves them."""


def under_forebay(tier: TierDirectory, size: int, mode: str, words: Sequence[str], mnt: Path) -> list[str]:
    """Returns the command line of a program with a way to read ahead."""
    found = tiered_by(forebay.command(), tier, size, "immutable", words, mnt)
    at = found.index("run") + 1
    return [*found[:at], "--prefetch", mode, *found[at:]]


def bytes_of(files: Path) -> int:
    """Size of all files below a directory."""
    return sum(path.stat().st_size for path in files.rglob("*") if path.is_file())


@contextlib.contextmanager
def begun(world: FirstBench, way: FirstEpochWay, *, keeps_caches: bool) -> Iterator[tuple[SlowSource, BenchSession]]:
    """A program that has begun in one of the ways, and its source, until the block ends."""
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(world.source(world.shards, keeps_caches=keeps_caches))
        root = world.shards if way.name == LOCAL else source.mnt
        words, tier = program("read_shards", root, "--step", "--threads", READERS), None
        if way.mode is not None:
            tier = stack.enter_context(empty_tier(world.place))
            words = under_forebay(tier, int(TIER_SHARE * bytes_of(world.shards)), way.mode, words, source.mnt)
        if keeps_caches:
            words = [*stack.enter_context(world.memory()), *words]
        yield source, stack.enter_context(session(source, words, tier))


def three_epochs(world: FirstBench, way: FirstEpochWay, *, keeps_caches: bool) -> list[EpochFigures]:
    """Returns the epochs of a way, each watched until all copies were made."""
    with begun(world, way, keeps_caches=keeps_caches) as (_, running):
        epochs = [running.epoch(watch=True) for _ in range(EPOCHS)]
        running.end()
    return epochs


def beside_other(world: FirstBench, way: FirstEpochWay) -> tuple[float, float]:
    """Returns the seconds of the first epoch beside another client, and the bytes a second of that client meanwhile."""
    other = OtherClient()
    with begun(world, way, keeps_caches=False) as (source, running):
        source.drop_caches()
        with other.reading(source.mnt):
            seconds = float(running.step()["seconds"])
            read = other.bytes
        running.end()
    return seconds, read / seconds


def shards(world: FirstBench, report: BenchReport, *, keeps_caches: bool) -> None:
    """Measures three epochs of each way, in rounds."""
    name = "kept" if keeps_caches else "dropped"
    scenario = f"{name}: {world.size.shards} shards, {READERS} readers, page caches {name}"
    found: dict[FirstEpochWay, list[list[EpochFigures]]] = {way: [] for way in WAYS}
    for number in range(world.size.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            found[way].append(three_epochs(world, way, keeps_caches=keeps_caches))
            report.note_load()
    if len({epoch.digest for runs in found.values() for run in runs for epoch in run[:1]}) > 1:
        raise ProgramError("not all ways read the same bytes")
    size = bytes_of(world.shards)
    for way in WAYS:
        for epoch in range(EPOCHS):
            pairs = [(mine[epoch], plain[epoch]) for mine, plain in zip(found[way], found[WAYS[0]], strict=True)]
            what = f"{way.name}, epoch {epoch + 1}"
            report.time(What(scenario, f"{what}: time", "s"), [mine.seconds for mine, _ in pairs])
            report.time(What(scenario, f"{what}: source bytes", "x the files"), [moved(mine).bytes / size for mine, _ in pairs])
            report.time(What(scenario, f"{what}: reads at the source", "reads"), [reads(mine) for mine, _ in pairs])
            if way.mode is not None:
                ratios = [mine.seconds / plain.seconds for mine, plain in pairs]
                report.time(What(scenario, f"{what}: time over", "x", None, AS_IT_IS), ratios)
        whole = [sum(reads(epoch) for epoch in run) for run in found[way]]
        plain = [sum(reads(epoch) for epoch in run) for run in found[WAYS[0]]]
        if way.mode is not None:
            ratios = [mine / most for mine, most in zip(whole, plain, strict=True)]
            report.time(What(scenario, f"{way.name}: reads of {EPOCHS} epochs over", "x", None, AS_IT_IS), ratios, "the paper's: 0.44")
            seconds = [
                sum(e.seconds for e in mine) / sum(e.seconds for e in one) for mine, one in zip(found[way], found[WAYS[0]], strict=True)
            ]
            report.time(What(scenario, f"{way.name}: time of {EPOCHS} epochs over", "x", None, AS_IT_IS), seconds, "the paper's: 0.72")


def reads(epoch: EpochFigures) -> float:
    """Returns the reads that the source's server saw."""
    return float(moved(epoch).operations["read"])


class OtherClient:
    """A program that reads files of the source all the time, here and there, and knows nothing of Forebay."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._bytes = [0] * OTHER_READERS

    @property
    def bytes(self) -> int:
        """Bytes that it has read."""
        return sum(self._bytes)

    @contextlib.contextmanager
    def reading(self, mnt: Path) -> Iterator[None]:
        """Reads until the block ends."""
        self._over.clear()
        paths = sorted(mnt.iterdir())
        threads = [threading.Thread(target=self._read, args=(number, paths)) for number in range(OTHER_READERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _read(self, number: int, paths: Sequence[Path]) -> None:
        choice = random.Random(number)  # noqa: S311
        while not self._over.is_set():
            descriptor = os.open(choice.choice(paths), os.O_RDONLY)
            try:
                # No page that the measured program could find, and none that it has left.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                at = choice.randrange(max(1, os.fstat(descriptor).st_size - OTHER_PIECE))
                self._bytes[number] += len(os.pread(descriptor, OTHER_PIECE, at))
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def client(world: FirstBench, report: BenchReport) -> None:
    """Measures the first epoch while another client reads the source, and what that client gets."""
    scenario = f"client: epoch 1 beside {OTHER_READERS} readers of another program"
    ways = [way for way in WAYS if way.name != LOCAL]
    found: dict[FirstEpochWay, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(world.size.rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            found[way].append(beside_other(world, way))
            report.note_load()
    for way in ways:
        pairs = list(zip(found[way], found[WAYS[0]], strict=True))
        report.time(What(scenario, f"{way.name}, epoch 1: time", "s"), [mine[0] for mine, _ in pairs])
        if way.mode is not None:
            report.time(
                What(scenario, f"{way.name}, epoch 1: time over", "x", None, AS_IT_IS), [mine[0] / plain[0] for mine, plain in pairs]
            )
            ratios = [mine[1] / plain[1] for mine, plain in pairs]
            report.time(What(scenario, f"{way.name}: what the other client reads over", "x", None, AS_IT_IS), ratios)


def long_run(world: FirstBench, report: BenchReport) -> None:
    """Trains the same network for equal time, with and without."""
    scenario = f"long: {MODEL}, PyTorch, {world.size.long_s / 60:.0f} minutes each"
    found = {way: trained(world, way) for way in (WAYS[0], PAPER_WAY)}
    report.note_load()
    plain, mine = found[WAYS[0]], found[PAPER_WAY]
    both = list(zip(plain, mine, strict=False))
    what = What(scenario, "epochs whose weights differ from those of the program as it is", "epochs", 0, AS_IT_IS)
    report.once(what, sum(one["digest"] != other["digest"] for one, other in both), f"of {len(both)} epochs that both have")
    for way, epochs in found.items():
        for name, unit in (("at_s", "s"), ("top1", "of the pictures"), ("top5", "of the pictures")):
            report.time(What(scenario, f"{way.name}: {name} by epoch", unit), [epoch[name] for epoch in epochs])
        report.once(What(scenario, f"{way.name}: epochs in equal time", "epochs"), len(epochs), "the paper's: 48 as it is, 81 with Monarch")
        note = "the paper's: 0.37 and 0.61 as it is, 0.51 and 0.75 with Monarch"
        report.once(What(scenario, f"{way.name}: top 1 at the end", "of the pictures"), epochs[-1]["top1"], note)
        report.once(What(scenario, f"{way.name}: top 5 at the end", "of the pictures"), epochs[-1]["top5"], note)
    note = f"{len(both)} epochs; the paper's: 0.58, 28 of 48 hours, and 0.63 in its conclusion"
    equal = What(scenario, f"{PAPER_WAY.name}: time for equally many epochs over", "x", None, AS_IT_IS)
    report.once(equal, both[-1][1]["at_s"] / both[-1][0]["at_s"], note)
    warm = [one["seconds"] for one in mine[1:]], [one["seconds"] for one in plain[1:]]
    if all(warm):
        ratio = statistics.median(warm[0]) / statistics.median(warm[1])
        report.once(What(scenario, f"{PAPER_WAY.name}: a warm epoch over", "x", None, AS_IT_IS), ratio)


def trained(world: FirstBench, way: FirstEpochWay) -> list[dict[str, Any]]:
    """Returns the epochs of a training of equal time."""
    classes = 1 + max(int(directory.name) for directory in world.pictures.iterdir())
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(world.source(world.pictures, keeps_caches=True))
        options = ["--held", world.pictures, "--seconds", world.size.long_s, "--model", MODEL, "--classes", classes]
        words, variables = program("train_long", source.mnt, *options), {}
        if way.mode is not None:
            tier = stack.enter_context(empty_tier(world.place))
            words = under_forebay(tier, int(TIER_SHARE * bytes_of(world.pictures)), way.mode, words, source.mnt)
            variables = {"FOREBAY_RUNTIME_DIR": str(tier.runtime), "FOREBAY_STATE_DIR": str(tier.state)}
        return lines(words, variables)


SCENARIOS: dict[str, Callable[[FirstBench, BenchReport], None]] = {
    "dropped": lambda world, report: shards(world, report, keeps_caches=False),
    "kept": lambda world, report: shards(world, report, keeps_caches=True),
    "client": client,
    "long": long_run,
}


@contextlib.contextmanager
def world(size: FirstSize, parent: Path) -> Iterator[FirstBench]:
    """Makes data when they are first asked for, and removes them at the end."""
    place = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=parent))
    try:
        yield FirstBench(size, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def lacks() -> str | None:
    """Returns what is missing on this machine."""
    return have_fuse() or (None if memory_groups() else "control groups of memory are missing")


BENCH = command.RootBench(
    "papers-monarch-first",
    "monarch-first",
    __doc__,
    (Part.TIERING, Part.LOADER),
    place_help="local directory for data and tiers",
    lacks=lacks,
    load_max=BUSY_LOAD,
)


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
