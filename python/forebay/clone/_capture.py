"""A capture: the bytes of a state at one moment, in sealed memory that another process can be given."""

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from types import TracebackType

from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._manifest import Manifest

__all__ = ["Capture", "reserved"]

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Capture:
    """A manifest, and the bytes of its entries behind a descriptor, at `Manifest.offsets`.

    The memory is sealed: nobody can write to it any more, make it shorter, or take the seals away; so what has been checked stays so
    while it is read. It goes when the last process has closed its descriptor.

    Attributes:
        manifest: what there is.
        descriptor: of the memory, for reading; pass it on as any other.
    """

    def __init__(self, manifest: Manifest, descriptor: int) -> None:
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

    def close(self) -> None:
        """Closes the descriptor; without effect the second time."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def reserved(length: int) -> Iterator[tuple[int, int]]:
    """New shared memory of so many bytes: its descriptor, which is the caller's to close, and the address at which it can be written to.

    When the block ends, the memory is sealed; if it ends with an error, it is given back.

    Raises:
        CloneError: there is not as much memory.
    """
    descriptor = os.memfd_create("forebay-capture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        try:
            # All of it, at once: where memory is short this fails, while a page that is missing later would be a signal.
            os.posix_fallocate(descriptor, 0, length)
            memory = mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            raise CloneError(f"no memory for a copy of {length:,} bytes of state: {error.strerror}") from error
        with memory:
            view = ctypes.c_char.from_buffer(memory)
            try:
                yield descriptor, ctypes.addressof(view)
            finally:
                # A mapping can't be closed, nor its file sealed, while it is lent.
                del view
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
