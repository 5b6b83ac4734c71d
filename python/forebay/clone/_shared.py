"""Shared storage: memory for large tensors that clones can read while the job trains.

A fork need not copy them.
"""

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
"""Smallest tensor that is moved, in bytes: packing smaller ones is cheaper than describing each."""
ARENA_BYTES = 1 << 30
"""Bytes of tensors that are moved together, or one larger tensor.

Their old memory is freed before the next are moved.
"""
ARENAS_MAX = 200
"""Largest number of arenas: their descriptors go into one packet, which the kernel limits to 253."""
MOVES_MAX = 3
"""Moves after which a tensor is left where it is: some optimizers replace it all the time."""

_living: "weakref.WeakSet[_core.Shared]" = weakref.WeakSet()


def _part() -> None:
    """Makes the memory private in a forked process, so that its writes do not reach its parent."""
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
    """Allocates shared memory, and touches all of it.

    Args:
        length: bytes.
        ranks: number of processes of this host that take as much at the same moment.
        left_before: bytes that were free before any of them took its share.
        what: the purpose, in words.

    Raises:
        CloneError: there is not as much memory.
    """
    return take(_core.Shared, what, length, ranks, left_before, _living)


@dataclass(frozen=True)
class Arena:
    """Memory that holds tensors.

    Attributes:
        memory: the memory; it lives as long as this object, or a tensor in it.
        buffer: the memory as a Python buffer, which tensors keep alive.
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
        """Returns the offset of a range of addresses in the arena, in bytes; None if it is outside."""
        offset = address - self.memory.address
        return offset if 0 <= offset <= self.memory.length - length else None


class Storage:
    """The shared storage of one rank.

    Attributes:
        arenas: memory that holds tensors, or did when `share` was last called.
        held_bytes: bytes of the tensors that were in them then.
        version: another number whenever what `stays` says may have become another.
    """

    def __init__(self, adapter: Adapter, arenas: Iterable[Arena] = ()) -> None:
        self.arenas = list(arenas)
        self.held_bytes = 0
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
        """Returns the number of a tensor's arena, and the offset in it; None if it is in no arena."""
        memory = self._adapter.lying(tensor)
        return self._place(memory.address, memory.length) if memory else None

    def stays(self, path: str, address: int | None, length: int) -> tuple[int, int] | None:
        """Returns arena and offset of a tensor that clones can read until the next step.

        None if it has to be copied at the point.
        """
        if length < FROM_BYTES or address is None or path in self._unsteady:
            return None
        return self._place(address, length)

    def _place(self, address: int, length: int) -> tuple[int, int] | None:
        for number, arena in enumerate(self.arenas):
            if (offset := arena.offset(address, length)) is not None:
                return number, offset
        return None

    def share(self, tensors: Mapping[str, Any], ranks: int = 1, left_before: int = 0) -> dict[str, str]:
        """Moves large tensors into shared memory: all that are not there, because they are new or were moved since.

        Only their addresses change, not their elements.

        Args:
            tensors: the state's own tensors by path; nothing may write to them meanwhile.
            ranks: number of processes of this host that share theirs at the same moment.
            left_before: bytes that were free before any of them began.

        Returns:
            Paths of tensors that could not be moved, each with the reason.

        Raises:
            CloneError: there is not enough memory. Tensors that were moved before stay moved.
        """
        length = self._adapter.tensor_length
        large = {path: tensor for path, tensor in tensors.items() if length(tensor) >= FROM_BYTES}
        places = {path: self.place(tensor) for path, tensor in large.items()}
        used = {place[0] for place in places.values() if place}
        self.version += 1
        # An unused arena is freed with the last tensor in it that the program may have kept.
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
        self.held_bytes = sum(length(tensor) for path, tensor in large.items() if path not in left and path not in self._unsteady)
        return left

    def could_share_more(self) -> bool:
        """Returns whether a tensor that could not be moved before can be moved now."""
        return any((tensor := alive()) is not None and not self._why_not(path, tensor) for path, alive in self._left.items())

    def _why_not(self, path: str, tensor: object) -> str:
        if self._moves[path] >= MOVES_MAX:
            return "the program replaces it all the time"
        if len(self.arenas) >= ARENAS_MAX:
            return f"shared storage is in {ARENAS_MAX} pieces already"
        return self._adapter.why_fixed(tensor)

    def _batches(self, tensors: Mapping[str, Any]) -> Iterator[list[tuple[str, Any]]]:
        """Yields tensors that are moved together, at most `ARENA_BYTES` a batch unless one alone is larger."""
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
