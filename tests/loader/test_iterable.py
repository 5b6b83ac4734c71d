"""An IterableDataset: torch's own loader with torch's semantics, by one changed import."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay.torch import DataLoader


class NumberStream(IterableDataset[int]):
    """Ten numbers, which worker processes share out among themselves."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from range(10 * self.epoch + first, 10 * self.epoch + 10, step)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class CountedStream(NumberStream):
    def __len__(self) -> int:
        return 10


def length(loader: Any) -> object:  # noqa: ANN401  (torch's or ours)
    try:
        return len(loader)
    except TypeError as error:
        return type(error)


@pytest.mark.parametrize("kind", [NumberStream, CountedStream])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 2, "num_workers": 2, "persistent_workers": True},
        {"batch_size": 4, "collate_fn": tuple},
    ],
)
def test_an_iterable_dataset_gives_what_torchs_loader_gives(kind: type[NumberStream], options: dict[str, Any]) -> None:
    theirs, ours = torch.utils.data.DataLoader(kind(), **options), DataLoader(kind(), **options)
    assert isinstance(ours, torch.utils.data.DataLoader)
    for _ in range(2):
        assert repr(list(ours)) == repr(list(theirs))
    assert length(ours) == length(theirs)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"num_workers": -1}])
def test_what_torch_refuses_of_an_iterable_dataset_is_refused_alike(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".") as theirs:
        torch.utils.data.DataLoader(NumberStream(), **options)
    with pytest.raises(ValueError, match=r".") as ours:
        DataLoader(NumberStream(), **options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"seed": 1}, "seed=1: an IterableDataset draws its order itself"),
        ({"rank": 0, "world_size": 2}, "rank=0: an IterableDataset splits itself between ranks"),
        ({"on_error": "skip"}, "which sample of an IterableDataset failed is not known"),
        ({"cache": "ram=1G"}, "cache='ram=1G': a cache needs to know which sample comes next"),
    ],
)
def test_options_that_need_a_known_order_are_refused_by_name(options: dict[str, Any], instead: str) -> None:
    with pytest.raises(ValueError, match=instead):
        DataLoader(NumberStream(), **options)


def test_the_epoch_is_told_to_a_dataset_that_wants_to_know() -> None:
    loader: Any = DataLoader(NumberStream(), batch_size=5)
    loader.set_epoch(2)
    assert [batch.tolist() for batch in loader] == [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]


def test_a_subclass_of_the_loader_says_that_it_takes_no_iterable_dataset() -> None:
    class Own(DataLoader[Any]):
        pass

    with pytest.raises(TypeError, match="Own takes no IterableDataset: make forebay"):
        Own(NumberStream())


def test_the_loader_takes_all_that_torchs_takes_in_its_order() -> None:
    theirs, ours = (inspect.signature(kind.__init__).parameters.values() for kind in (torch.utils.data.DataLoader, DataLoader))
    positional = [[one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD] for parameters in (theirs, ours)]
    assert positional[0] == positional[1]
    assert {one.name for one in theirs} <= {one.name for one in ours}
