"""Tensors that are filled with the bytes of a captured state, each checked by its digest."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Memory
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._manifest import Entry
from forebay.clone._window import Remote

__all__ = ["Fill", "Filled", "fill", "memory_of", "text_of"]


class Fill(NamedTuple):
    """A tensor that is to be an entry; its address, if it lies somewhere in the order of the entry's layout."""

    tensor: Any
    address: int | None
    entry: Entry


@dataclass(frozen=True)
class Filled:
    """A tensor whose bytes were digested as they were written to where it lies."""

    tensor: Any
    address: int
    version: int
    digest: str

    def is_still(self, tensor: object, address: int | None, adapter: Adapter) -> bool:
        """Whether nothing has written to it that counts."""
        return self.tensor is tensor and (self.address, self.version) == (address, adapter.version(tensor))


def fill(
    adapter: Adapter, fills: Sequence[Fill], capture: Capture, starts: Mapping[str, int], remote: Remote | None
) -> tuple[dict[str, str], dict[int, Filled]]:
    """Fills tensors.

    Args:
        adapter: knows them.
        fills: which, and with what.
        capture: has the bytes of what was copied.
        starts: where in it entries begin, by path.
        remote: reads those of the others.

    Returns:
        The digests of all entries by path, and what is known of tensors that were filled where they lie, by identity.

    Raises:
        CloneError: what the capture does not hold could not be read.
        DamagedError: what arrived is not what was sent.
    """
    digests: dict[str, str] = {}
    filled: dict[int, Filled] = {}

    def note(one: Fill, address: int | None, digest: str) -> None:
        digests[one.entry.path] = digest
        if address is not None:
            filled[id(one.tensor)] = Filled(one.tensor, address, adapter.version(one.tensor), digest)

    # What lies where it lay comes first: the parent's next step comes. Many at once: there are thousands, and the interpreter's lock is let
    # go of each time.
    in_place = [one for one in fills if one.address is not None and one.entry.place and remote is not None]
    if remote is not None and in_place:
        read = remote.read([(one.entry, Memory(one.address or 0, one.entry.length, one.tensor)) for one in in_place])
        for one, digest in zip(in_place, read, strict=True):
            note(one, one.address, digest)
    copied = [one for one in fills if one.address is not None and not one.entry.place]
    at_once = {id(one) for one in (*in_place, *copied)}
    others = sorted((one for one in fills if id(one) not in at_once), key=lambda one: one.entry.place is None)
    for one, digest in zip(others, _fill_by_way(adapter, others, capture, starts, remote), strict=True):
        note(one, None, digest)
    found = _read(capture, [(starts[one.entry.path], one.address or 0, one.entry.length) for one in copied])
    for one, digest in zip(copied, found, strict=True):
        _verify(one.entry, digest)
        note(one, one.address, digest)
    return digests, filled


def _fill_by_way(adapter: Adapter, fills: Sequence[Fill], capture: Capture, starts: Mapping[str, int], remote: Remote | None) -> list[str]:
    """Fills tensors that don't lie where their bytes can be written to; gives their digests."""
    digests = [""] * len(fills)
    copied = [number for number, one in enumerate(fills) if one.entry.place is None]
    places = {number: place for place, number in enumerate(copied)}
    pieces = _core.Pieces([fills[number].entry.length for number in copied])
    for batch in adapter.inward([one.tensor for one in fills], [one.entry.layout for one in fills]):
        reads = []
        for piece in batch:
            entry = fills[piece.number].entry
            if entry.place is None:
                reads.append((places[piece.number], starts[entry.path] + piece.start, piece.address, piece.length))
            elif remote is None:
                raise CloneError(f"{entry.path} was not copied, and its job is not there to be read from")
            else:
                (digests[piece.number],) = remote.read([(entry, Memory(piece.address, piece.length, fills[piece.number].tensor))])
        try:
            pieces.read(capture.descriptor, reads)
        except OSError as error:
            raise _unreadable(error) from error
    for number, digest in zip(copied, pieces.digests(), strict=True):
        _verify(fills[number].entry, digest)
        digests[number] = digest
    return digests


def _read(capture: Capture, parts: list[tuple[int, int, int]]) -> list[str]:
    """Reads parts of a copy (an offset, an address, a length) to where they belong; gives their digests."""
    try:
        return _core.read_and_digest(capture.descriptor, parts)
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> DamagedError:
    return DamagedError(f"the copy of a state can't be read: {error}")


def text_of(capture: Capture, entry: Entry, offset: int) -> bytes:
    """The values of an entry, as they were written down.

    Raises:
        DamagedError: they are not what the digest says.
    """
    text = os.pread(capture.descriptor, entry.length, offset)
    memory = memory_of(text)
    _verify(entry, _core.digest(memory.address, memory.length))
    return text


def memory_of(text: bytes) -> Memory:
    """Where the bytes of a text lie."""
    return Memory(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0, len(text), text)


def _verify(entry: Entry, digest: str) -> None:
    if digest != entry.digest:
        raise DamagedError(f"{entry.path}: what arrived has the digest {digest}; sent was {entry.digest}")
