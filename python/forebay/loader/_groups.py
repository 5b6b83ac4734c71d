"""Rows that lie in groups, such as those of Parquet files: a group is read as a whole, so its rows share an extent."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from typing import Any
from weakref import WeakSet

from forebay.loader._given import check_function, check_whole, columns_of, paths_of
from forebay.loader._samples import IndexedSamples, part_of
from forebay.loader.dataset import Extent

__all__ = ["GROUPS_KEPT", "DecodedGroups", "RowGroups"]

GROUPS_KEPT = 24
"""Decoded groups in memory: those that a block shuffle mixes, and some more while one lot replaces another."""


class DecodedGroups:
    """The groups that were decoded last, `most` of them.

    Each is decoded once, by the thread that comes first, while others wait for it.
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
    """Rows that lie in groups: the part of a dataset that all kinds of files share.

    Attributes:
        keyed: see `Located`.
        extents: number of groups.
        skipped_shards: the reason by path for each file that was left out.
    """

    skipped_shards: dict[str, str]

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[Mapping[str, Any], Any], Any],
        *,
        columns: Sequence[str] | None = None,
        keyed: bool = True,
        groups_kept: int = GROUPS_KEPT,
        on_error: str = "raise",
    ) -> None:
        check_function("decode", decode)
        self._kept = DecodedGroups(check_whole("groups_kept", groups_kept, 1))
        self._columns = columns_of(columns)
        self._decode = decode
        self.keyed = keyed
        groups = list(self._look_through(paths_of(paths), on_error))
        self._extents = [extent for extent, _ in groups]
        self._ends = list(accumulate(rows for _, rows in groups))
        self.extents = len(groups)

    def _look_through(self, paths: list[str], on_error: str) -> Iterable[tuple[Extent, int]]:
        """Returns the extent and number of rows of each group that has rows, and sets `skipped_shards`."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def blocks(self) -> list[int]:
        """Returns the end of each group, as a number of rows."""
        return self._ends

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`: the group that the row lies in."""
        return self._extents[part_of(self._ends, i, "row")[0]]
