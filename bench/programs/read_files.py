"""Reads every file below a directory once an epoch, in an order of its own each time, as a training program does.

Threads read and decode the images of a batch; after each batch there may be a pause, for the step that an accelerator would take.
One JSON line comes before the first epoch and one after each. With --step an epoch begins when a line comes on standard input, which
may name another pause; the end of the input ends the program.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple


class Read(NamedTuple):
    """What came of one file."""

    size: int
    checksum: int


def read(path: str) -> Read:
    """Reads a file."""
    with open(path, "rb") as file:  # noqa: PTH123 # as most training programs do
        data = file.read()
    return Read(len(data), zlib.crc32(data))


def read_and_decode(path: str) -> Read:
    """Reads an image and decodes it."""
    from PIL import Image

    with open(path, "rb") as file:  # noqa: PTH123
        data = file.read()
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB").tobytes()
    return Read(len(data), zlib.crc32(pixels))


def listed(root: str) -> list[str]:
    """Every file, in the order of names."""
    return sorted(os.path.join(place, name) for place, _, names in os.walk(root) for name in names)  # noqa: PTH118


def pauses(args: argparse.Namespace) -> Iterator[float]:
    """The pause after each batch in seconds, once an epoch."""
    if not args.step:
        yield from [args.pace_ms / 1000] * args.epochs
        return
    for line in sys.stdin:
        yield float(line.strip() or args.pace_ms) / 1000


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
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pace-ms", type=float, default=0)
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--first", type=int, metavar="N", help="read only the first N files, in the order of names")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    files = listed(args.root)[: args.first]
    work = read_and_decode if args.decode else read
    if args.decode:
        # What is only imported once belongs to no epoch.
        import PIL.JpegImagePlugin  # noqa: F401
    with ThreadPoolExecutor(args.threads) as pool:
        say(files=len(files), at=time.monotonic())
        for epoch, pause in enumerate(pauses(args), 1):
            random.Random(args.seed * 1000 + epoch).shuffle(files)  # noqa: S311
            size = checksum = 0
            begun, cpu = time.monotonic(), time.process_time()
            for first in range(0, len(files), args.batch):
                for done in pool.map(work, files[first : first + args.batch]):
                    size += done.size
                    checksum = (checksum + done.checksum) % 2**64
                if pause:
                    time.sleep(pause)
            seconds = time.monotonic() - begun
            say(epoch=epoch, seconds=seconds, cpu_s=time.process_time() - cpu, files=len(files), bytes=size, digest=checksum)
    return 0


if __name__ == "__main__":
    sys.exit(main())
