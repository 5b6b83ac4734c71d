"""Memory that a rank of a clone prepares while it waits for its state, so that only copying and checking is left."""

import contextlib
from collections.abc import Iterable
from typing import Any

from forebay import _core
from forebay.clone._adapter import Adapter
from forebay.clone._errors import CloneError
from forebay.clone._later import ThreadResult
from forebay.clone._manifest import Layout, aligned
from forebay.clone._shared import FROM_BYTES, Arena

__all__ = ["PreparedMemory"]


class PreparedMemory:
    """The mapped memory of its parent's large tensors, and touched memory of its own for those that it lacks.

    A thread makes both. The parent's tensors may have moved when the state comes: mapping that is missing then is
    done during the read.
    """

    def __init__(self, taking: _core.Taking, adapter: Adapter, tensors: Iterable[object], ranks: int) -> None:
        """Begins.

        Args:
            taking: the rank's connection to the fork agent.
            adapter: knows its tensors.
            tensors: those that it has already of what a parent has in shared memory; an optimizer that has not
                stepped has none.
            ranks: as many clones' ranks get ready at the same moment.
        """
        self._adapter = adapter
        lengths = map(adapter.tensor_length, tensors)
        own = sum(aligned(length) for length in lengths if length >= FROM_BYTES)
        left = _core.memory_left()
        self._making = ThreadResult(lambda: _made(taking, own, ranks, left))
        self._made: tuple[list[_core.Mapped], Arena | None] | None = None
        self._used = 0

    @property
    def arenas(self) -> list[Arena]:
        """Arenas in use by tensors."""
        return [self._made[1]] if self._made and self._made[1] and self._used > 0 else []

    def mapped(self, descriptor: int) -> _core.Mapped | None:
        """Returns the memory behind a descriptor, if it is mapped."""
        mapped, _ = self._ready()
        return next((memory for memory in mapped if memory.is_of(descriptor)), None)

    def empty(self, layout: Layout) -> Any:  # noqa: ANN401  (a tensor)
        """Returns a new tensor with unset elements, which lives as long as the optimizer's do."""
        _, arena = self._ready()
        length = self._adapter.length(layout)
        if arena is None or length < FROM_BYTES or self._used + length > arena.memory.length:
            return self._adapter.empty(layout)
        start, self._used = self._used, self._used + aligned(length)
        return self._adapter.empty(layout, arena.buffer, start)

    def close(self) -> None:
        """Unmaps all memory in a thread; nothing may be read afterwards."""
        ThreadResult(self._unmap)

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
