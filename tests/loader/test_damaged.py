"""Damaged shards among many: one error names them all, and with on_error="skip" they are left out, counted and told."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from forebay import _say
from forebay.loader import ArrowRows, LoaderError, ParquetRows, RecordShards, TarShards, TokenFile, _index, arrow, parquet, tokens
from forebay.torch import DataLoader
from tests.loader.data import write_records
from tests.loader.test_shards import write_tar


def write_parquet(path: Path, number: int) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"id": [number, number]}), path)


def write_arrow(path: Path, number: int) -> None:
    with pyarrow.ipc.new_file(path, pyarrow.schema({"id": pyarrow.int64()})) as writer:
        writer.write_table(pyarrow.table({"id": [number, number]}))


KINDS: dict[str, tuple[Callable[[Path, int], object], Callable[..., Any]]] = {
    "tar": (
        lambda path, number: write_tar(path, [("a.txt", b"%d" % number), ("b.txt", b"%d" % number)]),
        lambda paths, folder, **options: TarShards(paths, lambda found, rng: int(found["txt"].tobytes()), index=folder / "kept", **options),
    ),
    "records": (
        lambda path, number: write_records(path, 2 * [b"%d" % number]),
        lambda paths, folder, **options: RecordShards(paths, lambda one, rng: int(one.tobytes()), index=folder / "kept", **options),
    ),
    "parquet": (write_parquet, lambda paths, folder, **options: ParquetRows(paths, lambda row, rng: row["id"], **options)),
    "arrow": (write_arrow, lambda paths, folder, **options: ArrowRows(paths, lambda row, rng: row["id"], **options)),
    "tokens": (
        lambda path, number: np.save(path.open("wb"), np.full(3, number, "int32")),
        lambda paths, folder, **options: TokenFile(paths, 1, **options),
    ),
}
Kind = tuple[list[Path], Callable[..., Any]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """Ten shards of two samples, each of which is its shard's number.

    The second, the fifth and the last can't be used.
    """
    write, made = KINDS[request.param]
    paths = [tmp_path / f"shard-{number}" for number in range(10)]
    for number, path in enumerate(paths):
        write(path, number)
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[: len(whole) * 3 // 4 if request.param != "tar" else 700])
    paths[4].unlink()
    paths[9].unlink()
    paths[9].mkdir()
    return paths, lambda paths, **options: made(paths, tmp_path, **options)


def test_all_are_named_in_one_error(kind: Kind) -> None:
    paths, made = kind
    with pytest.raises(LoaderError) as caught:
        made(paths)
    told = str(caught.value)
    assert told.startswith("3 of 10 shards can't be used: ")
    assert told.endswith('; on_error="skip" leaves damaged shards out')
    assert [path.name for path in paths if str(path) in told] == ["shard-1", "shard-4", "shard-9"]
    assert "cut" in told or "damaged" in told
    assert "No such file" in told
    assert "\n" not in told


def test_those_that_fail_alike_and_one_alone_have_their_own_error(kind: Kind, tmp_path: Path) -> None:
    paths, made = kind
    gone = [tmp_path / "gone-1", paths[0], tmp_path / "gone-2"]
    with pytest.raises(FileNotFoundError, match=r"2 of 3 shards can't be used: .*gone-1.*; .*gone-2"):
        made(gone)
    with pytest.raises(FileNotFoundError, match=r"gone-1'$"):
        made(gone[:2])
    with pytest.raises(LoaderError, match="shard-1") as caught:
        made(paths[:3])
    assert "on_error" not in str(caught.value)


def test_they_are_left_out_counted_and_told(kind: Kind, capfd: pytest.CaptureFixture[str]) -> None:
    paths, made = kind
    dataset = made(paths, on_error="skip")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith('forebay: on_error="skip": 3 of 10 shards are left out: ')
    assert list(dataset.skipped_shards) == [str(paths[number]) for number in (1, 4, 9)]
    assert all(path in reason and reason in line for path, reason in dataset.skipped_shards.items())
    loader = DataLoader(dataset, 2, seed=1, shuffle=True, num_workers=2, report=False)
    found = [one for batch in loader for one in (batch[0].flatten() if isinstance(batch, list) else batch).tolist()]
    # As of the good ones alone.
    good = [path for number, path in enumerate(paths) if number not in (1, 4, 9)]
    alone = made(good)
    assert (len(dataset), dataset.skipped_shards and alone.skipped_shards) == (len(alone), {})
    assert sorted(found) == sorted(2 * [0, 2, 3, 5, 6, 7, 8])
    for number in (0, 13):
        assert dataset.locate(number) == alone.locate(number)
    assert made(good, on_error="skip").skipped_shards == {}
    assert capfd.readouterr().err == ""


def test_where_nothing_is_left_that_is_an_error(kind: Kind) -> None:
    paths, made = kind
    with pytest.raises(LoaderError, match=r"2 of 2 shards can't be used: .*shard-1.*shard-4.*"):
        made([paths[1], paths[4]], on_error="skip")
    with pytest.raises(ValueError, match=r"""on_error='ignore': give "raise" or "skip"$"""):
        made(paths[:1], on_error="ignore")


def test_what_may_be_over_the_next_time_is_no_damage(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another rank may have read the shard, and would have another dataset.
    paths, made = kind

    def stale(path: str) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    for module in (_index, parquet, arrow, tokens):
        for name in ("look_up", "_read", "tokens_of"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda path, **_: stale(path))
    monkeypatch.setattr(_say, "_said", set())
    with pytest.raises(OSError, match="2 of 2 shards can't be used") as caught:
        made(paths[2:4], on_error="skip")
    assert caught.value.errno == errno.ESTALE
