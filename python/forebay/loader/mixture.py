"""Several datasets in one, by weight."""

import hashlib
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from forebay import _core
from forebay.loader._given import check_map_style, check_whole, is_number, seed_of
from forebay.loader._samples import IndexedSamples, index_of, part_of
from forebay.loader.dataset import Extent, Located, is_located

__all__ = ["Mixture", "mixture"]


class Mixture:
    """Samples of several datasets, equally many of each in every epoch. Made by `mixture`.

    Each dataset is gone through in a random order of its own, and again in another one when it ends, without regard to
    where epochs end: no sample comes twice before all of its dataset have come once. Where that stands follows from the
    epoch's number alone, so it needs no state of its own.

    Attributes:
        counts: samples of each dataset in an epoch.
        identity: digest that differs between mixtures; a loader's state is good for this one only.
        keyed: whether all datasets are keyed: see `Located`.
    """

    def __init__(self, datasets: Sequence[Any], counts: Sequence[int], seed: int) -> None:
        self._datasets = list(datasets)
        self.counts = list(counts)
        self._ends = list(accumulate(counts))
        self._lengths = [len(dataset) for dataset in datasets]
        self._seed = seed % 2**64
        self._epoch = 0
        self.keyed = all(getattr(dataset, "keyed", True) for dataset in datasets)
        parts = [self._seed, self.counts, self._lengths, [getattr(dataset, "identity", None) for dataset in datasets]]
        self.identity = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return self._ends[-1]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose samples are read. A loader calls this in each process."""
        self._epoch = epoch

    def find(self, i: int) -> tuple[int, int]:
        """Returns the number of the dataset that a sample of this epoch comes from, and its index in the dataset."""
        which, number = part_of(self._ends, i)
        length = self._lengths[which]
        # In the dataset's own endless sequence of orders.
        cycle, at = divmod(self._epoch * self.counts[which] + number, length)
        return which, _core.counter_at(length, _core.sample_key(self._seed, cycle % 2**32, which), at)

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401  (whatever a sample is)
        which, index = self.find(index_of(i, len(self), "Mixture"))
        return self._datasets[which][index]


class _LocatedMixture(IndexedSamples, Mixture):
    """A mixture of datasets that all have `locate` and `decode`."""

    # Not the function of `IndexedSamples`.
    __len__ = Mixture.__len__

    _datasets: list[Located]

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        which, index = self.find(i)
        return self._datasets[which].locate(index)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        which, index = self.find(i)
        return self._datasets[which].decode(data, index, rng)

    def _sample(self, i: int, rng: Any) -> Any:  # noqa: ANN401  (see `IndexedSamples`)
        which, index = self.find(i)
        dataset = self._datasets[which]
        return dataset._sample(index, rng) if isinstance(dataset, IndexedSamples) else super()._sample(i, rng)


def mixture(datasets: Sequence[Any], weights: Sequence[float], samples: int | None = None, seed: int = 0) -> Mixture:
    """Returns a dataset that is made of others. It is read ahead if all of them are.

    Args:
        datasets: map-style; not empty.
        weights: shares of the samples, one for each dataset; they need not add up to 1.
        samples: samples of an epoch; None for as many as all datasets have together.
        seed: seed of the orders in which the datasets are gone through.

    Raises:
        ValueError: no list of datasets, weights, samples or a seed that can't be, or weights by which a dataset gets no
            sample.
        TypeError: one of them is not a map-style dataset.
    """
    if not isinstance(datasets, Sequence) or is_located(datasets):
        raise ValueError(f"datasets={datasets!r}: give a list of datasets")
    if not isinstance(weights, Collection) or not all(is_number(weight) for weight in weights):
        raise ValueError(f"weights={weights!r}: give a list with a number for each dataset")
    if not datasets or len(datasets) != len(weights):
        raise ValueError(f"{len(datasets)} datasets and {len(weights)} weights: give as many of each, and at least one")
    for dataset in datasets:
        check_map_style(dataset)
    if empty := [number for number, dataset in enumerate(datasets) if len(dataset) == 0]:
        raise ValueError(f"dataset {empty[0]} is empty")
    total = sum(weights)
    if not all(0 < weight < float("inf") for weight in weights):
        raise ValueError(f"weights={list(weights)}: each is a positive number")
    samples = sum(len(dataset) for dataset in datasets) if samples is None else check_whole("samples", samples, 1)
    # What is left over after rounding down goes to those that lost most by it.
    counts = [int(samples * weight / total) for weight in weights]
    by_loss = sorted(range(len(weights)), key=lambda which: counts[which] - samples * weights[which] / total)
    for which in by_loss[: max(0, samples - sum(counts))]:
        counts[which] += 1
    if without := [number for number, count in enumerate(counts) if count == 0]:
        raise ValueError(
            f"of {samples} samples none is left for dataset {without[0]}, by its weight: give it more weight, or the epoch more samples"
        )
    kind = _LocatedMixture if all(is_located(dataset) for dataset in datasets) else Mixture
    return kind(datasets, counts, seed_of(seed))
