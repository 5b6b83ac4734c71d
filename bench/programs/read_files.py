"""Reads every file below a directory once an epoch, in an order of its own each time, as a training program does.

Threads read and decode the images of a batch; after each batch there may be a pause, for the step that an accelerator
would take. One JSON line comes before the first epoch and one after each. With --step a line on standard input begins
an epoch, or the part of one that it names; the end of the input ends the program.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from steps import options, say, steps


class FileRead(NamedTuple):
    """Result of reading one file."""

    size: int
    checksum: int


def read(path: str) -> FileRead:
    """Reads a file."""
    with open(path, "rb") as file:  # noqa: PTH123 # as most training programs do
        data = file.read()
    return FileRead(len(data), zlib.crc32(data))


def read_and_decode(path: str) -> FileRead:
    """Reads an image and decodes it."""
    from PIL import Image

    with open(path, "rb") as file:  # noqa: PTH123
        data = file.read()
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB").tobytes()
    return FileRead(len(data), zlib.crc32(pixels))


@functools.cache
def listed(root: str) -> list[str]:
    """Every file, in the order of names; looked up once."""
    return sorted(os.path.join(place, name) for place, _, names in os.walk(root) for name in names)  # noqa: PTH118


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--first", type=int, metavar="N", help="read only the first N files, in the order of names")
    args = parser.parse_args()
    work = read_and_decode if args.decode else read
    if args.decode:
        # What is only imported once belongs to no epoch.
        import PIL.JpegImagePlugin  # noqa: F401
    with ThreadPoolExecutor(args.threads) as pool:
        say(files=len(listed(args.root)[: args.first]), at=time.monotonic())
        for step in steps(args):
            wanted = step.of(listed(step.root)[: args.first], args.seed)
            size = checksum = 0
            begun, cpu = time.monotonic(), time.process_time()
            for first in range(0, len(wanted), args.batch):
                for done in pool.map(work, wanted[first : first + args.batch]):
                    size += done.size
                    checksum = (checksum + done.checksum) % 2**64
                if step.pause_s:
                    time.sleep(step.pause_s)
            seconds = time.monotonic() - begun
            say(epoch=step.epoch, seconds=seconds, cpu_s=time.process_time() - cpu, files=len(wanted), bytes=size, digest=checksum)
    return 0


if __name__ == "__main__":
    sys.exit(main())
