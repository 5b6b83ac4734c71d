"""Rows of Arrow files. A record batch is read as a whole, so its rows share an extent."""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any

from forebay.loader._at_once import look_through
from forebay.loader._errors import ColumnError, LoaderError
from forebay.loader._groups import RowGroups
from forebay.loader._paths import is_object, look_up
from forebay.loader._samples import part_of
from forebay.loader.dataset import Extent
from forebay.loader.source import read_sample

__all__ = ["ArrowRows"]

MESSAGE_HEADER = 2
BATCH_LENGTH, BATCH_COMPRESSION = 0, 3
DICTIONARY_ID, DICTIONARY_IS_DELTA = 0, 2
"""Numbers of fields in messages' flatbuffers: see Arrow's `Message.fbs`."""
MAGIC_OLD = b"FEA1"
MAGIC = b"ARROW1\0\0"
MAGIC_END = MAGIC.rstrip(b"\0")
"""First and last bytes of a file whose record batches are listed at its end. A stream has neither."""


class ArrowRows(RowGroups):
    """Rows of Arrow files (IPC, as a stream or a file: Feather's second version, what `datasets` keeps), each a sample.

    Needs pyarrow.

    A global shuffle would read a whole record batch for each sample or few; `shuffle="blocks"` reads each once, and
    mixes the rows of some at a time. The head of each record batch is read when it is made. A record batch that is
    compressed, as pandas writes Feather, or has columns with dictionaries, such as pandas' categories, is decoded as a
    whole and kept, so that its rows need it once. Dictionaries themselves are read when it is made, and stay in memory.

    Args:
        paths: path of one file, or paths of several in the order of the rows.
        decode: makes a sample of a row (a value by name of column) and of its generator.
        columns: names; None for all.
        keyed: see `Located`: false if `decode` draws from global generators.
        groups_kept: compressed record batches that are kept decoded, in each process.
        on_error: `"raise"`, or `"skip"`: files that are damaged or missing are left out, which one line says.

    Attributes:
        keyed: as given.
        extents: record batches, of all files.
        skipped_shards: the reason by path for each file that was left out.
        schemas: pyarrow's, of each file.
        firsts: number of each file's first row, and one more for the end.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is not an Arrow file, or lacks a column.
        ValueError: there is no file, or one is an object of a store; decode is not a function, columns are not names,
            or no group is to be kept.
    """

    def _look_through(self, paths: list[str], on_error: str) -> Iterable[tuple[Extent, int]]:
        if objects := [path for path in paths if is_object(path)]:
            raise ValueError(f"{objects[0]}: an Arrow file is looked through in memory; give files, such as those of a view (forebay view)")
        files, self.skipped_shards = look_through(partial(_read, columns=self._columns), paths, on_error)
        self.schemas = [file.schema for file in files]
        # Not by name: several columns may have one, of which a row has the last, as pyarrow's rows have.
        self._numbers = [None if self._columns is None else _numbers(schema, self._columns) for schema in self.schemas]
        self.firsts = [0, *accumulate(sum(rows for _, rows in file.batches) for file in files)]
        self._files = [number for number, file in enumerate(files) for _ in file.batches]
        # Those that have to be decoded as a whole; the others are views of their file.
        self._heads = [head for file in files for head in file.heads]
        self._is_kept = [flag or bool(head) for file in files for flag, head in zip(file.is_compressed, file.heads, strict=True)]
        return (batch for file in files for batch in file.batches)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the file is another than when it was looked through.
        """
        number, row = part_of(self._ends, i, "row")
        # What is kept is decoded from a copy: even of a compressed batch some columns may be views of the data.
        batch = self._kept.get(number, self._copied, data) if self._is_kept[number] else self._decoded(number, data)
        return self._decode(self._values(batch, number, row), rng)

    def _sample(self, i: int, rng: Any) -> Any:  # noqa: ANN401  (see `Samples`)
        number, row = part_of(self._ends, i, "row")
        batch = self._kept.get(number, self._read_batch if self._is_kept[number] else self._mapped)
        return self._decode(self._values(batch, number, row), rng)

    def _values(self, batch: Any, number: int, row: int) -> Any:  # noqa: ANN401  (pyarrow has no types)
        rows = batch.slice(row, 1).to_pylist()
        if not rows:
            raise self._changed(number, f"its record batch has {batch.num_rows} rows")
        return rows[0]

    def _read_batch(self, number: int) -> Any:  # noqa: ANN401  (pyarrow has no types)
        return self._decoded(number, read_sample(self._extents.__getitem__, number))

    def _mapped(self, number: int) -> Any:  # noqa: ANN401  (pyarrow has no types)
        """Returns a record batch that is not compressed, as views of its file: only the columns in use are read."""
        import pyarrow

        extent = self._extents[number]
        with pyarrow.memory_map(extent.path) as file:
            file.seek(extent.offset)
            return self._decoded(number, file.read_buffer(extent.length))

    def _copied(self, number: int, data: memoryview) -> Any:  # noqa: ANN401  (pyarrow has no types)
        return self._decoded(number, bytes(data))

    def _decoded(self, number: int, data: Any) -> Any:  # noqa: ANN401  (a buffer; pyarrow has no types)
        """Returns the requested columns of a record batch; those that are not compressed are views of the data."""
        import pyarrow

        file, head = self._files[number], self._heads[number]
        try:
            if head:
                batch = pyarrow.ipc.open_stream(b"".join([*head, data])).read_next_batch()
            else:
                batch = pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(pyarrow.py_buffer(data)), self.schemas[file])
            columns = self._numbers[file]
            return batch if columns is None else batch.select(columns)
        except (pyarrow.ArrowException, EOFError, OSError, ValueError, StopIteration) as error:
            raise self._changed(number, error) from None

    def _changed(self, number: int, why: object) -> LoaderError:
        path = self._extents[number].path
        return LoaderError(f"{path} is not the file that was looked through ({why}): begin again with the files as they are now")


@dataclass(frozen=True)
class _ArrowFile:
    """An Arrow file that was looked through.

    Attributes:
        path: path of the file.
        schema: pyarrow's schema.
        batches: extent and rows of each record batch that has rows.
        is_compressed: for each record batch, whether its buffers are compressed.
        heads: for each record batch, the schema and the dictionaries that it refers to, as messages; empty if it refers
            to none.
    """

    path: str
    schema: Any
    batches: list[tuple[Extent, int]]
    is_compressed: list[bool]
    heads: list[tuple[bytes, ...]]


def _numbers(schema: Any, columns: list[str]) -> list[int]:  # noqa: ANN401  (pyarrow has no types)
    return [number for name in columns for number in schema.get_all_field_indices(name)]


def _read(path: str, columns: list[str] | None) -> _ArrowFile:
    """Looks through a file: only the heads of its record batches are read. Raises as `ArrowRows`."""
    import pyarrow

    found = look_up(path)
    with found.open() as plain:
        first = plain.read(len(MAGIC))
        if first.startswith(MAGIC_OLD):
            raise LoaderError(f"{path} is of Feather's first version, which is not an Arrow file: write it with version 2")
        is_stream = first != MAGIC
        if not is_stream and plain.seek(-len(MAGIC_END), os.SEEK_END) and plain.read() != MAGIC_END:
            raise LoaderError(f"{path} does not end as an Arrow file does: it was cut, or is not an Arrow file")
    file = _ArrowFile(path, None, [], [], [])
    with pyarrow.memory_map(path) as mapped:
        try:
            mapped.seek(0 if is_stream else len(MAGIC))
            file = _looked_through(file, mapped)
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            raise LoaderError(f"{path}: {error}: it was cut, or is not an Arrow file") from None
    if file.schema is None:
        raise LoaderError(f"{path} is empty: it was cut, or is not an Arrow file")
    if missing := [name for name in columns or () if name not in file.schema.names]:
        raise ColumnError(f"{path} has no column {missing[0]}; there are: {', '.join(sorted(file.schema.names))}")
    return file


def _looked_through(file: _ArrowFile, mapped: Any) -> _ArrowFile:  # noqa: ANN401  (pyarrow has no types)
    """Returns a file with its schema, record batches and dictionaries."""
    import pyarrow

    messages, first = pyarrow.ipc.MessageReader.open_stream(mapped), b""
    # By their ids, each with what was added to it.
    dictionaries: dict[int, list[bytes]] = {}
    while True:
        start = mapped.tell()
        try:
            message = messages.read_next_message()
        except StopIteration:
            return file
        if message.type == "schema":
            file, first = replace(file, schema=pyarrow.ipc.read_schema(message)), message.serialize().to_pybytes()
        elif message.type == "dictionary" and file.schema is not None:
            identity, is_more = _dictionary_head(message.metadata)
            if not is_more:
                dictionaries[identity] = []
            dictionaries.setdefault(identity, []).append(message.serialize().to_pybytes())
        elif message.type != "record batch" or file.schema is None:
            raise LoaderError(f"{file.path} has a {message.type} where a record batch should be: it is not an Arrow file of rows")
        else:
            head = (first, *chain.from_iterable(dictionaries.values())) if dictionaries else ()
            rows, is_compressed = _batch_head(message.metadata)
            if not (is_compressed or head):
                # That costs nothing, and compares the buffers with the schema.
                rows = pyarrow.ipc.read_record_batch(message, file.schema).num_rows
            if rows:
                file.batches.append((Extent(file.path, start, mapped.tell() - start), rows))
                file.is_compressed.append(is_compressed)
                file.heads.append(head)


def _batch_head(metadata: Any) -> tuple[int, bool]:  # noqa: ANN401  (a buffer)
    """Returns the rows of a record batch, and whether it is compressed, which pyarrow says only after decompressing."""
    data = memoryview(metadata)
    batch = _message_body(data)
    length = _field(data, batch, BATCH_LENGTH)
    return 0 if length is None else struct.unpack_from("<q", data, length)[0], _field(data, batch, BATCH_COMPRESSION) is not None


def _dictionary_head(metadata: Any) -> tuple[int, bool]:  # noqa: ANN401  (a buffer)
    """Returns a dictionary's id, and whether it is added to the one that has that id."""
    data = memoryview(metadata)
    body = _message_body(data)
    identity, is_more = _field(data, body, DICTIONARY_ID), _field(data, body, DICTIONARY_IS_DELTA)
    return 0 if identity is None else struct.unpack_from("<q", data, identity)[0], is_more is not None and bool(data[is_more])


def _message_body(data: memoryview) -> int:
    """Returns the offset of the table of a message's own kind. Messages are flatbuffers, which pyarrow has verified."""
    header = _field(data, _table(data, 0), MESSAGE_HEADER)
    assert header is not None
    return _table(data, header)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Returns the offset of a field of a table; None if it is left out, as a field with its default value is."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, table - back + place)[0] if place < size else 0
    return table + offset if offset else None


def _table(data: memoryview, at: int) -> int:
    """Returns the offset of the table that is referred to at `at`."""
    return at + int(struct.unpack_from("<I", data, at)[0])
