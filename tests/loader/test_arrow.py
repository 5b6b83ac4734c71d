"""Rows of Arrow files: the rows that pyarrow reads, a record batch an extent, and what is refused."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import feather

from forebay.loader import ArrowRows, LoaderError
from forebay.loader.dataset import is_located
from forebay.loader.source import read_sample
from forebay.torch import DataLoader
from tests.loader.tables import identity, read, row, table_of

NEW = {"stream": pyarrow.ipc.new_stream, "file": pyarrow.ipc.new_file}


def write(path: Path, first: int, count: int, batch: int, kind: str = "stream") -> Path:
    table = table_of(first, count)
    with NEW[kind](path, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


@pytest.fixture(params=NEW)
def paths(tmp_path: Path, request: pytest.FixtureRequest) -> list[Path]:
    """Two record batches of 8 and one of 4; nothing; one of 8."""
    kind = request.param
    return [write(tmp_path / "a", 0, 20, 8, kind), write(tmp_path / "b", 0, 0, 8, kind), write(tmp_path / "c", 20, 8, 50, kind)]


def table(path: Path) -> pyarrow.Table:
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    opened = pyarrow.ipc.open_file(path) if is_file else pyarrow.ipc.open_stream(path)
    return opened.read_all()


@pytest.mark.parametrize("columns", [None, ["text"], ["known", "tokens"]])
def test_rows_are_those_that_pyarrow_reads(columns: list[str] | None, paths: list[Path]) -> None:
    dataset = ArrowRows(paths, row, columns=columns)
    assert is_located(dataset)
    tables = [table(path) for path in paths]
    wanted = [one for whole in tables for one in (whole.select(columns) if columns else whole).to_pylist()]
    assert (len(dataset), dataset.extents, dataset.blocks(), dataset.firsts) == (28, 4, [8, 16, 20, 28], [0, 20, 20, 28])
    assert read(dataset, list(range(28))) == wanted
    assert read(dataset, [27, 3, 14, 3]) == [wanted[27], wanted[3], wanted[14], wanted[3]]
    assert read(pickle.loads(pickle.dumps(dataset)), [19]) == [wanted[19]]  # noqa: S301  (its own)


@pytest.mark.parametrize("columns", [None, ["observation.state"], ["observation", "a"], ["größe.ß", "observation.state"]])
def test_columns_are_named_as_in_the_schema(columns: list[str] | None, tmp_path: Path) -> None:
    arrays = [[1, 2], [{"state": 3}, {"state": 4}], [5, 6], [7, 8], [9, 10]]
    names = ["observation.state", "observation", "größe.ß", "a", "a"]
    odd = pyarrow.Table.from_arrays([pyarrow.array(values) for values in arrays], names)
    with pyarrow.ipc.new_file(tmp_path / "odd", odd.schema) as writer:
        writer.write_table(odd)
    wanted = [{name: one[name] for name in columns or one} for one in odd.to_pylist()]
    assert read(ArrowRows(tmp_path / "odd", row, columns=columns), [0, 1]) == wanted
    with pytest.raises(
        LoaderError, match=r"odd has no column observation\.stat; there are: a, a, größe\.ß, observation, observation\.state"
    ):
        ArrowRows(tmp_path / "odd", row, columns=["observation.stat"])


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_a_record_batch_of_feather_is_decompressed_once_while_it_is_kept(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some columns gain nothing by compression, so that their buffers stay as they are.
    random = np.random.default_rng(0)
    frame = pyarrow.table({"id": range(1000), "noise": list(random.bytes(1000)), "same": ["x" * 50] * 1000})
    feather.write_feather(frame, tmp_path / "a", compression=compression, chunksize=250)
    dataset = ArrowRows(tmp_path / "a", row, groups_kept=2)
    decoded: list[int] = []
    decode = dataset._decoded

    def counted(number: int, data: object) -> object:
        decoded.append(number)
        return decode(number, data)

    monkeypatch.setattr(dataset, "_decoded", counted)
    wanted = feather.read_table(tmp_path / "a").to_pylist()
    order = [0, 1, 300, 2, 301, 600, 0, 999]
    found = []
    for number in order:
        # The memory is another's as soon as a batch was put together.
        data = bytearray(read_sample(dataset.locate, number))
        found.append(dataset.decode(memoryview(data), number, None))
        data[:] = bytes(len(data))
    assert found == [wanted[number] for number in order]
    # What is not compressed needs no decoding, so nothing is kept.
    assert decoded == ([number // 250 for number in order] if compression == "uncompressed" else [0, 1, 2, 0, 3])
    decoded.clear()
    again = pickle.loads(pickle.dumps(ArrowRows(tmp_path / "a", row)))  # noqa: S301  (its own)
    assert list(again) == [dataset[number] for number in range(1000)] == wanted
    if compression != "uncompressed":
        assert decoded == [1, 2, 3], "0 was kept"


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", NEW)
def test_columns_with_dictionaries_have_their_values(kind: str, compression: str | None, tmp_path: Path) -> None:
    # In a stream a dictionary may be replaced or added to; in a file, added to only.
    parts: list[list[Any]] = [["a", "b", "a"], ["a", "b", "c"], ["a", "b", "c", "d", None]]
    if kind == "stream":
        parts += [["z", "y"], ["z", "y", "x"]]
    schema = pyarrow.schema({"id": pyarrow.int64(), "name": pyarrow.dictionary(pyarrow.int32(), pyarrow.string())})
    nested = pyarrow.field("nested", pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())))
    options = pyarrow.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with NEW[kind](tmp_path / "a", schema.append(nested), options=options) as writer:
        for part in parts:
            values = [pyarrow.array(range(len(part))), pyarrow.array(part).dictionary_encode(), _nested(part)]
            writer.write_batch(pyarrow.record_batch(values, schema.append(nested)))
    opened = pyarrow.ipc.open_file(tmp_path / "a") if kind == "file" else pyarrow.ipc.open_stream(tmp_path / "a")
    wanted = opened.read_all().to_pylist()
    dataset: Any = ArrowRows(tmp_path / "a", row)
    order = [*range(len(wanted) - 1, -1, -1)]
    assert read(dataset, order) == [wanted[number] for number in order]
    assert list(pickle.loads(pickle.dumps(dataset))) == wanted  # noqa: S301  (its own)
    assert read(ArrowRows(tmp_path / "a", row, columns=["name"]), [4]) == [{"name": wanted[4]["name"]}]


def _nested(part: list[Any]) -> pyarrow.ListArray:
    inner = pyarrow.array(["n"] * len(part)).dictionary_encode()
    return pyarrow.ListArray.from_arrays(list(range(len(part) + 1)), inner.cast(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())))


def test_feather_of_the_first_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.feather").write_bytes(b"FEA1" + bytes(60))
    with pytest.raises(LoaderError, match=r"old.feather is of Feather's first version, .*: write it with version 2"):
        ArrowRows(tmp_path / "old.feather", row)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_through_record_batches(workers: int, paths: list[Path]) -> None:
    dataset = ArrowRows(paths, identity, columns=["id"])
    assert len({dataset.locate(number) for number in range(28)}) == 4
    loader = DataLoader(dataset, 4, "blocks", blocks_at_once=1, seed=1, num_workers=workers, report=False)
    order = [number for batch in loader for number in batch.tolist()]
    assert sorted(order) == list(range(28))
    assert len(list(itertools.groupby(sum(number >= end for end in (8, 16, 20)) for number in order))) == 4, "one after another"


def test_what_is_no_arrow_file_or_lacks_a_column_is_refused(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match="a has no column words; there are: id, known, text, tokens"):
        ArrowRows(paths, row, columns=["id", "words"])
    whole = paths[0].read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no Arrow file, but some other text that is long enough"):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(LoaderError, match=r"other.*: it was cut, or is not an Arrow file"):
            ArrowRows([other], row)
    with pytest.raises(FileNotFoundError):
        ArrowRows([tmp_path / "gone"], row)
    columns: Any
    for columns in ("text", [], 5):
        with pytest.raises(ValueError, match=r"columns=.*: give a list of names, or leave it out for all columns"):
            ArrowRows(paths, row, columns=columns)
    with pytest.raises(ValueError, match="decode='row': give a function"):
        ArrowRows(paths, "row")  # type: ignore[arg-type]


def test_a_file_that_was_replaced_is_found_out(paths: list[Path]) -> None:
    dataset = ArrowRows(paths, row)
    paths[0].write_bytes(bytes(paths[0].stat().st_size))
    with pytest.raises(LoaderError, match="a is not the file that was looked through"):
        read(dataset, [0])
    paths[0].write_bytes(b"short")
    with pytest.raises(EOFError, match=r"a ends at byte \d+, and the sample at \d+: it was cut"):
        read(dataset, [0])
