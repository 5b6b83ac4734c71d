"""Rows of Parquet files: the rows that pyarrow reads, a group read and decoded once, and what is refused."""

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from forebay.loader import LoaderError, ParquetRows
from forebay.loader.dataset import is_located
from forebay.torch import DataLoader
from tests.loader.tables import identity, read, row, table_of


def write(path: Path, first: int, count: int, group: int) -> Path:
    pyarrow.parquet.write_table(table_of(first, count), path, row_group_size=group)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two groups of 8 and one of 4; nothing; one of 8."""
    return [write(tmp_path / "a", 0, 20, 8), write(tmp_path / "b", 0, 0, 8), write(tmp_path / "c", 20, 8, 50)]


@pytest.mark.parametrize("columns", [None, ["text"], ["known", "tokens"]])
def test_rows_are_those_that_pyarrow_reads(columns: list[str] | None, paths: list[Path]) -> None:
    dataset = ParquetRows(paths, row, columns=columns)
    assert is_located(dataset)
    wanted = [one for path in paths for one in pyarrow.parquet.read_table(path, columns=columns).to_pylist()]
    assert (len(dataset), dataset.extents, dataset.blocks()) == (28, 4, [8, 16, 20, 28])
    assert read(dataset, list(range(28))) == wanted
    assert read(dataset, [27, 3, 14, 3]) == [wanted[27], wanted[3], wanted[14], wanted[3]]
    assert read(pickle.loads(pickle.dumps(dataset)), [19]) == [wanted[19]]  # noqa: S301  (its own)


# Names as data sets of robots have them: a dot does not say that a struct is meant.
ODD = pyarrow.table(
    {
        "observation.state": [[0.5, 1.5], [2.5], []],
        "observation": [{"state": 1, "x.y": 2, "deep": {"state": 3}}, {"state": 4, "x.y": 5, "deep": None}, None],
        "action": [{"state": 7}, {"state": 8}, {"state": 9}],
        "list.element": [1, 2, 3],
        "steps": [[{"a": 1, "b": 2}], [], [{"a": 3, "b": 4}]],
        "known": [[("k", 1)], [], [("l", 2)]],
        "": ["no", "name", "at all"],
        'quoted "name", \\ and `more`': [1, 2, 3],
        "größe.ß": [1, 2, 3],
        ".": [4, 5, 6],
    },
    pyarrow.schema(
        {
            "observation.state": pyarrow.list_(pyarrow.float32()),
            "observation": pyarrow.struct(
                {"state": pyarrow.int64(), "x.y": pyarrow.int32(), "deep": pyarrow.struct({"state": pyarrow.int8()})}
            ),
            "action": pyarrow.struct({"state": pyarrow.int64()}),
            "list.element": pyarrow.int64(),
            "steps": pyarrow.list_(pyarrow.struct({"a": pyarrow.int64(), "b": pyarrow.int64()})),
            "known": pyarrow.map_(pyarrow.string(), pyarrow.int64()),
            "": pyarrow.string(),
            'quoted "name", \\ and `more`': pyarrow.int64(),
            "größe.ß": pyarrow.int64(),
            ".": pyarrow.int64(),
        }
    ),
)


@pytest.mark.parametrize(
    "columns",
    [
        None,
        *([name] for name in ODD.column_names),
        ["observation.state", "action"],
        ["observation.deep", "observation.x.y"],
        ["observation.deep.state", "observation.deep.state"],
        ["steps.list.element.a", "action.state"],
        ["known.key_value.value", "known.key_value.key"],
    ],
)
def test_columns_are_named_as_in_the_schema(columns: list[str] | None, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(ODD, tmp_path / "odd", row_group_size=2)
    dataset = ParquetRows(tmp_path / "odd", row, columns=columns)
    opened = pyarrow.parquet.ParquetFile(tmp_path / "odd")
    wanted = [one for group in range(2) for one in opened.read_row_group(group, columns).to_pylist()]
    assert read(dataset, list(range(3))) == wanted
    assert all(wanted)


def test_columns_of_one_name_are_as_in_pyarrows_rows(tmp_path: Path) -> None:
    twice = pyarrow.Table.from_arrays([pyarrow.array([1, 2]), pyarrow.array([3, 4]), pyarrow.array([5, 6])], ["a", "a", "b"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice")
    assert read(ParquetRows(tmp_path / "twice", row), [0, 1]) == twice.to_pylist() == [{"a": 3, "b": 5}, {"a": 4, "b": 6}]
    assert read(ParquetRows(tmp_path / "twice", row, columns=["a"]), [1]) == [{"a": 4}]


@pytest.mark.parametrize("name", ["observation.stat", "observation.x", "observation.state.list.item", "state", "observation.", "list"])
def test_a_column_that_there_is_not_is_named_beside_those_that_there_are(name: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(ODD, tmp_path / "odd")
    with pytest.raises(LoaderError, match=rf"odd has no column {re.escape(name)}; there are: .*action, .*observation, observation\.state"):
        ParquetRows(tmp_path / "odd", row, columns=[name])
    pyarrow.parquet.write_table(pyarrow.table({"pose": [{"x": 1}]}), tmp_path / "pose")
    with pytest.raises(LoaderError, match=r"with fields: pose\.x"):
        ParquetRows(tmp_path / "pose", row, columns=["pose.y"])


def test_rows_of_a_group_share_an_extent(paths: list[Path]) -> None:
    dataset = ParquetRows(paths, row)
    assert len({dataset.locate(number) for number in range(8)}) == 1
    assert len({dataset.locate(number) for number in range(28)}) == 4
    narrow = ParquetRows(paths, row, columns=["id"])
    assert narrow.locate(0).length < dataset.locate(0).length  # type: ignore[operator]
    for wrong in (-1, 28):
        with pytest.raises(IndexError, match=f"row {wrong}: there are 28"):
            dataset.locate(wrong)


def test_a_group_is_decoded_once_while_it_is_kept(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ParquetRows(paths, row, groups_kept=2)
    decoded: list[int] = []
    decode = dataset._decoded

    def counted(number: int, data: memoryview) -> object:
        decoded.append(number)
        return decode(number, data)

    monkeypatch.setattr(dataset, "_decoded", counted)
    read(dataset, [0, 1, 9, 2, 10, 3, 17, 0, 18, 11])
    assert decoded == [0, 1, 2, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_through_groups_and_says_what_a_global_shuffle_costs(
    workers: int, paths: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = ParquetRows(paths, identity, columns=["id"])

    def loaded(**options: Any) -> list[int]:
        loader = DataLoader(dataset, 4, seed=1, num_workers=workers, **options)
        return [number for batch in loader for number in batch.tolist()]

    order = loaded(shuffle="blocks", blocks_at_once=1, report=False)
    groups = [sum(number >= end for end in (8, 16, 20)) for number in order]
    assert sorted(order) == list(range(28))
    assert len(list(itertools.groupby(groups))) == 4, "one after another"
    assert capfd.readouterr().err == ""
    assert sorted(loaded(shuffle=True)) == list(range(28))
    said = capfd.readouterr().err.splitlines()
    assert said[0] == (
        "forebay: 7 samples share an extent: a global shuffle may read each extent as many times; "
        'shuffle="blocks" reads it once, in another order'
    )
    assert len(said) == 2
    loaded(shuffle=True, rank=1, world_size=2)
    loaded(shuffle=False, report=False)
    assert capfd.readouterr().err == ""


def test_files_that_are_no_parquet_files_or_lack_a_column_are_refused(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match="a has no column words; there are: id, known, text, tokens"):
        ParquetRows(paths, row, columns=["id", "words"])
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-10])
    with pytest.raises(LoaderError, match="it was cut, or is not a Parquet file"):
        ParquetRows(paths, row)
    with pytest.raises(FileNotFoundError):
        ParquetRows([tmp_path / "gone"], row)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"groups_kept": 0}, "groups_kept=0: give a whole number, 1 or more"),
        ({"groups_kept": "x"}, "groups_kept='x': give a whole number"),
        ({"columns": "text"}, "columns='text': give a list of names"),
        ({"columns": []}, r"columns=\[\]: give a list of names, or leave it out"),
        ({"columns": 5}, "columns=5: give a list of names"),
        ({"columns": [5]}, r"columns=\[5\]: give a list of names"),
        ({"decode": None}, "decode=None: give a function"),
    ],
)
def test_arguments_that_can_not_be_are_refused(options: dict[str, Any], wrong: str, paths: list[Path]) -> None:
    with pytest.raises(ValueError, match=wrong):
        ParquetRows(paths, **{"decode": row} | options)


def test_a_file_that_was_replaced_is_found_out(paths: list[Path]) -> None:
    dataset = ParquetRows(paths, row)
    paths[0].write_bytes(bytes(paths[0].stat().st_size))
    with pytest.raises(OSError, match=r"[Dd]eserialize|[Tt]hrift|[Pp]age"):
        read(dataset, [0])
    paths[0].write_bytes(b"short")
    with pytest.raises(EOFError, match="a ends at byte 5"):
        read(dataset, [0])
