"""Reads a small part of every file below a directory.

Its start by read, or records here and there by seek, pread or mmap.

All files stay open until everything is read and a while has passed, as a program's that samples from its shards do.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

PIECE_BYTES = 256 << 10


def pieces(size: int, percent: float, how: str, seed: int) -> list[int]:
    """Offsets of the pieces to read."""
    whole = size // PIECE_BYTES
    wanted = max(1, round(whole * percent / 100))
    if how == "read":
        return [number * PIECE_BYTES for number in range(wanted)]
    return [number * PIECE_BYTES for number in random.Random(seed).sample(range(whole), wanted)]  # noqa: S311


def read(descriptor: int, offsets: list[int], how: str) -> tuple[int, int]:
    """Number of bytes and their checksum."""
    size = checksum = 0
    mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if how == "mmap" else None
    for offset in offsets:
        if mapped:
            data = mapped[offset : offset + PIECE_BYTES]
        elif how == "pread":
            data = os.pread(descriptor, PIECE_BYTES, offset)
        else:
            if how == "seek":
                os.lseek(descriptor, offset, os.SEEK_SET)
            data = os.read(descriptor, PIECE_BYTES)
        size += len(data)
        checksum = zlib.crc32(data, checksum)
    return size, checksum


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--how", choices=["read", "seek", "pread", "mmap"], default="read")
    parser.add_argument("--percent", type=float, default=5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--hold-s", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    paths = sorted(os.path.join(args.root, name) for name in os.listdir(args.root))  # noqa: PTH118, PTH208
    begun = time.monotonic()
    shards = [os.open(path, os.O_RDONLY) for path in paths]
    offsets = [pieces(os.fstat(shard).st_size, args.percent, args.how, args.seed + number) for number, shard in enumerate(shards)]
    with ThreadPoolExecutor(args.threads) as pool:
        done = list(pool.map(read, shards, offsets, [args.how] * len(shards)))
    seconds = time.monotonic() - begun
    time.sleep(args.hold_s)
    for shard in shards:
        os.close(shard)
    sizes, checksums = zip(*done, strict=True)
    print(json.dumps({"seconds": seconds, "files": len(shards), "bytes": sum(sizes), "digest": sum(checksums) % 2**64}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
