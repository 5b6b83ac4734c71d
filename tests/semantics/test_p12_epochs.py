"""P12: what an epoch looks at when it begins, and states that are taken before its first batch."""

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, SequentialSampler, Subset

from forebay.loader import LoaderError, StateError
from forebay.torch import DataLoader
from tests.loader.data import KeyedFiles


class Growing(Dataset[int]):
    """Has as many samples as one says."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index >= self.length:
            raise IndexError(index)
        return index


LENGTHS = (10, 16, 7, 1, 0, 9)


def lengths(kind: Any, options: dict[str, Any]) -> list[tuple[int, int, int]]:  # noqa: ANN401  (torch's or ours)
    """Samples, batches and `len()` of epochs over a dataset that has another length in each."""
    dataset = Growing(10)
    loader, had = kind(dataset, batch_size=4, **options), []
    for dataset.length in LENGTHS:
        batches = [len(batch) for batch in loader]
        had.append((sum(batches), len(batches), len(loader)))
    return had


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"num_workers": 1}])
def test_p12_each_epoch_has_the_samples_that_the_dataset_has_then(options: dict[str, Any]) -> None:
    theirs = lengths(torch.utils.data.DataLoader, options)
    assert theirs[0][0] == (8 if options.get("drop_last") else 10)
    assert lengths(DataLoader, options | {"report": False}) == theirs


def test_p12_shuffled_epochs_and_samplers_follow_the_dataset_as_torchs_do() -> None:
    for kind in (torch.utils.data.DataLoader, DataLoader):
        dataset = Growing(10)
        shuffled, sampled = kind(dataset, 4, shuffle=True), kind(dataset, 4, sampler=SequentialSampler(dataset))
        for dataset.length in (10, 16, 7):
            assert sorted(index for batch in shuffled for index in batch.tolist()) == list(range(dataset.length))
            assert [index for batch in sampled for index in batch.tolist()] == list(range(dataset.length))


def test_p12_a_subset_that_is_given_other_indices_is_read_by_them(tmp_path: Any) -> None:  # noqa: ANN401  (a path)
    whole: Any = KeyedFiles(tmp_path, 12)
    subset: Subset[Any] = Subset(whole, [0, 1, 2, 3])
    loader = DataLoader(subset, 2, num_workers=1, report=False)
    for indices in ([0, 1, 2, 3], [5, 7, 9, 11, 4], [8]):
        subset.indices = indices
        assert [index for batch in loader for index in batch[0].tolist()] == indices


def test_p12_a_state_says_which_length_it_means() -> None:
    dataset = Growing(10)
    loader = DataLoader(dataset, 4, shuffle=True, seed=1, report=False)
    batches = iter(loader)
    next(batches)
    dataset.length = 16
    assert loader.state_dict()["length"] == 10, "of the epoch that is gone through"
    other = DataLoader(dataset, 4, shuffle=True, seed=1, report=False)
    with pytest.raises(StateError, match="length=10, and this loader 16"):
        other.load_state_dict(loader.state_dict())
    assert len(list(batches)) == 2
    assert loader.state_dict()["length"] == 16, "of the next one"
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 4


def test_p12_settings_that_torch_reads_in_each_epoch_are_read_in_each() -> None:
    kinds: list[Any] = [torch.utils.data.DataLoader, DataLoader]
    for kind in kinds:
        loader = kind(list(range(6)), batch_size=3, num_workers=1)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
        loader.collate_fn = sum
        assert list(loader) == [3, 12]
        loader.num_workers = 0
        assert list(loader) == [3, 12]


def test_p12_a_cache_needs_a_length_that_stays(tmp_path: Any) -> None:  # noqa: ANN401  (a path)
    files = KeyedFiles(tmp_path / "files", 8)
    loader = DataLoader(files, 2, num_workers=1, cache="ram=64M", seed=0, report=False)
    del files.paths[4:]
    with pytest.raises(LoaderError, match="the dataset has 4 samples, and had 8 when the loader was made"):
        iter(loader)


def made(options: dict[str, Any]) -> "DataLoader[Any]":
    given = dict(options)
    if "generator" in given:
        given["generator"] = torch.Generator().manual_seed(given["generator"])
    return DataLoader(list(range(20)), batch_size=3, report=False, **given)


ORDERS = [{}, {"shuffle": True}, {"shuffle": True, "seed": 5}, {"shuffle": True, "generator": 3}, {"shuffle": True, "num_workers": 1}]


@pytest.mark.parametrize("options", ORDERS)
@pytest.mark.parametrize("batches", [0, 1, 3])
@pytest.mark.parametrize("epochs", [0, 1])
def test_p12_a_state_of_an_epoch_that_was_begun_has_its_order(options: dict[str, Any], batches: int, epochs: int) -> None:
    loader = made(options)
    for _ in range(epochs):
        list(loader)
    epoch = iter(loader)
    for _ in range(batches):
        next(epoch)
    states = [loader.state_dict(), loader.state_dict()]
    assert states[0] == states[1]
    left = [batch.tolist() for batch in epoch]
    following = [batch.tolist() for batch in loader]
    torch.manual_seed(99)
    other = made(options)
    other.load_state_dict(states[0])
    assert other.state_dict() == states[0]
    assert [batch.tolist() for batch in other] == left
    if "seed" in options or "generator" in options:
        assert [batch.tolist() for batch in other] == following, "and the epoch after it"


@pytest.mark.parametrize("options", ORDERS)
def test_p12_taking_a_state_draws_nothing(options: dict[str, Any]) -> None:
    orders = []
    for is_asked in (False, True):
        torch.manual_seed(4)
        loader = made(options)
        if is_asked:
            loader.state_dict()
        epoch = iter(loader)
        if is_asked:
            loader.state_dict()
        orders.append(([batch.tolist() for batch in epoch], torch.rand(1).item()))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("options", ORDERS)
def test_p12_a_state_of_an_epoch_that_has_not_begun_begins_as_any(options: dict[str, Any]) -> None:
    torch.manual_seed(4)
    loader = made(options)
    state = loader.state_dict()
    order = [batch.tolist() for batch in loader]
    torch.manual_seed(4)
    other = made(options)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == order


class Seeds(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


@pytest.mark.parametrize("workers", [0, 1])
def test_p12_a_samples_seed_can_be_put_into_a_tensor(workers: int) -> None:
    seeds = [int(seed) for batch in DataLoader(Seeds(), 4, num_workers=workers, seed=1, report=False) for seed in batch]
    assert len(set(seeds)) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) >= 2**62, "63 bits are used"


class Slow(Dataset[int]):
    """Takes long enough for another thread to draw meanwhile."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


def slowly(samples: list[int]) -> torch.Tensor:
    time.sleep(0.002)
    return torch.tensor(samples)


def drawn_beside(kind: Any, options: dict[str, Any]) -> list[tuple[float, float, float]]:  # noqa: ANN401  (torch's or ours)
    """Returns the main thread's random numbers, while another thread goes through a loader."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    loader, has_begun = kind(Slow(), batch_size=2, collate_fn=slowly, **options), threading.Event()

    def go_through() -> None:
        for _ in loader:
            has_begun.set()

    thread = threading.Thread(target=go_through)
    thread.start()
    assert has_begun.wait(120)
    drawn: list[tuple[float, float, float]] = []
    while thread.is_alive() or len(drawn) < 50:
        drawn.append((torch.rand(1).item(), float(np.random.rand()), random.random()))  # noqa: S311
        time.sleep(0.001)
    thread.join()
    return drawn[:50]


@pytest.mark.parametrize("workers", [0, 1])
def test_p12_a_loader_in_another_thread_leaves_the_main_threads_generators_alone(workers: int) -> None:
    theirs = drawn_beside(torch.utils.data.DataLoader, {"num_workers": workers})
    assert drawn_beside(DataLoader, {"num_workers": workers, "report": False}) == theirs
