"""Reads every file of a directory once an epoch, in pieces, each thread one file at a time, and digests it.

One JSON line comes before the first epoch and one after each. With --step a line on standard input begins an epoch, or
the part of one that it names; the end of the input ends the program.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from steps import options, say, steps


def read(path: str, piece: int) -> tuple[int, int]:
    """Size of a file, and a number that its bytes decide."""
    size = 0
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while data := os.read(descriptor, piece):
            size += len(data)
            digest.update(data)
    finally:
        os.close(descriptor)
    return size, int.from_bytes(digest.digest()[:8], "little")


@functools.cache
def listed(root: str) -> list[str]:
    """Every file, in the order of names; looked up once."""
    return sorted(os.path.join(root, name) for name in os.listdir(root))  # noqa: PTH118, PTH208


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--piece-kib", type=int, default=256)
    args = parser.parse_args()
    with ThreadPoolExecutor(args.threads) as pool:
        say(files=len(listed(args.root)), at=time.monotonic())
        for step in steps(args):
            wanted = step.of(listed(step.root), args.seed)
            size = checksum = 0
            begun, cpu = time.monotonic(), time.process_time()
            for length, found in pool.map(read, wanted, [args.piece_kib << 10] * len(wanted)):
                size += length
                checksum = (checksum + found) % 2**64
            seconds = time.monotonic() - begun
            say(epoch=step.epoch, seconds=seconds, cpu_s=time.process_time() - cpu, files=len(wanted), bytes=size, digest=checksum)
    return 0


if __name__ == "__main__":
    sys.exit(main())
