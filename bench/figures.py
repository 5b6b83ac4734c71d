"""Medians with their intervals, and what they say about a bar."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


class Holds(enum.Enum):
    """Verdict on a bar: kept, missed or undecided."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Median:
    """A median and the interval that holds the true one with `coverage` probability, whatever the distribution is."""

    value: float
    low: float
    high: float
    coverage: float
    samples: tuple[float, ...]


def median(samples: Sequence[float]) -> Median:
    """The interval lies between two order statistics.

    The narrowest symmetric one that is sure enough, else the whole range.
    """
    ordered = sorted(samples)
    count = len(ordered)
    # The true median lies below the k-th smallest with the probability that fewer than k of `count` coins show heads.
    below, rank = 0.5**count, 1
    while rank < (count + 1) // 2:
        further = below + math.comb(count, rank) * 0.5**count
        if 1 - 2 * further < CONFIDENCE:
            break
        below, rank = further, rank + 1
    return Median(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], 1 - 2 * below, tuple(samples))


def under(found: Median, bar: float) -> Holds:
    """Returns the verdict on "at most `bar`" for a figure, as far as its interval tells."""
    if found.high <= bar:
        return Holds.YES
    return Holds.NO if found.low > bar else Holds.UNDECIDED


def count_under(samples: Sequence[float], bar: float) -> Holds:
    """Returns the verdict on "at most `bar`" for each of a few counts."""
    return Holds.YES if max(samples) <= bar else Holds.NO
