"""Samples whose chance hangs on (seed, epoch, index) alone."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from forebay import _core
from forebay.loader._given import check_epoch, check_map_style, seed_of
from forebay.loader.dataset import Extent, Located, is_located
from forebay.loader.source import read_sample

try:
    # Once, here: were it first imported by a sample's transform, its global generator would have a seed of its own.
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

__all__ = ["Keyed", "check_dataset", "generators", "globals_kept", "located", "on_one_thread", "reseed", "stay_on_one_thread", "tell_epoch"]

_staying = threading.Lock()


def reseed(key: int) -> None:
    """Seeds the global generators of Python, NumPy and torch (its processor's)."""
    random.seed(key)
    if numpy is not None:
        # Takes 32 bits; torch's generator uses the lower ones.
        numpy.random.seed(key >> 32)
    torch.default_generator.manual_seed(key)


@contextlib.contextmanager
def globals_kept(other: torch.Generator | None = None) -> Iterator[None]:
    """What the global generators, and another one, give afterwards is what they would have given without the block."""
    python, processor = random.getstate(), torch.default_generator.get_state()
    others = other.get_state() if other is not None else None
    legacy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(processor)
        if other is not None and others is not None:
            other.set_state(others)
        if legacy is not None:
            numpy.random.set_state(legacy)


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """Torch divides none of this thread's work meanwhile, as in its worker processes: how a sum is divided shows in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def stay_on_one_thread() -> None:
    """The same for good, for a thread of our own."""
    with _staying:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Threads that begin later would take that over: another one sets it back, which for itself has no meaning.
        other = threading.Thread(target=torch.set_num_threads, args=(threads,), name="forebay-restore", daemon=True)
        other.start()
        other.join()


def generators() -> Callable[[int], torch.Generator]:
    """From a key to a generator that is seeded with it: always the same one, for to make one takes longer than many a sample does."""
    return torch.Generator().manual_seed


class _LocatedSubset:
    """A part of a located dataset."""

    def __init__(self, subset: "Subset[Any]", whole: Located) -> None:
        self._whole = whole
        self._indices = subset.indices
        self.keyed = getattr(whole, "keyed", True)

    def __len__(self) -> int:
        return len(self._indices)

    def locate(self, i: int, /) -> Extent:
        return self._whole.locate(self._indices[i])

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> Any:  # noqa: ANN401  (whatever a sample is)
        return self._whole.decode(data, self._indices[i], rng)


def located(dataset: object) -> Located | None:
    """A dataset by what it says of where its samples lie, also through torch's `Subset` (`random_split`); None if it says nothing."""
    if type(dataset) is Subset:
        whole = located(dataset.dataset)
        return _LocatedSubset(dataset, whole) if whole is not None else None
    return dataset if is_located(dataset) else None


def check_dataset(dataset: object) -> None:
    """Refuses what has no order that could be known (`TypeError`)."""
    if isinstance(dataset, IterableDataset):
        kind = type(dataset).__name__
        raise TypeError(
            f"{kind} is an IterableDataset: what comes next is not known, so nothing can be fetched ahead or resumed; give a map-style "
            "dataset (__len__ and __getitem__), or keep torch's own loader for it"
        )
    check_map_style(dataset)


def tell_epoch(dataset: object, epoch: int) -> None:
    """Has a dataset that wants to know (`set_epoch`) know which epoch's samples are asked for; also through torch's `Subset`."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if callable(set_epoch := getattr(dataset, "set_epoch", None)):
        set_epoch(epoch)


class Keyed(Dataset[Any]):
    """A map-style dataset whose samples draw their random numbers as they do in `forebay.torch.DataLoader`.

    The global generators are seeded with (seed, epoch, index) before each sample: torch's own loader then gives the very batches of ours.

    Args:
        dataset: with `__getitem__`, or with `locate` and `decode`.
        seed: as the loader's.

    Attributes:
        dataset: the same.

    Raises:
        ValueError: a seed that can't be.
        TypeError: a dataset whose order can't be known.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:  # noqa: ANN401  (by what it has)
        check_dataset(dataset)
        self.dataset = dataset
        self._located = located(dataset)
        self._seed = seed_of(seed) % 2**64
        # In shared memory: workers that stay from one epoch to the next see it change.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
        self._told = -1

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the samples are to be of, before it begins.

        Raises:
            ValueError: no epoch has that number.
        """
        self._epoch.fill_(check_epoch(epoch))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  (whatever a sample is)
        epoch = int(self._epoch)
        if epoch != self._told:
            tell_epoch(self.dataset, epoch)
            self._told = epoch
        key = _core.sample_key(self._seed, epoch, index % 2**32)
        with globals_kept() if get_worker_info() is None else contextlib.nullcontext(), on_one_thread():
            reseed(key)
            if self._located is None:
                return self.dataset[index]
            # What is made of a copy may be written to, as of any dataset of torch's.
            data = memoryview(bytearray(read_sample(self._located.locate, index)))
            return self._located.decode(data, index, generators()(key))
