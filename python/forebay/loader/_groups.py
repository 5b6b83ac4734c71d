"""Rows that lie in groups, such as those of Parquet files: a group is read as a whole, so its rows share an extent."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from forebay.loader.dataset import Extent

__all__ = ["RowGroups"]


class RowGroups:
    """Where rows lie. The part of a dataset that is the same for all kinds of files.

    Args:
        groups: extent and number of rows of each; at least one row.

    Attributes:
        extents: groups.
    """

    def __init__(self, groups: Iterable[tuple[Extent, int]]) -> None:
        extents, rows = [], []
        for extent, count in groups:
            extents.append(extent)
            rows.append(count)
        self._extents = extents
        self._ends = list(accumulate(rows))
        self.extents = len(extents)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def blocks(self) -> list[int]:
        """Where each group of rows ends."""
        return self._ends

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`: the group that the row lies in."""
        number, _ = self._find(i)
        return self._extents[number]

    def _find(self, i: int) -> tuple[int, int]:
        """The group of a row, and its number in there.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"row {i}: there are {len(self)}")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)
