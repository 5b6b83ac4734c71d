"""A batch on its way: what it is to be made of, and what became of that."""

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from forebay import _core
from forebay.loader._errors import SampleError
from forebay.loader.dataset import Located, is_located
from forebay.loader.source import Source

__all__ = ["Batch", "Failure", "Fetched", "decoded", "failure", "sample_error"]


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
    source: Source,
    batch: Batch,
    places: Iterable[int],
    rng: Callable[[int], Any],
    fetched: Fetched,
    *,
    is_copying: bool,
    skip: bool,
    told: Callable[[int, bool], None] | None = None,
) -> dict[int, Any]:
    """Samples of a batch, read and decoded one after another.

    Args:
        dataset: decodes them.
        source: of their bytes.
        batch: whose samples they are.
        places: in the batch, of the samples that are wanted.
        rng: gives a generator that is seeded with a key.
        fetched: counts time, bytes and failures.
        is_copying: what is made of the samples is no view of their bytes. Else each gets a copy of its bytes where the source's don't last.
        skip: whether to go on after a sample that fails.
        told: called with a sample's index and False before it is read, and with True once its bytes are there.

    Returns:
        Those that could be had, by their places, in the order of these.

    Raises:
        MemoryError: there is too little for a sample, which is no fault of the sample's.
    """
    are_bytes_kept = is_copying or source.is_lasting
    samples: dict[int, Any] = {}
    for nth in places:
        index = batch.samples[nth]
        if told is not None:
            told(index, False)
        begun = time.perf_counter()
        between = None
        try:
            data = source.read(index)
            between = time.perf_counter()
            if told is not None:
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
        ended = time.perf_counter()
        fetched.waited_s += (between or ended) - begun
        fetched.decoded_s += ended - (between or ended)
        if fetched.failures and not skip:
            break
    return samples


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
