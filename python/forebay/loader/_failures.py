"""Samples that could not be read or decoded, and the exception that training gets for them."""

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from forebay.loader._errors import LoaderError, SampleError
from forebay.loader.dataset import is_located

__all__ = ["SampleFailure", "failure", "sample_error"]

ENDS_ITERATION = (StopIteration, StopAsyncIteration)
"""Exceptions that would end the loop around the loader as if the epoch were over."""


@dataclass(frozen=True)
class SampleFailure:
    """A sample that could not be read or decoded.

    Attributes:
        index: index of the sample.
        path: path of the sample's file, if that is known.
        reason: the exception's type and message, in a line.
        traceback: traceback of the exception, as text.
        kind: the exception's type; None where it can't cross from one process to another.
        errno: error number of an `OSError`.
        error: the exception itself; None once it crossed from another process.
    """

    index: int
    path: str | None
    reason: str
    traceback: str
    kind: type[Exception] | None = None
    errno: int | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"

    @property
    def where(self) -> str:
        """The sample's number, and its file if that is known."""
        return f"sample {self.index}{f' ({self.path})' if self.path else ''}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles all but the exception, which may not be fit to be sent to another process."""
        kind = self.kind if _is_sendable(self.kind) else None
        return SampleFailure, (self.index, self.path, self.reason, self.traceback, kind, self.errno)


class _Told(Exception):
    """Another thread's or process's exception, as its traceback: the exception itself may not be fit to be sent."""


def failure(dataset: object, index: int, error: Exception) -> SampleFailure:
    """Returns the description of a sample that failed."""
    path = getattr(error, "filename", None)
    if is_located(dataset):
        try:
            path = dataset.locate(index).path
        except Exception:
            # That may be what failed.
            path = None
    reason = " ".join(f"{type(error).__name__}: {_message(error)}".split())
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    errno = error.errno if isinstance(error, OSError) else None
    _drop_frames(error)
    return SampleFailure(index, None if path is None else _message(path), reason, told, type(error), errno, error)


def _drop_frames(error: BaseException | None) -> None:
    """Drops the frames that an exception, its cause and its context hold.

    A frame leads to those that called it, and so to what keeps this failure: the two would keep each other, the
    loader's source and its connections until the garbage collector comes by. The traceback is kept as text.
    """
    seen: set[int] = set()
    left = [error]
    while left:
        found = left.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            left += [found.__cause__, found.__context__]


def sample_error(failures: list[SampleFailure], samples: int, *, skip: bool) -> Exception:
    """Returns the exception that a batch failed with: of the type that the dataset raised, caused by a `SampleError`.

    The message names the sample and its file. One that was raised in another process has the traceback of that process
    in its message, as torch's loader has it. The `SampleError` itself is returned where no exception of the dataset's
    type can be: the type can't be made of a message alone or can't cross from the other process, the exception would
    end the loop around the loader, or it is one of Forebay's.

    Args:
        failures: failures of the batch, in order. The list is empty afterwards: it would keep the exception, whose
            traceback has the frame that keeps the list.
        samples: number of samples of the batch.
        skip: samples that fail are left out, and none was left.
    """
    first = failures[0]
    failures.clear()
    if skip and samples > 1:
        error = SampleError(f"none of the batch's {samples} samples could be had; the first: {first}", None, first.path)
        error.__cause__ = _Told(first.traceback)
        return error
    error = SampleError(str(first), first.index, first.path)
    error.__cause__ = _Told(first.traceback)
    own = first.error if first.error is not None else _made(first)
    if own is None or isinstance(own, (LoaderError, *ENDS_ITERATION)):
        return error
    if own is first.error:
        _name_sample(own, first)
        if own.__cause__ is not None:
            error.__cause__ = own.__cause__
    own.__cause__ = error
    return own


def _made(failed: SampleFailure) -> Exception | None:
    """Returns an exception of the type that another process raised, with that process's traceback in its message.

    None if there is none.
    """
    if failed.kind is None:
        return None
    message = f"{failed}\n\nThe traceback of the process that raised it:\n{failed.traceback}"
    try:
        error = failed.kind(_Lines(message) if issubclass(failed.kind, KeyError) else message)
        if failed.errno is not None and isinstance(error, OSError):
            error.errno = failed.errno
    except Exception:
        # Its constructor takes something else.
        return None
    return error if type(error) is failed.kind else None


class _Lines(str):
    """Text that is shown as it is: a `KeyError` shows the representation of what it is given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _name_sample(error: Exception, failed: SampleFailure) -> None:
    """Puts the sample into the message of an exception, where that is plain text; else adds a note."""
    where = failed.where
    if isinstance(error, OSError) and error.strerror is not None:
        if error.filename is not None and _message(error.filename) == failed.path:
            # Its message ends with the file's name.
            where = f"sample {failed.index}"
        if not str(error.strerror).startswith(where):
            error.strerror = f"{where}: {error.strerror}"
    elif len(error.args) == 1 and type(error.args[0]) is str and type(error).__str__ in (Exception.__str__, OSError.__str__):
        if not error.args[0].startswith(where):
            error.args = (f"{where}: {error.args[0]}",)
    elif hasattr(error, "add_note") and where not in getattr(error, "__notes__", ()):
        error.add_note(where)


def _is_sendable(kind: type[Exception] | None) -> bool:
    try:
        return kind is None or pickle.loads(pickle.dumps(kind)) is kind  # noqa: S301  (made here)
    except Exception:
        return False


def _message(value: object) -> str:
    """Returns `str(value)`, or says that it can't be had."""
    try:
        return str(value)
    except Exception as error:
        return f"(its message can't be shown: {type(error).__name__})"
