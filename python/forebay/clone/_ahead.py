"""What a rank of a clone makes ready while it waits for its state, so that only to copy and to check it is left."""

import contextlib
from collections.abc import Iterable
from typing import Any

from forebay import _core
from forebay.clone._adapter import Adapter
from forebay.clone._errors import CloneError
from forebay.clone._later import Later
from forebay.clone._manifest import Layout, aligned
from forebay.clone._shared import FROM_BYTES, Arena

__all__ = ["Ahead"]


class Ahead:
    """The memory in which its parent's large tensors lie, mapped; and memory of its own for those that it lacks, there and touched.

    Both are made in a thread. Where its parent's tensors lie may be another place when the state comes: what is not ready then is done as
    it is read.
    """

    def __init__(self, taking: _core.Taking, adapter: Adapter, tensors: Iterable[object], ranks: int) -> None:
        """Begins.

        Args:
            taking: the rank's connection to the fork agent.
            adapter: knows its tensors.
            tensors: those that it has already of what a parent has in shared memory; an optimizer that has not stepped has none.
            ranks: as many clones' ranks get ready at the same moment.
        """
        self._adapter = adapter
        lengths = map(adapter.tensor_length, tensors)
        own = sum(aligned(length) for length in lengths if length >= FROM_BYTES)
        left = _core.memory_left()
        self._making = Later(lambda: _made(taking, own, ranks, left))
        self._made: tuple[list[_core.Mapped], Arena | None] | None = None
        self._used = 0

    @property
    def arenas(self) -> list[Arena]:
        """In which tensors lie now."""
        return [self._made[1]] if self._made and self._made[1] and self._used > 0 else []

    def mapped(self, descriptor: int) -> _core.Mapped | None:
        """The memory behind a descriptor, if it is mapped."""
        mapped, _ = self._ready()
        return next((memory for memory in mapped if memory.is_of(descriptor)), None)

    def empty(self, layout: Layout) -> Any:  # noqa: ANN401  (a tensor)
        """A new tensor, its elements unset, that stays as the optimizer's do."""
        _, arena = self._ready()
        length = self._adapter.length(layout)
        if arena is None or length < FROM_BYTES or self._used + length > arena.memory.length:
            return self._adapter.empty(layout)
        start, self._used = self._used, self._used + aligned(length)
        return self._adapter.empty(layout, arena.buffer, start)

    def close(self) -> None:
        """Nothing more is read: has all unmapped, in a thread."""
        Later(self._unmap)

    def _unmap(self) -> None:
        mapped, _ = self._ready()
        for memory in mapped:
            memory.close()

    def _ready(self) -> tuple[list[_core.Mapped], Arena | None]:
        if self._made is None:
            self._made = self._making.wait()
        return self._made


def _made(taking: _core.Taking, own: int, ranks: int, left_before: int) -> tuple[list[_core.Mapped], Arena | None]:
    mapped = taking.map_ahead()
    lacking = sum(memory.length for memory in mapped) - own
    arena = None
    if lacking >= FROM_BYTES:
        # Where memory is short the tensors are made one by one, and whoever makes them says so.
        with contextlib.suppress(CloneError):
            arena = Arena.of_length(lacking, ranks, left_before)
    return mapped, arena
