"""A batch on its way: what it is to be made of, and what became of that."""

import traceback
from dataclasses import dataclass, field
from typing import Any

from forebay import _core
from forebay.loader._errors import SampleError
from forebay.loader.dataset import is_located

__all__ = ["Batch", "Failure", "Fetched", "failure", "sample_error"]


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
