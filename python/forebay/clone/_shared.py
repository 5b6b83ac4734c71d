"""Shared storage: large tensors lie, while the job trains, in memory that its clones can read, so that a fork need not copy them."""

import ctypes
import itertools
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forebay import _core
from forebay.clone._adapter import Adapter
from forebay.clone._capture import take
from forebay.clone._manifest import offsets

__all__ = ["FROM_BYTES", "Arena", "Storage", "shared"]

FROM_BYTES = 64 << 10
"""Smaller tensors stay where they are: packing them is cheaper than to speak of each."""
ARENA_BYTES = 1 << 30
"""Tensors are moved by so many bytes at once, or one if it is larger: what they leave is free before the next are moved."""
ARENAS_MAX = 200
"""Their descriptors go into one packet, which the kernel limits to 253."""
MOVES_MAX = 3
"""A tensor that lost its place so often is made anew all the time, as some optimizers do: it is left alone."""

_living: "weakref.WeakSet[_core.Shared]" = weakref.WeakSet()


def _part() -> None:
    """In a process that was forked, as a loader's workers are: what it writes must not be its parent's."""
    failed: OSError | None = None
    for memory in list(_living):
        try:
            memory.part()
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


os.register_at_fork(after_in_child=_part)


def shared(length: int, ranks: int, left_before: int, what: str) -> _core.Shared:
    """New shared memory of so many bytes, all of it there and touched.

    Args:
        length: see `take`.
        ranks: see `take`.
        left_before: see `take`.
        what: see `take`.

    Raises:
        CloneError: there is not as much memory.
    """
    return take(_core.Shared, what, length, ranks, left_before, _living)


@dataclass(frozen=True)
class Arena:
    """Memory in which tensors lie.

    Attributes:
        memory: the memory; it stays as long as this, or a tensor in it.
        buffer: the same, as Python's buffers are; tensors keep it.
    """

    memory: _core.Shared
    buffer: "ctypes.Array[ctypes.c_uint8]"

    @classmethod
    def of_length(cls, length: int, ranks: int, left_before: int) -> "Arena":
        """A new one.

        Raises:
            CloneError: there is not as much memory.
        """
        memory = shared(length, ranks, left_before, "shared storage")
        buffer = (ctypes.c_uint8 * length).from_address(memory.address)
        # What has the buffer has the memory.
        buffer.memory = memory  # type: ignore[attr-defined]
        return cls(memory, buffer)

    def offset(self, address: int, length: int) -> int | None:
        """How many bytes from the beginning so many bytes at an address are; None if they are not in here."""
        offset = address - self.memory.address
        return offset if 0 <= offset <= self.memory.length - length else None


class Storage:
    """The shared storage of one rank.

    Attributes:
        arenas: in which tensors lie, or lay when `share` was last called.
        lying: bytes of the tensors that lay in them then.
        version: another number whenever what `stays` says may have become another.
    """

    def __init__(self, adapter: Adapter, arenas: Iterable[Arena] = ()) -> None:
        self.arenas = list(arenas)
        self.lying = 0
        self.version = 0
        self._unsteady: set[str] = set()
        self._adapter = adapter
        self._moves: Counter[str] = Counter()
        # What had to stay where it is.
        self._left: dict[str, weakref.ref[Any]] = {}

    @property
    def length(self) -> int:
        """Bytes of all of it."""
        return sum(arena.memory.length for arena in self.arenas)

    def change(self, paths: Iterable[str]) -> None:
        """These were seen to change between a point and a step: from now on they are copied at the point."""
        self._unsteady.update(paths)
        self.version += 1

    def place(self, tensor: object) -> tuple[int, int] | None:
        """In which arena a tensor's bytes lie, and from which offset on; None if in none."""
        memory = self._adapter.lying(tensor)
        return self._place(memory.address, memory.length) if memory else None

    def stays(self, path: str, address: int | None, length: int) -> tuple[int, int] | None:
        """Where a steady tensor lies, if clones can read it there until the next step; None if it has to be copied at the point."""
        if length < FROM_BYTES or address is None or path in self._unsteady:
            return None
        return self._place(address, length)

    def _place(self, address: int, length: int) -> tuple[int, int] | None:
        for number, arena in enumerate(self.arenas):
            if (offset := arena.offset(address, length)) is not None:
                return number, offset
        return None

    def share(self, tensors: Mapping[str, Any], ranks: int = 1, left_before: int = 0) -> dict[str, str]:
        """Moves large tensors into shared memory: all that are not there, whether new or made to lie elsewhere since.

        What a tensor is does not change by that, nor any of its elements; only where it lies.

        Args:
            tensors: by path; the state's own, none of which is written to meanwhile.
            ranks: so many processes of this host share theirs at the same moment.
            left_before: what memory was left before any of them began to.

        Returns:
            Those that have to stay where they are, each with the reason.

        Raises:
            CloneError: there is no memory for it. Those that were moved before stay moved.
        """
        length = self._adapter.tensor_length
        large = {path: tensor for path, tensor in tensors.items() if length(tensor) >= FROM_BYTES}
        places = {path: self.place(tensor) for path, tensor in large.items()}
        used = {place[0] for place in places.values() if place}
        self.version += 1
        # One in which nothing lies any more goes when the last tensor that the program may have kept goes.
        self.arenas = [arena for number, arena in enumerate(self.arenas) if number in used]
        missing = {path: tensor for path, tensor in large.items() if places[path] is None}
        left = {path: why for path, tensor in missing.items() if (why := self._why_not(path, tensor))}
        self._left = {path: weakref.ref(missing.pop(path)) for path in left}
        for batch in self._batches(missing):
            *starts, end = offsets([length(tensor) for _, tensor in batch])
            arena = Arena.of_length(end, ranks, left_before)
            for (path, tensor), start in zip(batch, starts, strict=True):
                self._adapter.move(tensor, arena.buffer, start)
                self._moves[path] += 1
            self.arenas.append(arena)
        self.lying = sum(length(tensor) for path, tensor in large.items() if path not in left and path not in self._unsteady)
        return left

    def could_share_more(self) -> bool:
        """Whether one of those that had to stay where they are could be moved by now."""
        return any((tensor := alive()) is not None and not self._why_not(path, tensor) for path, alive in self._left.items())

    def _why_not(self, path: str, tensor: object) -> str:
        if self._moves[path] >= MOVES_MAX:
            return "it is made anew all the time"
        if len(self.arenas) >= ARENAS_MAX:
            return f"shared storage is in {ARENAS_MAX} pieces already"
        return self._adapter.why_fixed(tensor)

    def _batches(self, tensors: Mapping[str, Any]) -> Iterator[list[tuple[str, Any]]]:
        """Tensors that are moved together, each batch of at most `ARENA_BYTES` unless one alone is larger."""
        room = ARENAS_MAX - len(self.arenas)
        return itertools.islice(_cut(tensors.items(), self._adapter), room)


def _cut(tensors: Iterable[tuple[str, Any]], adapter: Adapter) -> Iterator[list[tuple[str, Any]]]:
    batch: list[tuple[str, Any]] = []
    length = 0
    for path, tensor in tensors:
        more = adapter.tensor_length(tensor)
        if batch and length + more > ARENA_BYTES:
            yield batch
            batch, length = [], 0
        batch.append((path, tensor))
        length += more
    if batch:
        yield batch
