"""Data, source and tiers for all scenarios.

A slow file system with the data, the same data on a plain local directory, and room for tiers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import datasets
from testbed.testbed import Gluster, gluster

# Time for the client and the bricks to fall silent.
QUIET_S = 0.3
AS_IT_IS = "as-it-is"
# A tier with more copies than this is removed only when all is measured: ext4 steps over each inode that was freed
# within the last minutes whenever it makes a new one (fs/ext4/ialloc.c, recently_deleted), so the next tier would pay
# for the removal of this one. With 6,000 freed inodes that was 0.2 ms of the agent's CPU a file.
REMOVED_AT_ONCE_MAX = 1_000


@dataclass(frozen=True)
class TieringSize:
    """Numbers of files, shards, pairs and runs to measure."""

    files: int
    shards: int
    pairs: int
    runs: int
    # Each half of a pair takes at least this long.
    seconds: float = 0
    micro_rounds: int = 0
    catalogued: int = 0
    # Figures that vary from pair to pair by more than their bar allows take so many times the pairs.
    times_pairs: int = 1
    listed: int = 0


FULL = TieringSize(
    files=6_000, shards=16, pairs=9, runs=3, seconds=10, micro_rounds=400, catalogued=1_300_000, times_pairs=3, listed=100_000
)
QUICK = TieringSize(files=3_000, shards=8, pairs=2, runs=1, seconds=3, micro_rounds=60, catalogued=300_000, listed=20_000)


@dataclass(frozen=True)
class SourceTraffic:
    """Traffic on the brick links, and operations at the bricks."""

    bytes: int
    bricks: tuple[dict[str, int], ...]

    def __sub__(self, before: SourceTraffic) -> SourceTraffic:
        bricks = tuple(
            {name: count - old.get(name, 0) for name, count in new.items()} for new, old in zip(self.bricks, before.bricks, strict=True)
        )
        return SourceTraffic(self.bytes - before.bytes, bricks)

    def __add__(self, other: SourceTraffic) -> SourceTraffic:
        bricks = tuple(
            {name: one.get(name, 0) + more.get(name, 0) for name in one | more} for one, more in zip(self.bricks, other.bricks, strict=True)
        )
        return SourceTraffic(self.bytes + other.bytes, bricks)

    @property
    def operations(self) -> Counter[str]:
        """Counts of each operation, over all bricks."""
        total: Counter[str] = Counter()
        for brick in self.bricks:
            total.update(brick)
        return total

    def most(self, operation: str) -> int:
        """Returns the count of this operation at the busiest brick."""
        return max(brick.get(operation, 0) for brick in self.bricks)


@dataclass(frozen=True)
class TieringBench:
    """Places and sizes."""

    place: Path
    size: TieringSize
    cluster: Gluster
    command: Path

    @property
    def files(self) -> Path:
        """Small files on the slow file system."""
        return self.cluster.mnt / "files"

    @property
    def shards(self) -> Path:
        """Large files on the slow file system."""
        return self.cluster.mnt / "shards"

    @property
    def local_files(self) -> Path:
        """The same small files on a local directory."""
        return self.place / "local" / "files"

    @property
    def local_shards(self) -> Path:
        """The same large files on a local directory."""
        return self.place / "local" / "shards"

    def as_it_is(self, source: Path) -> Path:
        """A directory of the slow file system by a name that is foreign to Forebay."""
        return self.place / AS_IT_IS / source.relative_to(self.cluster.mnt)

    def traffic(self) -> SourceTraffic:
        """So far."""
        stats: dict[str, Any] = self.cluster.stats()
        return SourceTraffic(stats["sent_bytes"] + stats["received_bytes"], tuple(brick["operations"] for brick in stats["bricks"]))

    def drop_caches(self) -> None:
        """Everything that the kernel keeps of any file goes, and the bricks have fallen silent."""
        self.cluster.drop_caches()
        time.sleep(QUIET_S)

    def tier(self, owner: int = 0) -> contextlib.AbstractContextManager[TierDirectory]:
        """An empty tier with its own runtime and state directories.

        Removed afterwards, or at the end if it holds many copies.
        """
        return empty_tier(self.place, owner)


@dataclass(frozen=True)
class TierDirectory:
    """Where a run keeps what it keeps."""

    dir: Path
    state: Path
    runtime: Path

    def files(self) -> list[os.DirEntry[str]]:
        """The copies on disk, published or not."""
        found: list[os.DirEntry[str]] = []
        for objects in self.dir.glob("forebay-*/objects"):
            for shard in os.scandir(objects):
                with contextlib.suppress(FileNotFoundError):
                    found.extend(os.scandir(shard))
        return found

    def bytes(self) -> int:
        """The sizes of all copies on disk."""
        total = 0
        for entry in self.files():
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
        return total


@contextlib.contextmanager
def empty_tier(parent: Path, owner: int = 0, *, kept: bool = False) -> Iterator[TierDirectory]:
    """Makes an empty tier of `owner`'s below `parent`.

    It is removed afterwards, or with `parent` if it is `kept` or holds many copies.
    """
    place = Path(tempfile.mkdtemp(prefix="tier-", dir=parent))
    # Short: the path of a socket has room for 108 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir="/dev/shm"))
    try:
        tier = TierDirectory(place / "tier", place / "state", runtime)
        tier.dir.mkdir()
        tier.state.mkdir(mode=0o700)
        for directory in (place, tier.dir, tier.state, runtime):
            os.chown(directory, owner, owner)
        yield tier
    finally:
        if not kept and len(tier.files()) <= REMOVED_AT_ONCE_MAX:
            shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(runtime, ignore_errors=True)


def unlabelled(local: Path, size: TieringSize) -> None:
    """Photographs by number, and tar files of them."""
    datasets.photos(local / "files", size.files)
    datasets.shards(local / "shards", size.shards)


@contextlib.contextmanager
def world(
    size: TieringSize,
    parent: Path,
    target: Path | None,
    *,
    prepare: Callable[[Path, TieringSize], None] = unlabelled,
    rate: str = "400mbit",
) -> Iterator[TieringBench]:
    """Made on entry, gone on leaving.

    Args:
        size: how much data, and how much of it is measured how often.
        parent: where the data lie, and the tiers.
        target: what is measured comes from this Cargo target directory; else from where the package is installed.
        prepare: fills the directories `files` and `shards` below the one that it is given.
        rate: what the link of each of the two bricks carries.
    """
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=parent))
    try:
        # Other users' programs are measured too.
        place.chmod(0o755)
        local = place / "local"
        print(f"preparing {size.files:,} photographs and {size.shards} shards in {place}", flush=True)
        prepare(local, size)
        command = install(place / "bin", target)
        with gluster(place / "slow", rate=rate, populate=local) as cluster, bound(cluster.mnt, place / AS_IT_IS):
            yield TieringBench(place, size, cluster, command)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """A directory by another name."""
    target.mkdir()
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


def install(directory: Path, target: Path | None) -> Path:
    """Copies command and library side by side, for another user to run and safe from a rebuild meanwhile."""
    directory.mkdir()
    for name, path in built(target).items():
        shutil.copy(path, directory / name)
        (directory / name).chmod(0o755)
    return directory / "forebay"


def built(target: Path | None) -> dict[str, Path]:
    """Paths of the command and library to measure, by name."""
    if target:
        return {"forebay": target / "release" / "forebay", "libforebay_preload.so": target / "preload" / "libforebay_preload.so"}
    # Not needed, and perhaps not installed, where a build is named.
    import forebay

    return {"forebay": forebay.command(), "libforebay_preload.so": forebay.preload_library()}
