"""Rows that need no decoding: batches as without a cache, put together natively out of the agent's memory."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.loader import FixedRows
from forebay.torch import DataLoader, _cache
from tests.loader.data import epoch, figures, same
from tests.loader.node import LoaderNode

ROWS, ROW_BYTES, HEAD = 203, 48, 16
CONTENT = np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "report": False}
CACHED: dict[str, Any] = OPTIONS | {"cache": "ram=1M", "hedge_budget": 0}


def written(folder: Path) -> Path:
    path = folder / "rows"
    path.write_bytes(bytes(HEAD) + CONTENT.tobytes())
    return path


def no_decode(self: FixedRows, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401
    raise AssertionError(f"row {i} was decoded")


@pytest.fixture
def rows(node: LoaderNode, monkeypatch: pytest.MonkeyPatch) -> FixedRows:
    """No Python is to run for a row."""
    monkeypatch.setattr(FixedRows, "decode", no_decode)
    return FixedRows(written(node.root), ROW_BYTES, offset=HEAD)


class Reversed(FixedRows):
    """Rows from their last byte to their first."""

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401
        return super().decode(data, i, rng)[::-1].copy()


@pytest.mark.parametrize("cached", [False, True])
def test_rows_of_a_class_with_a_decode_of_its_own_are_decoded(node: LoaderNode, cached: bool) -> None:
    loader = DataLoader(Reversed(written(node.root), ROW_BYTES, offset=HEAD), **(CACHED if cached else OPTIONS) | {"shuffle": False})
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(CONTENT[:, ::-1].copy()))


@pytest.fixture
def plain(tmp_path: Path) -> DataLoader:
    return DataLoader(FixedRows(written(tmp_path), ROW_BYTES, offset=HEAD), **OPTIONS)


def test_a_batch_is_rows_of_bytes(plain: DataLoader) -> None:
    batches = list(plain)
    assert [batch.dtype for batch in batches] == [torch.uint8] * len(plain)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.cat(batches), torch.from_numpy(CONTENT)[order])


@pytest.mark.parametrize("options", [{}, {"background_fill": True}, {"policy": "lobster_as_written"}, {"drop_last": True}])
def test_batches_are_the_same_and_rows_are_read_once(rows: FixedRows, plain: DataLoader, options: dict[str, Any]) -> None:
    loader = DataLoader(rows, **CACHED | options)
    for number in range(3):
        theirs = epoch(plain, number)
        assert same(epoch(loader, number), theirs[: len(loader)]) == len(loader)
    counted = figures(loader)
    assert ROWS - 7 <= counted["from_source"] <= ROWS
    assert counted["from_memory"] >= 2 * (ROWS - 7)


def test_an_epoch_that_is_left_and_one_that_goes_on(rows: FixedRows, plain: DataLoader) -> None:
    loader = DataLoader(rows, **CACHED)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    del batches
    again = DataLoader(rows, **CACHED)
    again.load_state_dict(state)
    assert same(again, epoch(plain, 0)[5:]) == len(loader) - 5
    assert same(epoch(loader, 1), epoch(plain, 1)) == len(loader)


def test_a_sampler_of_the_user_s_own(rows: FixedRows) -> None:
    # Some come twice in a batch.
    sampler = [0, 5, 5, 7, 202, 3, 3]
    loader = DataLoader(rows, sampler=sampler, **CACHED | {"shuffle": None, "batch_size": 4})
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(CONTENT)[sampler])


def test_two_epochs_at_once(rows: FixedRows, plain: DataLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    # The agent serves the later one; so little memory that what it takes from the other is soon used again.
    monkeypatch.setattr(_cache, "WINDOW_BYTES", 4096)
    loader = DataLoader(rows, **CACHED | {"policy": "none", "cache": "ram=4K"})
    for _ in range(6):
        first, second = iter(loader), iter(loader)
        assert same(zip(first, second, strict=True), zip(plain, plain, strict=True)) == len(loader)


def test_a_batch_that_is_larger_than_the_board_holds_nothing_up(
    rows: FixedRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # A sampler of batches does not say how large they are.
    monkeypatch.setattr(_cache, "BATCH", 1)
    large = list(range(ROWS))
    batches = [large, [1, 2, 3], large, [4, 5]]
    options = {name: OPTIONS[name] for name in ("seed", "num_workers", "report")}
    loader = DataLoader(rows, batch_sampler=batches, cache="ram=1M", hedge_budget=0, **options)
    for batch, indices in zip(loader, batches, strict=True):
        assert torch.equal(batch, torch.from_numpy(CONTENT[indices]))
    assert figures(loader)["from_source"] == 5
    assert capfd.readouterr().err.count("a batch has 203 samples") == 1


def test_the_agent_is_killed_and_no_batch_is_another(node: LoaderNode, rows: FixedRows, plain: DataLoader) -> None:
    loader = DataLoader(FixedRows(rows.path, ROW_BYTES, offset=HEAD), **CACHED)
    ours = []
    for number, batch in enumerate(loader):
        ours.append(batch)
        if number == 3:
            os.kill(node.agent(), signal.SIGKILL)
    assert same(ours, epoch(plain, 0)) == len(loader)
    assert figures(loader) == {}
    # From the next epoch on there is another one.
    for number in (1, 2):
        assert same(epoch(loader, number), epoch(plain, number)) == len(loader)
    counted = figures(loader)
    assert (counted["from_source"], counted["from_memory"]) == (ROWS, ROWS)


def test_a_file_that_was_cut_is_named(rows: FixedRows) -> None:
    cut = ROWS - 10
    os.truncate(rows.path, HEAD + cut * ROW_BYTES + 1)
    with pytest.raises(EOFError, match=f"sample [0-9]+ .{rows.path}.: .* it was cut"):
        list(DataLoader(rows, **CACHED))
    loader = DataLoader(rows, **CACHED, on_error="skip")
    had = torch.cat(list(loader))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    assert torch.equal(had, torch.from_numpy(CONTENT)[order[order < cut]])
    assert loader.skipped == 10


def test_a_row_that_there_is_not(rows: FixedRows) -> None:
    for sampler in ([1, ROWS], [1, -1]):
        with pytest.raises(IndexError, match=f"row {sampler[1]}: there are {ROWS}"):
            list(DataLoader(rows, sampler=sampler, **CACHED | {"shuffle": None}))


def test_numbers_of_numpys_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path)
    row_bytes: Any = np.uint8(16)
    assert len(FixedRows(path, row_bytes)) == path.stat().st_size // 16


@pytest.mark.parametrize(
    ("row_bytes", "offset", "wrong"),
    [
        (0, 0, "row_bytes=0: give the bytes of a row, a whole number from 1"),
        ("x", 0, "row_bytes='x': give the bytes of a row"),
        (True, 0, "row_bytes=True: give the bytes of a row"),
        (8, -1, "offset=-1: give the byte of the file at which rows begin"),
        (8, "x", "offset='x': give the byte of the file at which rows begin"),
        (ROW_BYTES, 0, "16 bytes more than 203 rows of 48 bytes from byte 0 on"),
        (1 << 20, 0, "no whole row of 1048576 bytes"),
    ],
)
def test_a_file_that_has_no_such_rows(
    tmp_path: Path,
    row_bytes: Any,  # noqa: ANN401  (also none)
    offset: Any,  # noqa: ANN401
    wrong: str,
) -> None:
    with pytest.raises(ValueError, match=wrong):
        FixedRows(written(tmp_path), row_bytes, offset=offset)


def test_the_head_of_a_file_of_numpys_is_no_row(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", CONTENT[:, :32])
    with pytest.raises(
        ValueError, match=r"rows\.npy is a \.npy file, whose head is not a row: give offset=128, at which its numbers begin"
    ):
        FixedRows(tmp_path / "rows.npy", 32)
    rows: Any = FixedRows(tmp_path / "rows.npy", 32, offset=128)
    assert [row.tolist() for row in rows] == np.load(tmp_path / "rows.npy").tolist()
    assert len(FixedRows(tmp_path / "rows.npy", 32, offset=0)) == ROWS + 4
