"""Samples by their index, without a loader: the part of a map-style dataset that follows from `locate` and `decode`."""

import operator
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from forebay.loader._given import is_whole
from forebay.loader.dataset import Extent
from forebay.loader.source import read_sample

__all__ = ["IndexedSamples", "index_of", "part_of"]


class IndexedSamples:
    """A map-style dataset that follows from `locate` and `decode`: see `Located`."""

    draws = True
    """True if `decode` is given a generator; false if it is given None."""

    def __len__(self) -> int:
        raise NotImplementedError

    def locate(self, i: int, /) -> Extent:
        raise NotImplementedError

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401  (whatever a sample is)
        """Reads and decodes one sample; -1 is the last.

        Its generator is seeded by its index alone: it is the sample that a loader with `seed=0` gives in epoch 0.
        Within another loader's work (in a worker process of torch's, or where another dataset's `__getitem__` is called
        by Forebay's loader) its seed is drawn from torch's global generator, as any random number is there.

        Raises:
            IndexError: there is no such sample.
            TypeError: the index is a slice, or no whole number.
            OSError: its file can't be read.
            EOFError: its file was cut.
        """
        index = index_of(i, len(self), type(self).__name__.removeprefix("_Located"))
        return self._sample(index, _generator(index) if self.draws else None)

    def _sample(self, i: int, rng: Any) -> Any:  # noqa: ANN401  (the framework's; whatever a sample is)
        """Reads and decodes a sample, from 0 on. Its arrays may be written to, as those of any dataset of torch's."""
        return self.decode(memoryview(bytearray(read_sample(self.locate, i))), i, rng)


def part_of(ends: Sequence[int], i: int, kind: str = "sample") -> tuple[int, int]:
    """Returns the part of a dataset that a sample belongs to, and its number in the part; `ends` are the parts' ends.

    Raises `IndexError` if there is no such sample.
    """
    if not ends or not 0 <= i < ends[-1]:
        raise IndexError(f"{kind} {i}: there are {ends[-1] if ends else 0}")
    part = bisect_right(ends, i)
    return part, i - ends[part - 1] if part else i


def index_of(i: object, samples: int, kind: str) -> int:
    """Returns the index of a sample of a dataset of class `kind`, counted from 0; users count from the end by -1.

    Raises:
        IndexError: there is no such sample.
        TypeError: the index is a slice, or not a whole number.
    """
    if isinstance(i, slice) or not is_whole(i):
        raise TypeError(f"{kind}[{i!r}]: give the index of one sample; torch.utils.data.Subset(dataset, indices) has several")
    index = operator.index(i)
    if not -samples <= index < samples:
        raise IndexError(f"{kind}[{index}]: there are {samples} samples")
    return index + samples if index < 0 else index


def _generator(index: int) -> Any:  # noqa: ANN401  (torch's)
    """Returns the generator of a sample that is read without a loader; None without torch."""
    try:
        from forebay.torch._keyed import generator_of
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return generator_of(index)
