"""A capture: the bytes of a state at one moment, in sealed memory that another process can be given."""

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from forebay import _core
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._manifest import Manifest

__all__ = ["Capture", "reserve", "take"]

T = TypeVar("T")

MEMORY_ASKED_FROM_BYTES = 1 << 20
MEMORY_SPARE = 1.05
"""Free memory that a copy needs, as a multiple of its bytes: the kernel may kill a process that takes the last ones."""

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Capture:
    """A manifest, and the bytes of its entries behind a descriptor, at `Manifest.offsets`.

    The memory is sealed: nobody can write to it any more, make it shorter, or take the seals away; so what has been
    checked stays so while it is read. The kernel frees it when the last process has closed its descriptor. It has no
    bytes of entries that have a place.

    Attributes:
        manifest: what there is.
        descriptor: of the memory, for reading; pass it on as any other.
        in_place: where it was made, the tensors that were not copied, in the order of their entries.
    """

    def __init__(self, manifest: Manifest, descriptor: int, in_place: tuple[object, ...] = ()) -> None:
        """Takes over a descriptor that may come from another process; one that is refused stays the caller's.

        Raises:
            DamagedError: the memory is not sealed, or not as long as the manifest says.
        """
        try:
            seals, length = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
        except OSError as error:
            raise DamagedError(f"the descriptor of a state is not of sealed memory: {error}") from error
        if seals & SEALS != SEALS:
            raise DamagedError("the memory of a state is not sealed, so it could change while it is read")
        if length != manifest.length:
            raise DamagedError(f"the memory of a state has {length:,} bytes; its manifest says {manifest.length:,}")
        self.manifest = manifest
        self.descriptor = descriptor
        self.in_place = in_place

    def close(self) -> None:
        """Closes the descriptor; without effect the second time."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_living: "weakref.WeakSet[_core.Reserved]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Closes the copies in a forked process, such as a loader's worker, which would keep the memory in use."""
    for reserved in list(_living):
        reserved.close()


# A process is not forked while memory is being made, in whatever thread, for it would hold what nobody knows of yet.
# What interrupts the thread that makes it may fork.
_making = threading.RLock()
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
os.register_at_fork(after_in_child=_close_in_child)


def reserve(length: int, ranks: int = 1, left_before: int = 0) -> _core.Reserved:
    """Allocates memory for a copy of a state.

    Args:
        length: see `take`.
        ranks: see `take`.
        left_before: see `take`.

    Raises:
        CloneError: there is not as much memory.
    """
    return take(_core.Reserved, "a copy", length, ranks, left_before, _living)


def take(kind: Callable[[int], T], what: str, length: int, ranks: int, left_before: int, living: "weakref.WeakSet[T]") -> T:
    """Allocates shared memory, and touches all of it.

    Args:
        kind: constructor of the memory.
        what: the purpose, in words.
        length: bytes.
        ranks: number of processes of this host that take as much at the same moment.
        left_before: what was left a little earlier, when none of them had taken its share yet; some may have by now.
        living: the objects of that kind, which a forked process has to close.

    Raises:
        CloneError: there is not as much memory.
    """
    _check_room(what, length, ranks, left_before)
    try:
        with _making:
            made = kind(length)
            living.add(made)
            return made
    except OSError as error:
        raise CloneError(f"no memory for {what} of {length:,} bytes of state: {os.strerror(error.errno or 0)}") from error


def _check_room(what: str, length: int, ranks: int, left_before: int) -> None:
    together = length * ranks
    if together <= MEMORY_ASKED_FROM_BYTES:
        return
    left = _core.memory_left()
    if length * MEMORY_SPARE > left or together * MEMORY_SPARE > max(left, left_before):
        sum_of = f", {together:,} in the {ranks} ranks of this host" if ranks > 1 else ""
        raise CloneError(f"no memory for {what} of {length:,} bytes of state{sum_of}: {left:,} are left to this process")
