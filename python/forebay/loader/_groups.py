"""Rows that lie in groups, such as those of Parquet files: a group is read as a whole, so its rows share an extent."""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import accumulate
from typing import Any
from weakref import WeakSet

from forebay.loader._samples import IndexedSamples
from forebay.loader.dataset import Extent

__all__ = ["GROUPS_KEPT", "DecodedGroups", "RowGroups"]

GROUPS_KEPT = 24
"""Decoded groups in memory: those that a block shuffle mixes, and some more while one lot replaces another."""


class DecodedGroups:
    """The groups that were decoded last.

    Each is decoded once, by the thread that comes first, while others wait for it.

    Args:
        most: number of groups that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def __getstate__(self) -> int:
        return self._most

    def __setstate__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, Future[Any]] = OrderedDict()
        _all.add(self)

    def get(self, number: int, decode: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401  (pyarrow has no types)
        """Returns the kept rows of a group, or else those of `decode(number, *arguments)`, which are kept then."""
        with self._lock:
            decoded = self._groups.get(number)
            is_mine = decoded is None
            if decoded is None:
                decoded = self._groups[number] = Future()
                while len(self._groups) > self._most:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(number)
        if is_mine:
            try:
                decoded.set_result(decode(number, *arguments))
            except BaseException as error:
                decoded.set_exception(error)
                with self._lock:
                    self._groups.pop(number, None)
        return decoded.result()


_all: "WeakSet[DecodedGroups]" = WeakSet()


def _forget_all() -> None:
    """Lets a forked process begin without groups: the threads that were decoding them are its parent's."""
    for kept in list(_all):
        kept._forget()


os.register_at_fork(after_in_child=_forget_all)


class RowGroups(IndexedSamples):
    """The extents of rows that lie in groups: the part of a dataset that all kinds of files share.

    Args:
        groups: extent and number of rows of each group; at least one row.

    Attributes:
        extents: number of groups.
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
        """Returns the end of each group, as a number of rows."""
        return self._ends

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`: the group that the row lies in."""
        number, _ = self._find(i)
        return self._extents[number]

    def _find(self, i: int) -> tuple[int, int]:
        """Returns the group of a row, and the row's number in the group.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"row {i}: there are {len(self)}")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)
