"""Bounds of a tier that holds a part of the data: the most or the least that it allows. Plain functions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def source_bytes_max(untiered: float, all_bytes: int, quota: int, largest: int) -> float:
    """The bar for the source's bytes in a warm epoch: 1.02 x (S - C), and one file, since copies are of whole files.

    Args:
        untiered: what an epoch without tiers moves on the links: S with all headers. Quota and file are grown alike.
        all_bytes: the sizes of all files.
        quota: what the tier may hold.
        largest: the size of the largest file.
    """
    on_links = untiered / all_bytes
    return 1.02 * max(0.0, untiered - quota * on_links) + largest * on_links


def operations_max(untiered: float, cached_share: float) -> float:
    """The bar for what a warm epoch asks of the source: 1.02 x the share that is not cached.

    Which files are cached is chance, and they are not all of a size: hence the 2 %, as for bytes.

    Args:
        untiered: how many operations an epoch without tiers takes.
        cached_share: of all that they are for.
    """
    return 1.02 * (1 - cached_share) * untiered


def seconds_max(untiered_s: float, local_s: float, cached_share: float) -> float:
    """An epoch's time when the cached share of its stall is gone.

    All of it is what an epoch on a local copy is faster by.
    """
    return untiered_s - cached_share * max(0.0, untiered_s - local_s)


def variation(rates: Sequence[float]) -> float:
    """The coefficient of variation: the standard deviation over the mean."""
    return statistics.pstdev(rates) / statistics.mean(rates)
