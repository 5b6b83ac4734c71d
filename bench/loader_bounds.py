"""Bounds of a loader, and the form in which its figures are reported. Plain functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

# Hedged reads are among these 3 %.
PAYLOAD_MAX = 1.03
# The planner's: of a step.
IMBALANCE = 0.05


def payload_least(all_bytes: int, cache: int) -> int:
    """Returns the least bytes that a warm epoch reads from the source.

    Each sample is read once, and what is not read lay in the cache when it began.
    """
    return max(0, all_bytes - cache)


def payload_max(all_bytes: int, cache: int, window: int) -> float:
    """Returns the bar for source bytes: those of `payload_least`, and a window, whose samples are read again."""
    return PAYLOAD_MAX * payload_least(all_bytes, cache) + window


def ideal_s(training_s: float, whole_read_s: float, cached_share: float, cpu_s: float = 0.0) -> float:
    """The least time of an epoch: that of what takes longest, all else being done meanwhile.

    Args:
        training_s: of all steps, if no batch were waited for.
        whole_read_s: to read all the data from the source with as many reads at once as there may be.
        cached_share: of the bytes; the others are read.
        cpu_s: what has to be computed, on all processors together.
    """
    return max(training_s, (1 - cached_share) * whole_read_s, cpu_s)


def least_of(cached_share: float, times_faster: float) -> tuple[float, float]:
    """An epoch over one that reads everything, where the source's bandwidth is all that counts: the bar, and the bound.

    Args:
        cached_share: of the bytes.
        times_faster: what is asked for.
    """
    return 1 / times_faster, 1 - cached_share


def lru_share(cached_share: float) -> float:
    """Returns the hit ratio of an LRU cache of this share of the data, if an epoch uses each sample once."""
    if cached_share >= 1:
        return 1.0
    return cached_share + (1 - cached_share) * math.log(1 - cached_share)


def imbalanced(waits_s: Sequence[Sequence[float]], step_s: float) -> int:
    """Steps in which one rank waited noticeably longer for its batch than another: the planner's definition.

    Args:
        waits_s: of each rank, how long it waited in each step.
        step_s: what a step takes when nothing is waited for.

    Raises:
        ValueError: ranks went through different numbers of steps.
    """
    return sum(max(step) - min(step) > IMBALANCE * step_s for step in zip(*waits_s, strict=True))


def over_others(ours: int, others: int) -> tuple[float, tuple[float, float]]:
    """Returns the ratio of two counts of equally many trials, with Clopper and Pearson's 95 % interval.

    Three events on either side give 0.13 to 7.5: they don't tell one from the other. Without any event nothing is
    known.
    """
    events = ours + others

    def at_most(count: int, share: float) -> float:
        return sum(math.comb(events, each) * share**each * (1 - share) ** (events - each) for each in range(count + 1))

    def solved(is_below: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if is_below(middle) else (low, middle)
        return low

    low = solved(lambda share: 1 - at_most(ours - 1, share) < 0.025) if ours else 0.0
    high = solved(lambda share: at_most(ours, share) > 0.025) if others else 1.0
    ratio = [share / (1 - share) if share < 1 else math.inf for share in (low, high)]
    return (ours / others if others else math.inf if ours else math.nan), (ratio[0], ratio[1])


def stalled(waits_s: Sequence[Sequence[float]], step_s: float) -> int:
    """Steps in which all ranks waited: no balance helps those."""
    return sum(min(step) > IMBALANCE * step_s for step in zip(*waits_s, strict=True))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def growth(sizes: Sequence[float]) -> float:
    """The mean of the last quarter over that of the second one: the first quarter is still filling."""
    quarter = len(sizes) // 4
    return statistics.mean(sizes[-quarter:]) / statistics.mean(sizes[quarter : 2 * quarter])


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """How far two means are apart, over twice the standard error of their difference.

    With equal seeds at most 1 in 19 of 20 cases.
    """
    error = math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    distance = abs(statistics.mean(one) - statistics.mean(other))
    if distance == 0:
        return 0.0
    return math.inf if error == 0 else distance / (2 * error)
