"""Rows of Parquet files. Groups of rows are read and decoded as a whole, so their rows share an extent."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from forebay.loader._at_once import look_through
from forebay.loader._errors import ColumnError, LoaderError
from forebay.loader._groups import RowGroups
from forebay.loader._paths import PathStat, Seekable, look_up
from forebay.loader._samples import part_of
from forebay.loader.dataset import Extent
from forebay.loader.source import read_sample

__all__ = ["ParquetRows"]


class ParquetRows(RowGroups):
    """Rows of Parquet files, each a sample. Needs pyarrow.

    A global shuffle would read a whole group of rows for each sample or few; `shuffle="blocks"` reads each group once,
    and mixes the rows of some groups at a time. The footers of the files are read when it is made.

    Args:
        paths: path of one file, or an address such as `s3://BUCKET/KEY`, or several in the order of the rows.
        decode: makes a sample of a row (a value by name of column) and of its generator.
        columns: names of columns (`observation.state`: they may have dots), or paths to fields of structs (`pose.x`),
            as pyarrow takes them; None for all.
        keyed: see `Located`: false if `decode` draws from global generators.
        groups_kept: groups whose rows are kept decoded, in each process.
        on_error: `"raise"`, or `"skip"`: files that are damaged or missing are left out, which one line says.

    Attributes:
        keyed: as given.
        extents: groups of rows, of all files.
        skipped_shards: the reason by path for each file that was left out.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is not a Parquet file, or lacks a column.
        ValueError: there is no file, decode is not a function, columns are not names, or no group is to be kept.
    """

    def _look_through(self, paths: list[str], on_error: str) -> Iterable[tuple[Extent, int]]:
        self._files, self.skipped_shards = look_through(partial(_read, columns=self._columns), paths, on_error)
        # Number of its file, and number in the file, of each group that has rows.
        self._groups = [(file, group) for file, found in enumerate(self._files) for group, _, _ in found.groups]
        return ((extent, rows) for found in self._files for _, extent, rows in found.groups)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        number, row = part_of(self._ends, i, "row")
        (values,) = self._kept.get(number, self._decoded, data).slice(row, 1).to_pylist()
        return self._decode(values, rng)

    def _sample(self, i: int, rng: Any) -> Any:  # noqa: ANN401  (see `Samples`)
        number, row = part_of(self._ends, i, "row")
        (values,) = self._kept.get(number, self._read_group, i).slice(row, 1).to_pylist()
        return self._decode(values, rng)

    def _read_group(self, number: int, i: int) -> Any:  # noqa: ANN401  (pyarrow has no types)
        return self._decoded(number, read_sample(self.locate, i))

    def _decoded(self, number: int, data: memoryview) -> Any:  # noqa: ANN401
        import pyarrow
        import pyarrow.parquet

        file, group = self._groups[number]
        part = pyarrow.PythonFile(_PartFile(data, self._extents[number].offset), "r")
        return pyarrow.parquet.ParquetFile(part, metadata=self._files[file].footer).read_row_group(group, self._columns, use_threads=False)


@dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file whose footer was read.

    Attributes:
        footer: pyarrow's metadata of the file.
        groups: number in the file, extent and number of rows of each group that has rows.
    """

    footer: Any
    groups: list[tuple[int, Extent, int]]


def _read(path: str, columns: list[str] | None) -> _ParquetFile:
    """Reads a file's footer. Raises as `ParquetRows`."""
    import pyarrow
    import pyarrow.parquet

    found = look_up(path)
    try:
        with found.open() as file:
            opened = pyarrow.parquet.ParquetFile(file)
            footer, schema = opened.metadata, opened.reader.column_paths
    except pyarrow.ArrowException as error:
        raise LoaderError(f"{path}: {error}: it was cut, or is not a Parquet file") from None
    except OSError as error:
        # pyarrow's own have no number.
        if error.errno is not None:
            raise
        raise LoaderError(f"{path}: {error}: its footer is damaged") from None
    leaves = _leaves(path, schema, columns)
    return _ParquetFile(
        footer, [(number, *group) for number in range(footer.num_row_groups) if (group := _group(found, footer, number, leaves))[1]]
    )


def _leaves(path: str, schema: list[list[str]], columns: list[str] | None) -> list[int]:
    """Returns the numbers of the leaf columns that columns of a file consist of; raises `ColumnError` if it lacks one.

    Args:
        path: path of the file.
        schema: names from the top-level column down to each leaf, such as `["observation.state", "list", "element"]`. A
            name may have dots.
        columns: each the name of a top-level column, or a path to a field below one, joined by dots; None for all.
    """
    if columns is None:
        return list(range(len(schema)))
    below = defaultdict(list)
    for number, names in enumerate(schema):
        for prefix in accumulate(names, "{}.{}".format):
            below[prefix].append(number)
    if missing := [name for name in columns if name not in below]:
        tops = sorted({names[0] for names in schema})
        fields = sorted({".".join(names) for names in schema if missing[0].startswith(f"{names[0]}.")} - {*tops})
        inside = f"; with fields: {', '.join(fields)}" if fields else ""
        raise ColumnError(f"{path} has no column {missing[0]}; there are: {', '.join(tops)}{inside}")
    return sorted({number for name in columns for number in below[name]})


def _group(found: PathStat, footer: Any, number: int, leaves: list[int]) -> tuple[Extent, int]:  # noqa: ANN401  (pyarrow has no types)
    """Returns the extent of leaf columns in a group of rows, with the bytes between them, and the number of rows."""
    group = footer.row_group(number)
    chunks = [group.column(leaf) for leaf in leaves]
    starts = [min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    return Extent(found.path, min(starts), max(ends) - min(starts), found.mark), group.num_rows


class _PartFile(Seekable):
    """A part of a file at its offset in the file; reads outside of the part fail or return nothing."""

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
