"""`batch_size=None`: single samples, as torch's loader gives them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler

from forebay.torch import DataLoader
from tests.loader.data import FileViews

DATASETS: list[Any] = [list(range(5)), [np.ones(2) * n for n in range(3)], [{"a": 1}, {"a": 2}], ["x", "y"], [(1, torch.ones(1))]]


def double(sample: int) -> int:
    return sample * 2


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_converted_as_torch_converts_them(workers: int) -> None:
    for dataset in DATASETS:
        theirs = list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers))
        ours = list(DataLoader(dataset, batch_size=None, num_workers=workers, report=False))
        assert repr(ours) == repr(theirs)
        assert list(map(type, ours)) == list(map(type, theirs))
    assert list(DataLoader(range(5), batch_size=None, collate_fn=double, num_workers=workers, report=False)) == [0, 2, 4, 6, 8]


def test_the_order_is_torchs_and_a_state_goes_on_after_a_sample() -> None:
    torch.manual_seed(3)
    numbers: Any = range(20)
    theirs = list(torch.utils.data.DataLoader(numbers, batch_size=None, shuffle=True))
    torch.manual_seed(3)
    loader = DataLoader(range(20), batch_size=None, shuffle=True, report=False)
    assert len(loader) == 20
    assert loader.batch_size is None
    samples = iter(loader)
    assert [next(samples) for _ in range(7)] == theirs[:7]
    other = DataLoader(range(20), batch_size=None, shuffle=True, report=False)
    other.load_state_dict(loader.state_dict())
    assert list(other) == theirs[7:]


def test_a_sampler_that_gives_lists_asks_the_dataset_for_each_in_one_call() -> None:
    numbers: Any = torch.arange(10)
    sampler = BatchSampler(SequentialSampler(numbers), 4, drop_last=False)
    theirs = list(torch.utils.data.DataLoader(numbers, batch_size=None, sampler=sampler))
    ours = list(DataLoader(numbers, batch_size=None, sampler=sampler, report=False))
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]


def test_samples_that_are_read_ahead_outlive_their_bytes(tmp_path: Path) -> None:
    files = FileViews(tmp_path / "files", 40)
    kept = list(DataLoader(files, batch_size=None, num_workers=2, report=False))
    assert [bytes(sample.numpy()) for sample in kept] == [files.content(index) for index in range(40)]


class FailingSingles(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index % 2:
            raise ValueError(f"no {index}")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails_is_left_out_if_that_is_asked_for(workers: int) -> None:
    loader = DataLoader(FailingSingles(), batch_size=None, num_workers=workers, on_error="skip", report=False)
    assert list(loader) == [0, 2, 4]
    assert loader.skipped == 3


def test_batches_and_single_samples_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="drop_last=True is about batches"):
        DataLoader(range(4), batch_size=None, drop_last=True)
    with pytest.raises(ValueError, match="batch_sampler= makes the batches"):
        DataLoader(range(4), batch_size=None, batch_sampler=BatchSampler(RandomSampler(range(4)), 2, False))
