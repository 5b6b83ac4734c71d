"""A batch on its way: its samples, their decoding, and the result."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from forebay import _core
from forebay.loader._failures import SampleFailure, failure
from forebay.loader.dataset import Located
from forebay.loader.source import Request

__all__ = ["FAILED", "BatchPart", "FetchedBatch", "SampleBatch", "decoded"]

LOOKED_AT = 32
"""Samples that are looked up in one call: more may come while these are decoded."""

FAILED = object()
"""Stands for a sample that could not be read or decoded."""


@dataclass(frozen=True)
class SampleBatch:
    """The samples of a batch.

    Attributes:
        iteration: number in the epoch, from the place on where the epoch began.
        samples: indices.
        seed: seed of the samples' random numbers.
        epoch: number of the epoch.
        is_one_call: whether the dataset is asked once, for the list of indices; its first index seeds the generators.
    """

    iteration: int
    samples: list[int]
    seed: int
    epoch: int
    is_one_call: bool = False

    def key(self, sample: int) -> int:
        """Returns the key that seeds a sample's generators."""
        # A sampler of the user's own may count beyond what the key has room for, or from the end.
        return _core.sample_key(self.seed, self.epoch, sample % 2**32)

    def keys(self, places: range) -> list[int]:
        """Returns the keys that seed the generators of the samples at these places."""
        samples = self.samples[places.start : places.stop]
        try:
            return _core.sample_keys(self.seed, self.epoch, samples)
        except OverflowError:
            return [self.key(sample) for sample in samples]


@dataclass
class FetchedBatch:
    """The result of a batch.

    Attributes:
        value: the batch that is handed to training; None if it failed.
        failed: whether no batch could be made: some sample failed and that is an error, or none is left.
        failures: samples that failed.
        waited_s: seconds that all threads or workers together waited for the source.
        decoded_s: seconds that all threads or workers together decoded and put together.
        read_bytes: bytes of the samples; 0 if that is unknown.
    """

    value: Any = None
    failed: bool = False
    failures: list[SampleFailure] = field(default_factory=list)
    waited_s: float = 0.0
    decoded_s: float = 0.0
    read_bytes: int = 0

    def add(self, part: "FetchedBatch") -> None:
        """Adds the result of a part of the batch."""
        self.failures += part.failures
        self.waited_s += part.waited_s
        self.decoded_s += part.decoded_s
        self.read_bytes += part.read_bytes

    def settle(self, samples: list[Any], *, skip: bool) -> None:
        """Sets whether the batch failed: with `skip` only if no sample is left."""
        self.failed = bool(self.failures) and not (skip and samples)


class BatchPart:
    """Samples of a batch that are read and decoded one after another.

    Attributes:
        places: places of the samples in the batch.
        samples: the decoded samples so far, `FAILED` for those that failed. Their number tells another thread which
            sample is at work now, without a note for each sample.
        is_waiting: whether the bytes of the next sample are waited for.
        is_over: whether the rest of the part is not needed any more.
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
    batch: SampleBatch,
    part: BatchPart,
    rng: Callable[[int], Any],
    fetched: FetchedBatch,
    *,
    are_bytes_kept: bool,
    skip: bool,
) -> None:
    """Reads and decodes a part of a batch.

    Args:
        dataset: decodes samples.
        request: the batch's request.
        batch: the batch.
        part: gets its samples, none once it is over.
        rng: returns a generator that is seeded with a key.
        fetched: counts time, bytes and failures.
        are_bytes_kept: whether samples may refer to the bytes that were read, instead of a copy.
        skip: whether to go on after a sample that fails.

    Raises:
        MemoryError: there is too little for a sample, which is not the sample's fault.
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
                # The batch may be made of views of them, and outlive their release. What is made of a copy may be
                # written to.
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


def _looked_at(request: Request, batch: SampleBatch, part: BatchPart) -> Iterator[Iterable[tuple[int, int, int, memoryview | None]]]:
    """Yields place, index and key of samples, and the bytes of those that have come."""
    places = part.places
    for start in places[::LOOKED_AT]:
        look = range(start, min(start + LOOKED_AT, places.stop))
        part.is_waiting = True
        found = request.at_hand(look)
        part.is_waiting = False
        yield zip(look, batch.samples[look.start : look.stop], batch.keys(look), found, strict=True)
