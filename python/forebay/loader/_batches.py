"""A batch on its way: what it is to be made of, and what became of that."""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forebay import _core
from forebay.loader._errors import SampleError
from forebay.loader.dataset import Located, is_located
from forebay.loader.source import Request

__all__ = ["Batch", "Failure", "Fetched", "decoded", "failure", "sample_error"]

LOOKED_AT = 32
"""Samples of which it is looked at once whether they are at hand: more may come while these are decoded."""


@dataclass(frozen=True)
class Batch:
    """What is to be fetched.

    Attributes:
        iteration: of the epoch, from the place on where it began.
        samples: their indices.
        seed: of the samples' own chance.
        epoch: the same.
    """

    iteration: int
    samples: list[int]
    seed: int
    epoch: int

    def key(self, sample: int) -> int:
        """What that sample's generators are seeded with."""
        # A sampler of the user's own may count beyond what the key has room for, or from the end.
        return _core.sample_key(self.seed, self.epoch, sample % 2**32)


@dataclass(frozen=True)
class Failure:
    """A sample that could not be read or decoded.

    Attributes:
        index: of the sample.
        path: where it lies, if that is known.
        reason: in a line.
        traceback: of whoever tried.
    """

    index: int
    path: str | None
    reason: str
    traceback: str

    def __str__(self) -> str:
        return f"sample {self.index}{f' ({self.path})' if self.path else ''}: {self.reason}"


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


def decoded(
    dataset: Located,
    request: Request,
    batch: Batch,
    places: range,
    rng: Callable[[int], Any],
    fetched: Fetched,
    *,
    are_bytes_kept: bool,
    skip: bool,
    told: Callable[[int, bool], None] = lambda _index, _has_bytes: None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[int, Any]:
    """Samples of a batch, read and decoded one after another.

    Args:
        dataset: decodes them.
        request: of the batch's samples.
        batch: whose samples they are.
        places: in the batch, of the samples that are wanted.
        rng: gives a generator that is seeded with a key.
        fetched: counts time, bytes and failures.
        are_bytes_kept: bytes stay as long as anything refers to them, or what is made of the samples is no view of them. Else each sample
            gets a copy of its own.
        skip: whether to go on after a sample that fails.
        told: called with a sample's index and False before it is waited for, and with True once its bytes are there.
        is_over: says before each sample whether nobody wants it any more.

    Returns:
        Those that could be had, by their places, in the order of these.

    Raises:
        MemoryError: there is too little for a sample, which is no fault of the sample's.
    """
    samples: dict[int, Any] = {}
    begun, waited_s = time.perf_counter(), 0.0
    for nth, data in _looked_at(request, places):
        if is_over() or (fetched.failures and not skip):
            break
        index = batch.samples[nth]
        try:
            if data is None:
                told(index, False)
                asked = time.perf_counter()
                try:
                    data = request.read(nth)
                finally:
                    waited_s += time.perf_counter() - asked
            told(index, True)
            fetched.read_bytes += len(data)
            if not are_bytes_kept:
                # The batch may be made of views of them, and outlive their release.
                data = memoryview(bytes(data))
            samples[nth] = dataset.decode(data, index, rng(batch.key(index)))
        except MemoryError:
            raise
        except Exception as error:
            fetched.failures.append(failure(dataset, index, error))
    fetched.waited_s += waited_s
    fetched.decoded_s += time.perf_counter() - begun - waited_s
    return samples


def _looked_at(request: Request, places: range) -> Iterator[tuple[int, memoryview | None]]:
    """Places, and what is at hand of each as it is come to, or a little before."""
    for start in places[::LOOKED_AT]:
        part = range(start, min(start + LOOKED_AT, places.stop))
        yield from zip(part, request.at_hand(part), strict=True)


def failure(dataset: object, index: int, error: Exception) -> Failure:
    """How a sample failed."""
    path = getattr(error, "filename", None)
    if is_located(dataset):
        try:
            path = dataset.locate(index).path
        except Exception:
            # That may be what failed.
            path = None
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failure(index, None if path is None else str(path), reason, told)


class _Told(Exception):
    """Another thread's or process's exception, as its traceback: the exception itself may not be fit to be sent."""


def sample_error(fetched: Fetched, samples: int) -> SampleError:
    """The error that a batch failed with.

    Args:
        fetched: has failures.
        samples: of the batch.
    """
    first = fetched.failures[0]
    if samples > 1 and len(fetched.failures) == samples:
        error = SampleError(f"none of the batch's {samples} samples could be had; the first: {first}", None, first.path)
    else:
        error = SampleError(str(first), first.index, first.path)
    error.__cause__ = _Told(first.traceback)
    return error
