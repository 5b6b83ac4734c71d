"""Shared parts of the programs that read whole epochs.

When they go on, in which order they read, and what they say.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class CoursePart(NamedTuple):
    """An epoch, or a part of one."""

    epoch: int
    root: str
    # Positions in the epoch's order.
    begin: int
    end: int | None
    pause_s: float

    def of(self, files: Sequence[str], seed: int) -> list[str]:
        """Which of all files to read, in the epoch's order."""
        order = random.Random(seed * 1000 + self.epoch).sample(files, len(files))  # noqa: S311
        return order[self.begin : self.end]


def options(parser: argparse.ArgumentParser) -> None:
    """Adds what `steps` needs."""
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step", action="store_true", help="go on only when a line of JSON comes: any of epoch, root, begin, end, pace_ms")
    parser.add_argument("--pace-ms", type=float, default=0, help="pause after each batch")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)


def steps(args: argparse.Namespace) -> Iterator[CoursePart]:
    """Whole epochs, or with --step what the lines on standard input say, until they end."""
    if not args.step:
        yield from (CoursePart(epoch, args.root, 0, None, args.pace_ms / 1000) for epoch in range(1, args.epochs + 1))
        return
    for number, line in enumerate(sys.stdin, 1):
        told: dict[str, Any] = json.loads(line)
        pause_s = told.get("pace_ms", args.pace_ms) / 1000
        yield CoursePart(told.get("epoch", number), told.get("root", args.root), told.get("begin", 0), told.get("end"), pause_s)


def say(**values: object) -> None:
    """One line of JSON."""
    print(json.dumps(values), flush=True)
