"""How slow the test bed's file systems are: `python -m testbed.figures slowfs` or `gluster`, as root.

What is read: a few tar shards, one after the other, in pieces of 256 KiB; photographs of about 30 KB, by one thread and
by eight; and further photographs opened and closed without reading. Caches are dropped before each figure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.datasets import photos, shards
from testbed.testbed import TestbedError, drop_caches, gluster, slowfs

PIECE = 256 * 1024
PHOTOS = 3000
SHARDS = 4
READS_BY_THREADS = {1: 300, 8: 2000}


@contextlib.contextmanager
def served(kind: str, data: Path, place: Path) -> Iterator[Path]:
    """The data behind a slow file system, with that file system's defaults."""
    if kind == "slowfs":
        mnt = place / "mnt"
        mnt.mkdir()
        with slowfs(data, mnt):
            yield mnt
    else:
        with gluster(place / "gluster", populate=data) as g:
            yield g.mnt


def per_second(what: Callable[[], float]) -> float:
    """Runs it with cold caches; what it returns, by the time it took."""
    drop_caches()
    start = time.monotonic()
    return what() / (time.monotonic() - start)


def read_whole(path: Path) -> int:
    """The bytes of a file, read in pieces."""
    total = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            total += len(piece)
    return total


def open_and_close(path: Path) -> int:
    """One, for one file."""
    os.close(os.open(path, os.O_RDONLY))
    return 1


def measure(mnt: Path) -> Iterator[tuple[str, float, str]]:
    """The figures: name, value, unit."""
    yield "sequential", per_second(lambda: sum(map(read_whole, sorted((mnt / "shards").iterdir())))) / 1e6, "MB/s"
    files = sorted((mnt / "photos").glob("*/*.jpg"))
    random.Random(1).shuffle(files)  # noqa: S311
    for threads, count in READS_BY_THREADS.items():
        with ThreadPoolExecutor(threads) as pool:
            chosen, files = files[:count], files[count:]

            def read(chosen: list[Path] = chosen, pool: ThreadPoolExecutor = pool) -> float:
                return sum(1 for size in pool.map(read_whole, chosen) if size)

            yield f"30 KB files, {threads} thread{'s' if threads > 1 else ''}", per_second(read), "files/s"
    yield "open and close, 1 thread", per_second(lambda: sum(map(open_and_close, files))), "/s"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.figures", description="Measures a file system of the test bed.")
    parser.add_argument("kind", choices=["slowfs", "gluster"])
    parser.add_argument("--data", type=Path, help="directory in which to keep the data for another time (default: none is kept)")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-figures-", dir="/var/tmp") as scratch:
            data = args.data or Path(scratch) / "data"
            if not data.exists():
                photos(data / "photos", PHOTOS)
                shards(data / "shards", SHARDS)
            with served(args.kind, data, Path(scratch)) as mnt:
                for name, value, unit in measure(mnt):
                    print(f"{name:26} {value:8.1f} {unit}", flush=True)
            print(f"{'load average':26} {os.getloadavg()[0]:8.1f}")
    except (TestbedError, PermissionError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
