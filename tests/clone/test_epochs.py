"""Loaders that keep state from one epoch to the next: a clone goes on as its parent does, or is refused by name."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import forebay.clone as clone
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened
from tests.clone.loading import BATCHES, Loading, Noisy


class CountingSampler(Sampler[int]):
    """Counts its epochs by itself."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.epoch = seed, 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(torch.randperm(12, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist())


class Shuffling(CountingSampler):
    """Shuffles what the last epoch left, in place."""

    def __init__(self, order: Any) -> None:  # noqa: ANN401  (a list, an array or a tensor)
        super().__init__()
        self.order = order

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.order, torch.Tensor):
            self.order = self.order[torch.randperm(12)]
        else:
            (random if isinstance(self.order, list) else np.random).shuffle(self.order)
        return iter([int(index) for index in self.order])


class DrawingIterator(CountingSampler):
    """Draws from a generator of its own."""

    def __init__(self, generator: Any) -> None:  # noqa: ANN401  (of NumPy or Python)
        super().__init__()
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        first = int(self.generator.random() * 12)
        return iter([(first + number) % 12 for number in range(12)])


class OfItself(Noisy):
    """A dataset that draws from a generator of its own, in the process that trains."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index + self.rng.random()])


class EndlessIterator:
    """Its own iterator, which goes on where the last epoch ended."""

    def __init__(self) -> None:
        self.number = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> "EndlessIterator":
        return self

    def __next__(self) -> torch.Tensor:
        if (self.number + 1) % (BATCHES + 1) == 0:
            self.number += 1
            raise StopIteration
        self.number += 1
        return torch.tensor([float(self.number)])


class KeptIterator(CountingSampler):
    """An iterator that nobody can read goes on over epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.cycle(range(5))

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self.numbers, 12)


def over(sampler: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: DataLoader(Noisy(), batch_size=3, sampler=sampler())


CARRIED: dict[str, Callable[[], Any]] = {
    "drawn": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "drawn-by-workers": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=1),
    "generator": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "sampler-numpy": over(lambda: DrawingIterator(np.random.default_rng(3))),
    "sampler-python": over(lambda: DrawingIterator(random.Random(3))),  # noqa: S311
    "counting": over(CountingSampler),
    "shuffled-list": over(lambda: Shuffling(list(range(12)))),
    "shuffled-array": over(lambda: Shuffling(np.arange(12))),
    "shuffled-tensor": over(lambda: Shuffling(torch.arange(12))),
    "dataset": lambda: DataLoader(OfItself(), batch_size=3, shuffle=True),
    "own-iterator": EndlessIterator,
}


def plain(loader: Callable[[], Any]) -> list[list[float]]:
    alone = Loading(loader)
    jobs.seed(1)
    alone.run(None, 4)
    alone.close()
    return alone.had


@pytest.mark.parametrize("loader", CARRIED.values(), ids=CARRIED.keys())
def test_p14b_what_a_loader_keeps_over_epochs_is_carried(here: CloneNode, opened: Opened, loader: Callable[[], Any]) -> None:
    """Forks within the first epoch, at an epoch's end, and within a later one; and a clone of a clone."""
    whole = plain(loader)
    for at in (2, 2 * BATCHES, 2 * BATCHES + 2):
        parent, other, third = (Loading(loader) for _ in range(3))
        jobs.seed(1)
        session = opened(parent.job)
        with here.cloning("trunk", "--at", str(at)) as asked:
            parent.run(session, 4)
            assert parent.had == whole, "as though nobody had asked"
            jobs.seed(9)
            resumed = opened(other.job, asked=asked)
            with here.cloning("trunk.1", "--at", str(at + BATCHES)) as again:
                other.run(resumed, 4)
                assert other.had == whole[at:]
                jobs.seed(8)
                third.run(opened(third.job, asked=again), 4)
                assert third.had == whole[at + BATCHES :]
        for one in (session, resumed):
            one.close()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "persistent-workers": (
        lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=1, persistent_workers=True),
        r"loader\._iterator, a torch\.utils\.data\.dataloader\._MultiProcessingDataLoaderIter",
    ),
    "iterator": (over(KeptIterator), r"loader\.sampler\.numbers, a itertools\.cycle"),
}


@pytest.mark.parametrize(("loader", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_p14b_iterators_that_go_on_over_epochs_are_refused_by_name(
    here: CloneNode, opened: Opened, loader: Callable[[], Any], named: str
) -> None:
    """A clone of the first epoch goes on as its parent does; a later one does not exist, and the parent trains on."""
    whole = plain(loader)
    for at, is_refused in ((2, False), (BATCHES, True), (BATCHES + 2, True)):
        parent, other = Loading(loader), Loading(loader)
        jobs.seed(1)
        session = opened(parent.job)
        with here.cloning("trunk", "--at", str(at)) as asked:
            parent.run(session, 4)
            assert parent.had == whole
            jobs.seed(9)
            if is_refused:
                with pytest.raises(clone.CloneError, match=f"goes on from its last epoch, with {named}: .*persistent_workers=False"):
                    opened(other.job, asked=asked)
            else:
                other.run(opened(other.job, asked=asked), 4)
                assert other.had == whole[at:]
            for one in (parent, other):
                one.close()
        session.close()
