"""A batch on its way: what it is to be made of, and what became of that."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from forebay import _core
from forebay.loader._failures import Failure, failure
from forebay.loader.dataset import Located
from forebay.loader.source import Request

__all__ = ["FAILED", "Batch", "Fetched", "Part", "decoded"]

LOOKED_AT = 32
"""Samples of which it is looked at once whether they are at hand: more may come while these are decoded."""

FAILED = object()
"""In the place of a sample that could not be had."""


@dataclass(frozen=True)
class Batch:
    """What is to be fetched.

    Attributes:
        iteration: of the epoch, from the place on where it began.
        samples: their indices.
        seed: of the samples' own chance.
        epoch: the same.
        is_one_call: the dataset is asked once, for the list of indices; its first index seeds the generators.
    """

    iteration: int
    samples: list[int]
    seed: int
    epoch: int
    is_one_call: bool = False

    def key(self, sample: int) -> int:
        """What that sample's generators are seeded with."""
        # A sampler of the user's own may count beyond what the key has room for, or from the end.
        return _core.sample_key(self.seed, self.epoch, sample % 2**32)

    def keys(self, places: range) -> list[int]:
        """The same of the samples at these places."""
        samples = self.samples[places.start : places.stop]
        try:
            return _core.sample_keys(self.seed, self.epoch, samples)
        except OverflowError:
            return [self.key(sample) for sample in samples]


@dataclass
class Fetched:
    """What became of a batch.

    Attributes:
        value: what is handed to training; None if the batch failed.
        failed: no batch could be made: some sample failed and that is an error, or none is left.
        failures: samples that failed.
        waited_s: time that threads or workers spent waiting for the source, in seconds, all of them together.
        decoded_s: the same for decoding and putting together.
        read_bytes: of the samples, where that is known.
    """

    value: Any = None
    failed: bool = False
    failures: list[Failure] = field(default_factory=list)
    waited_s: float = 0.0
    decoded_s: float = 0.0
    read_bytes: int = 0

    def add(self, part: "Fetched") -> None:
        """Counts in what became of a part of the batch."""
        self.failures += part.failures
        self.waited_s += part.waited_s
        self.decoded_s += part.decoded_s
        self.read_bytes += part.read_bytes

    def settle(self, samples: list[Any], *, skip: bool) -> None:
        """Says whether the batch failed.

        Args:
            samples: those that could be had.
            skip: whether it may do without the others, unless none is left.
        """
        self.failed = bool(self.failures) and not (skip and samples)


class Part:
    """Samples of a batch that are read and decoded one after another.

    Args:
        places: of the samples in the batch.

    Attributes:
        places: the same.
        samples: those that were gone through, `FAILED` where one could not be had. So the next one is what goes on now: who looks at it
            from another thread is told without a word for each sample.
        is_waiting: for the bytes of the next one.
        is_over: nobody wants any more of them.
    """

    __slots__ = ("is_over", "is_waiting", "places", "samples")

    def __init__(self, places: range) -> None:
        self.places = places
        self.samples: list[Any] = []
        self.is_waiting = True
        self.is_over = False


def decoded(
    dataset: Located,
    request: Request,
    batch: Batch,
    part: Part,
    rng: Callable[[int], Any],
    fetched: Fetched,
    *,
    are_bytes_kept: bool,
    skip: bool,
) -> None:
    """Reads and decodes a part of a batch.

    Args:
        dataset: decodes them.
        request: of the batch's samples.
        batch: the same.
        part: gets its samples; those after one that fails only if that may be skipped, and none once it is over.
        rng: gives a generator that is seeded with a key.
        fetched: counts time, bytes and failures.
        are_bytes_kept: bytes stay as long as anything refers to them, or what is made of the samples is no view of them. Else each sample
            gets a copy of its own.
        skip: whether to go on after a sample that fails.

    Raises:
        MemoryError: there is too little for a sample, which is no fault of the sample's.
    """
    samples, failures, decode = part.samples, fetched.failures, dataset.decode
    begun, waited_s, read_bytes = time.perf_counter(), 0.0, 0
    # Of small samples many millions go through here: what can be done once for several of them is.
    for nth, index, key, data in chain.from_iterable(_looked_at(request, batch, part)):
        if part.is_over or (failures and not skip):
            break
        try:
            if data is None:
                part.is_waiting = True
                asked = time.perf_counter()
                try:
                    data = request.read(nth)
                finally:
                    waited_s += time.perf_counter() - asked
                    part.is_waiting = False
            read_bytes += len(data)
            if not are_bytes_kept:
                # The batch may be made of views of them, and outlive their release. What is made of a copy may be written to.
                data = memoryview(bytearray(data))
            sample = decode(data, index, rng(key))
        except MemoryError:
            raise
        except Exception as error:
            failures.append(failure(dataset, index, error))
            sample = FAILED
        samples.append(sample)
    fetched.read_bytes += read_bytes
    fetched.waited_s += waited_s
    fetched.decoded_s += time.perf_counter() - begun - waited_s


def _looked_at(request: Request, batch: Batch, part: Part) -> Iterator[Iterable[tuple[int, int, int, memoryview | None]]]:
    """Place, index and key of samples, and what is at hand of each as it is come to, or a little before."""
    places = part.places
    for start in places[::LOOKED_AT]:
        look = range(start, min(start + LOOKED_AT, places.stop))
        part.is_waiting = True
        found = request.at_hand(look)
        part.is_waiting = False
        yield zip(look, batch.samples[look.start : look.stop], batch.keys(look), found, strict=True)
