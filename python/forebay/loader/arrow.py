"""Rows of Arrow files. Rows lie in record batches, and one is read as a whole, so its rows share an extent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from forebay.loader._at_once import at_once
from forebay.loader._errors import LoaderError
from forebay.loader._given import check_function, columns_of, paths_of
from forebay.loader._groups import RowGroups
from forebay.loader._paths import is_object
from forebay.loader.dataset import Extent

__all__ = ["ArrowRows"]

FILES_AT_ONCE = 16
"""That are looked through; on a network file system that is waiting for the most part."""
MAGIC = b"ARROW1\0\0"
"""Of a file whose record batches are listed at its end. They lie there as in a stream, which has nothing of the kind."""


class ArrowRows(RowGroups):
    """Rows of Arrow files (IPC, as a stream or a file: Feather's second version, what `datasets` keeps), each a sample. Needs pyarrow.

    A global shuffle would read a whole record batch for each sample or few; `shuffle="blocks"` reads each once, and mixes the rows of some
    at a time. The head of each record batch is read when it is made.

    Args:
        paths: of the files, or of one; their order is that of the rows.
        decode: makes a sample of a row (a value by name of column) and of its generator.
        columns: names; None for all.
        keyed: see `Located`: false if `decode` draws from global generators.

    Attributes:
        keyed: as given.
        extents: record batches, of all files.
        schemas: pyarrow's, of each file.
        firsts: number of each file's first row, and one more for the end.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is no Arrow file, or lacks a column.
        ValueError: there is no file, or one is an object of a store; decode is no function, or columns are no names.
    """

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[Mapping[str, Any], Any], Any],
        *,
        columns: Sequence[str] | None = None,
        keyed: bool = True,
    ) -> None:
        check_function("decode", decode)
        self._decode = decode
        self._columns = columns_of(columns)
        self.keyed = keyed
        found = paths_of(paths)
        if objects := [path for path in found if is_object(path)]:
            raise ValueError(f"{objects[0]}: an Arrow file is looked through in memory; give files, such as those of a view (forebay view)")
        files = at_once("forebay-index", FILES_AT_ONCE, _read, found)
        for file in files:
            if missing := [name for name in self._columns or () if name not in file.schema.names]:
                raise LoaderError(f"{file.path} has no column {missing[0]}; there are: {', '.join(sorted(file.schema.names))}")
        self.schemas = [file.schema for file in files]
        # Not by name: several columns may have one, of which a row has the last, as pyarrow's rows have.
        self._numbers = [None if self._columns is None else _numbers(schema, self._columns) for schema in self.schemas]
        self.firsts = [0, *accumulate(sum(rows for _, rows in file.batches) for file in files)]
        self._files = [number for number, file in enumerate(files) for _ in file.batches]
        super().__init__(batch for file in files for batch in file.batches)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the file is another than when it was looked through.
        """
        import pyarrow

        number, row = self._find(i)
        try:
            message = pyarrow.ipc.read_message(pyarrow.py_buffer(data))
            batch = pyarrow.ipc.read_record_batch(message, self.schemas[self._files[number]])
            columns = self._numbers[self._files[number]]
            (values,) = (batch if columns is None else batch.select(columns)).slice(row, 1).to_pylist()
        except (pyarrow.ArrowException, EOFError, OSError, ValueError) as error:
            path = self._extents[number].path
            raise LoaderError(
                f"{path} is not the file that was looked through ({error}): begin again with the files as they are now"
            ) from None
        return self._decode(values, rng)


@dataclass(frozen=True)
class _File:
    """What was found in a file.

    Attributes:
        path: of the file.
        schema: pyarrow's.
        batches: extent and rows of each record batch that has any.
    """

    path: str
    schema: Any
    batches: list[tuple[Extent, int]]


def _numbers(schema: Any, columns: list[str]) -> list[int]:  # noqa: ANN401  (pyarrow has no types)
    return [number for name in columns for number in schema.get_all_field_indices(name)]


def _read(path: str) -> _File:
    """Looks through a file: only the heads of its record batches are read."""
    import pyarrow

    batches, schema = [], None
    with pyarrow.memory_map(path) as file:
        try:
            file.seek(len(MAGIC) if file.read(len(MAGIC)) == MAGIC else 0)
            messages = pyarrow.ipc.MessageReader.open_stream(file)
            while True:
                start = file.tell()
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    break
                if message.type == "schema":
                    schema = pyarrow.ipc.read_schema(message)
                elif message.type != "record batch" or schema is None:
                    raise LoaderError(f"{path} has a {message.type}, without which its rows can't be read: write it without dictionaries")
                elif rows := pyarrow.ipc.read_record_batch(message, schema).num_rows:
                    batches.append((Extent(path, start, file.tell() - start), rows))
        except (pyarrow.ArrowInvalid, OSError, EOFError) as error:
            raise LoaderError(f"{path}: {error}: it was cut, or is no Arrow file") from None
    if schema is None:
        raise LoaderError(f"{path} is empty: it was cut, or is no Arrow file")
    return _File(path, schema, batches)
