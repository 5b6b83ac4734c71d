"""Reads every file below a directory from start to end once an epoch, in pieces, each thread one file at a time, and digests it.

One JSON line comes before the first epoch and one after each. With --step an epoch begins when a line comes on standard input; the
end of the input ends the program.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor


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


def say(**values: object) -> None:
    """One line."""
    print(json.dumps(values), flush=True)


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--piece-kib", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    shards = sorted(os.path.join(args.root, name) for name in os.listdir(args.root))  # noqa: PTH118, PTH208
    with ThreadPoolExecutor(args.threads) as pool:
        say(files=len(shards), at=time.monotonic())
        for epoch, _ in enumerate(sys.stdin if args.step else range(args.epochs), 1):
            random.Random(args.seed * 1000 + epoch).shuffle(shards)  # noqa: S311
            size = checksum = 0
            begun, cpu = time.monotonic(), time.process_time()
            for length, found in pool.map(read, shards, [args.piece_kib << 10] * len(shards)):
                size += length
                checksum = (checksum + found) % 2**64
            seconds = time.monotonic() - begun
            say(epoch=epoch, seconds=seconds, cpu_s=time.process_time() - cpu, files=len(shards), bytes=size, digest=checksum)
    return 0


if __name__ == "__main__":
    sys.exit(main())
