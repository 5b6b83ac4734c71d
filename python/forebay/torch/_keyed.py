"""Per-sample random generators, seeded by (seed, epoch, index) only."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, get_worker_info

from forebay import _core
from forebay.loader._given import check_epoch, check_map_style, seed_of
from forebay.loader._samples import part_of
from forebay.loader.dataset import Extent, Located, is_located
from forebay.loader.source import read_sample

try:
    # Once, here: were it first imported by a sample's transform, its global generator would have a seed of its own.
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

__all__ = [
    "Keyed",
    "check_dataset",
    "datasets_of",
    "generator_of",
    "generators",
    "globals_kept",
    "is_training",
    "located",
    "on_one_thread",
    "reseed",
    "stay_on_one_thread",
    "tell_epoch",
]

_staying = threading.Lock()


class _KeyedThread(threading.local):
    """A thread's flag: a sample's or a batch's key has seeded the global generators, which will be set back."""

    is_keyed = False


_seeded = _KeyedThread()


def reseed(key: int) -> None:
    """Seeds the global generators of Python, NumPy and torch (its processor's)."""
    random.seed(key)
    if numpy is not None:
        # Takes 32 bits; torch's generator uses the lower ones.
        numpy.random.seed(key >> 32)
    torch.default_generator.manual_seed(key)
    _seeded.is_keyed = True


def is_training() -> bool:
    """Returns True in the main thread, and in torch's worker processes: there the global generators may be borrowed.

    In another thread they may not: the main thread would draw other numbers meanwhile.
    """
    return threading.current_thread() is threading.main_thread() or get_worker_info() is not None


@contextlib.contextmanager
def globals_kept(other: torch.Generator | None = None) -> Iterator[None]:
    """Sets the global generators, and another one, back at the end of the block, as if it had drawn nothing."""
    python, processor = random.getstate(), torch.default_generator.get_state()
    others = other.get_state() if other is not None else None
    legacy = numpy.random.get_state() if numpy is not None else None
    was_keyed = _seeded.is_keyed
    try:
        yield
    finally:
        _seeded.is_keyed = was_keyed
        random.setstate(python)
        torch.default_generator.set_state(processor)
        if other is not None and others is not None:
            other.set_state(others)
        if legacy is not None:
            numpy.random.set_state(legacy)


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """Keeps torch from dividing this thread's work: the division of a sum shows in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def stay_on_one_thread() -> None:
    """Keeps torch from dividing the work of this thread, one of our own, for good."""
    with _staying:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Threads that begin later would inherit that: another thread, for which it has no meaning, sets it back.
        other = threading.Thread(target=torch.set_num_threads, args=(threads,), name="forebay-restore", daemon=True)
        other.start()
        other.join()


def generators() -> Callable[[int], torch.Generator]:
    """Returns a function from a key to a generator seeded with it. It reuses one generator: making one is slow."""
    return torch.Generator().manual_seed


def generator_of(index: int) -> torch.Generator:
    """Returns the generator of a sample that is asked for by its index: see `Samples.__getitem__`."""
    if _seeded.is_keyed or get_worker_info() is not None:
        key = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    else:
        key = _core.sample_key(0, 0, index % 2**32)
    return torch.Generator().manual_seed(key)


class _LocatedSubset:
    """A part of a located dataset."""

    def __init__(self, subset: "Subset[Any]", whole: Located) -> None:
        self._whole = whole
        # Asked for its indices each time: torch's `Subset` goes by those that it has then.
        self._subset = subset
        self.keyed = getattr(whole, "keyed", True)

    def __len__(self) -> int:
        return len(self._subset.indices)

    def locate(self, i: int, /) -> Extent:
        return self._whole.locate(self._subset.indices[i])

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> Any:  # noqa: ANN401  (whatever a sample is)
        return self._whole.decode(data, self._subset.indices[i], rng)


class _LocatedConcat:
    """Located datasets one after the other. It has `blocks` and `extents` if all of them have."""

    def __init__(self, concat: "ConcatDataset[Any]", parts: list[Located]) -> None:
        self._parts = parts
        self._ends = concat.cumulative_sizes
        self.keyed = all(getattr(part, "keyed", True) for part in parts)
        if all(callable(getattr(part, "blocks", None)) for part in parts):
            self.blocks = self._blocks
        if all(hasattr(part, "extents") for part in parts):
            self.extents = sum(part.extents for part in parts)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return self._ends[-1]

    def _blocks(self) -> list[int]:
        starts = [0, *self._ends]
        return [start + end for start, part in zip(starts, self._parts, strict=False) for end in part.blocks()]  # type: ignore[attr-defined]

    def _find(self, i: int) -> tuple[Located, int]:
        which, number = part_of(self._ends, i)
        return self._parts[which], number

    def locate(self, i: int, /) -> Extent:
        part, number = self._find(i)
        return part.locate(number)

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> Any:  # noqa: ANN401  (whatever a sample is)
        part, number = self._find(i)
        return part.decode(data, number, rng)


def located(dataset: object) -> Located | None:
    """Returns a dataset that has `locate` and `decode`; None if it has not.

    Torch's `Subset` (`random_split`) has them if its dataset has, and `ConcatDataset` if all of its datasets have.
    """
    if type(dataset) is Subset:
        whole = located(dataset.dataset)
        return _LocatedSubset(dataset, whole) if whole is not None else None
    if type(dataset) is ConcatDataset:
        parts = [part for one in dataset.datasets if (part := located(one)) is not None]
        return _LocatedConcat(dataset, parts) if len(parts) == len(dataset.datasets) else None
    return dataset if is_located(dataset) else None


def check_dataset(dataset: object) -> None:
    """Refuses datasets whose order can't be known (`TypeError`)."""
    if isinstance(dataset, IterableDataset):
        kind = type(dataset).__name__
        raise TypeError(
            f"{kind} is an IterableDataset, whose order is not known beforehand: give a map-style dataset (__len__ and __getitem__), or "
            "use forebay.torch.DataLoader itself, which returns torch's own loader for it"
        )
    check_map_style(dataset)


def tell_epoch(dataset: object, epoch: int) -> None:
    """Calls `set_epoch` of each dataset that has it, also through torch's wrappers."""
    for one in datasets_of(dataset):
        if callable(set_epoch := getattr(one, "set_epoch", None)):
            set_epoch(epoch)


def datasets_of(dataset: object) -> Iterator[object]:
    """Yields the datasets that torch's `Subset` and `ConcatDataset` are made of; any other dataset itself."""
    if type(dataset) is Subset:
        yield from datasets_of(dataset.dataset)
    elif type(dataset) is ConcatDataset:
        for one in dataset.datasets:
            yield from datasets_of(one)
    else:
        yield dataset


class Keyed(Dataset[Any]):
    """A map-style dataset whose samples draw their random numbers as they do in `forebay.torch.DataLoader`.

    The global generators are seeded with (seed, epoch, index) before each sample: torch's own loader then gives the
    very batches of ours.

    Args:
        dataset: a dataset with `__getitem__`, or with `locate` and `decode`.
        seed: the loader's seed.

    Attributes:
        dataset: the dataset as given.

    Raises:
        ValueError: the seed is invalid.
        TypeError: the dataset's order can't be known.
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
        """Sets the epoch of the samples, before the epoch begins.

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
        is_borrowing = is_training()
        with globals_kept() if is_borrowing and get_worker_info() is None else contextlib.nullcontext(), on_one_thread():
            if is_borrowing:
                reseed(key)
            if self._located is None:
                return self.dataset[index]
            # What is made of a copy may be written to, as of any dataset of torch's.
            data = memoryview(bytearray(read_sample(self._located.locate, index)))
            return self._located.decode(data, index, generators()(key))
