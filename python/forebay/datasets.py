"""Hugging Face datasets: a `Dataset` of theirs, read ahead."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import datasets
from datasets.table import ConcatenationTable, MemoryMappedTable, Table

from forebay.loader import ArrowRows, Extent
from forebay.loader._errors import ColumnError
from forebay.loader._given import check_function
from forebay.loader._samples import IndexedSamples, part_of

__all__ = ["DatasetRows"]

HARMLESS = {"slice", "select", "drop", "remove_column", "replace_schema_metadata", "combine_chunks", "cast"}
"""Operations on the table of a file that leave rows and values as they are in the file. Types are compared."""


class DatasetRows(IndexedSamples):
    """Rows of a `datasets.Dataset` in Arrow files, as `load_dataset`, `load_from_disk` and `map` give.

    Rows are those of the dataset, also of one that was shuffled, selected from or split. They lie in record batches,
    which are read as a whole: for a dataset in the order of its files `shuffle="blocks"` reads each once.

    Args:
        dataset: a dataset without a format (`with_format(None)`).
        decode: makes a sample of a row, as the dataset would give it, and of its generator; the row itself unless
            given.
        keyed: see `Located`: false if `decode` draws from global generators.

    Attributes:
        keyed: as given.
        extents: record batches.
        identity: the dataset's fingerprint: a loader's state is of this dataset only.

    Raises:
        ValueError: the dataset is in a format, or does not lie in files as it is; or decode is not a function.
        LoaderError: one of its files is not what it was.
        OSError: one can't be read.
        TypeError: it is something else, such as a `DatasetDict`.
    """

    def __init__(
        self, dataset: datasets.Dataset, decode: Callable[[Mapping[str, Any], Any], Any] | None = None, *, keyed: bool = True
    ) -> None:
        _check(dataset)
        if (form := dataset.format["type"]) is not None:
            raise ValueError(f'the dataset has the format "{form}", which decode= makes here: give dataset.with_format(None)')
        if decode is not None:
            check_function("decode", decode)
        parts = list(_parts(dataset.data))
        self._decode = decode
        self.keyed = keyed
        try:
            self._rows = ArrowRows((part.path for part in parts), self._decoded, columns=dataset.column_names)
        except ColumnError:
            raise _changed() from None
        types = dataset.data.schema
        if any(schema.field(name).type != types.field(name).type for schema in self._rows.schemas for name in dataset.column_names):
            raise _changed()
        # A run of rows of each file: the number of its first row among those of all files, and of its end in the
        # dataset.
        slices = [[arguments[0] for name, arguments, _ in part.replays if name == "slice"] for part in parts]
        self._firsts: list[int] = [first + sum(offsets) for first, offsets in zip(self._rows.firsts, slices, strict=False)]
        self._ends = list(accumulate(part.num_rows for part in parts))
        self._blocks = list(self._block_ends())
        self.extents = len(self._blocks)
        self._features = dataset.features
        self.identity = dataset._fingerprint
        # Of a dataset that is not in the order of its files.
        self._indices = None if dataset._indices is None else dataset._indices.column(0).to_numpy()

    def __len__(self) -> int:
        return self._ends[-1] if self._indices is None else len(self._indices)

    def blocks(self) -> list[int]:
        """Returns the end of each record batch, as a number of rows.

        Raises:
            ValueError: the dataset is not in the order of its files.
        """
        if self._indices is not None:
            raise ValueError(
                "the dataset was shuffled or selected from, so its rows lie apart: give it as it was before, or after flatten_indices()"
            )
        return self._blocks

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        return self._rows.locate(self._row(i))

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        return self._rows.decode(data, self._row(i), rng)

    def _sample(self, i: int, rng: Any) -> Any:  # noqa: ANN401  (see `IndexedSamples`)
        return self._rows._sample(self._row(i), rng)

    def _row(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i}: there are {len(self)}")
        position = i if self._indices is None else int(self._indices[i])
        part, number = part_of(self._ends, position, "row")
        return self._firsts[part] + number

    def _block_ends(self) -> Iterator[int]:
        """Yields the ends of record batches in the order of the files."""
        ends, begun = self._rows.blocks(), 0
        for first, end in zip(self._firsts, self._ends, strict=True):
            last = first + end - begun
            yield from (begun + within - first for within in ends[bisect_right(ends, first) : bisect_left(ends, last)])
            if end > begun:
                yield end
            begun = end

    def _decoded(self, values: Mapping[str, Any], rng: Any) -> Any:  # noqa: ANN401  (whatever a sample is)
        row = self._features.decode_example(values)
        return row if self._decode is None else self._decode(row, rng)


def _check(dataset: object) -> None:
    """Refuses anything but a `Dataset` (`TypeError`)."""
    if isinstance(dataset, Mapping):
        raise TypeError(f'{type(dataset).__name__} has several datasets: take one of its splits, such as dataset["train"]')
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(
            f"{type(dataset).__name__} is not a datasets.Dataset, whose rows lie in files: give what load_dataset gives "
            "without streaming=True"
        )


def _parts(table: Table) -> Iterator[MemoryMappedTable]:
    """Yields the files of a dataset, in order."""
    if isinstance(table, ConcatenationTable):
        for columns in table.blocks:
            if len(columns) > 1:
                raise _changed()
            yield from _parts(columns[0])
    elif isinstance(table, MemoryMappedTable):
        if any(name not in HARMLESS for name, _, _ in table.replays):
            raise _changed()
        yield table
    else:
        raise ValueError("the dataset is in memory, not in files: keep it with save_to_disk, and load_from_disk what was kept")


def _changed() -> ValueError:
    return ValueError(
        "the dataset is not what its files hold, since columns or rows were changed without writing them: keep it with save_to_disk, and "
        "load_from_disk what was kept"
    )
