"""Rows of Parquet files. Rows lie in groups, and a group is read and decoded as a whole, so its rows share an extent."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from forebay.loader._at_once import at_once
from forebay.loader._errors import LoaderError
from forebay.loader._given import check_function, check_whole, columns_of, paths_of
from forebay.loader._groups import RowGroups
from forebay.loader._paths import Found, Seekable, look_up
from forebay.loader.dataset import Extent

__all__ = ["ParquetRows"]

FOOTERS_AT_ONCE = 16
GROUPS_KEPT = 24
"""Decoded: those that a block shuffle mixes at once, and some more, for it goes from one lot to the next bit by bit."""


class ParquetRows(RowGroups):
    """Rows of Parquet files, each a sample. Needs pyarrow.

    A global shuffle would read a whole group of rows for each sample or few; `shuffle="blocks"` reads each group once, and mixes the rows
    of some groups at a time. The footers of the files are read when it is made.

    Args:
        paths: of the files, or of one, or `s3://BUCKET/KEY`; their order is that of the rows.
        decode: makes a sample of a row (a value by name of column) and of its generator.
        columns: names; None for all.
        keyed: see `Located`: false if `decode` draws from global generators.
        groups_kept: groups whose rows are kept decoded, in each process.

    Attributes:
        keyed: as given.
        extents: groups of rows, of all files.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is no Parquet file, or lacks a column.
        ValueError: there is no file, decode is no function, columns are no names, or no group is to be kept.
    """

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[Mapping[str, Any], Any], Any],
        *,
        columns: Sequence[str] | None = None,
        keyed: bool = True,
        groups_kept: int = GROUPS_KEPT,
    ) -> None:
        check_function("decode", decode)
        self._kept_max = check_whole("groups_kept", groups_kept, 1)
        self._columns = columns_of(columns)
        self._decode = decode
        self.keyed = keyed
        self._files = at_once("forebay-index", FOOTERS_AT_ONCE, look_up, paths_of(paths))
        self._footers = at_once("forebay-index", FOOTERS_AT_ONCE, _footer, self._files)
        # Which file's which group each is.
        groups = [(file, group) for file, footer in enumerate(self._footers) for group in range(footer.num_row_groups)]
        rows = [self._footers[file].row_group(group).num_rows for file, group in groups]
        self._groups = [found for found, count in zip(groups, rows, strict=True) if count]
        super().__init__(zip((self._extent(*found) for found in self._groups), filter(None, rows), strict=True))
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_tables")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        number, row = self._find(i)
        (values,) = self._table(number, data).slice(row, 1).to_pylist()
        return self._decode(values, rng)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[int, Future[Any]] = OrderedDict()

    def _table(self, number: int, data: memoryview) -> Any:  # noqa: ANN401  (pyarrow has no types)
        """A group's rows: decoded by whoever comes first, while others wait."""
        with self._lock:
            decoded = self._tables.get(number)
            is_mine = decoded is None
            if decoded is None:
                decoded = self._tables[number] = Future()
                while len(self._tables) > self._kept_max:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(number)
        if is_mine:
            try:
                decoded.set_result(self._decoded(number, data))
            except BaseException as error:
                decoded.set_exception(error)
                with self._lock:
                    self._tables.pop(number, None)
        return decoded.result()

    def _decoded(self, number: int, data: memoryview) -> Any:  # noqa: ANN401
        import pyarrow
        import pyarrow.parquet

        file, group = self._groups[number]
        part = pyarrow.PythonFile(_Part(data, self._extents[number].offset), "r")
        return pyarrow.parquet.ParquetFile(part, metadata=self._footers[file]).read_row_group(group, self._columns, use_threads=False)

    def _extent(self, file: int, group: int) -> Extent:
        """Of the columns that are wanted, and what lies between."""
        footer = self._footers[file].row_group(group)
        chunks = [footer.column(number) for number in range(footer.num_columns)]
        names = {chunk.path_in_schema.partition(".")[0] for chunk in chunks}
        if missing := [name for name in self._columns or () if name not in names]:
            raise LoaderError(f"{self._files[file].path} has no column {missing[0]}; there are: {', '.join(sorted(names))}")
        wanted = [chunk for chunk in chunks if self._columns is None or chunk.path_in_schema.partition(".")[0] in self._columns]
        starts = [min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in wanted]
        ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, wanted, strict=True)]
        return Extent(self._files[file].path, min(starts), max(ends) - min(starts), self._files[file].mark)


def _footer(found: Found) -> Any:  # noqa: ANN401
    import pyarrow
    import pyarrow.parquet

    try:
        with found.open() as file:
            return pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowInvalid as error:
        raise LoaderError(f"{found.path}: {error}: it was cut, or is no Parquet file") from None


class _Part(Seekable):
    """A part of a file, where it lies in the whole: what else is asked for is not there."""

    def __init__(self, data: memoryview, start: int) -> None:
        super().__init__(start + len(data))
        self._data = data
        self._start = start

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  (writable memory)
        first = self._at - self._start
        if first < 0:
            raise OSError(f"byte {self._at} lies before the part, which begins at {self._start}")
        found = self._data[first : first + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
