"""Large tensors of one rank in shared storage: moved there, and published for clones that wait."""

import contextlib
import operator
import weakref
from collections.abc import Callable, Sequence

from forebay import _core
from forebay._say import say
from forebay.clone._errors import CloneError
from forebay.clone._filling import some
from forebay.clone._inventory import Inventory
from forebay.clone._manifest import Section
from forebay.clone._shared import Storage

__all__ = ["SharedTensors"]


class SharedTensors:
    """The tensors of a state that shared storage holds, as they were at the last look."""

    def __init__(self, inventory: Inventory, storage: Storage) -> None:
        self._inventory, self._storage = inventory, storage
        # Sections when all tensors were last moved, with the version of the storage.
        self._shared: tuple[list[Section], int] | None = None
        # The same, and the memory, when the schema was last published.
        self._published: tuple[list[Section], int] | None = None
        self._memory: list[weakref.ref[_core.Shared]] = []
        self._reported: set[str] = set()

    def share(self, left_before: int) -> None:
        """Moves large tensors into shared memory, and reports once those that can't be moved.

        Args:
            left_before: bytes that were free before any rank took its share.
        """
        rank, _ = self._inventory.rank
        try:
            if self._is_shared() and self._inventory.steady_unmoved() and not self._storage.could_share_more():
                return
            left = self._storage.share(self._inventory.steady(), self._inventory.ranks_here, left_before)
            # Moved tensors have new addresses.
            self._shared = (self._inventory.steady_sections(), self._storage.version)
        except CloneError as error:
            left = {"all that are not there yet": str(error)}
        if rank == 0 and (new := [path for path in left if path not in self._reported]):
            by_reason: dict[str, list[str]] = {}
            for path in new:
                by_reason.setdefault(left[path], []).append(path)
            named = "; ".join(f"{some(paths)}: {why}" for why, paths in by_reason.items())
            say(f"a fork copies these tensors while training stands still, for they can't be in shared memory: {named}")
        self._reported |= left.keys()

    def _is_shared(self) -> bool:
        """Returns whether the description at the last fork still had all tensors in shared memory.

        A tensor added since is seen at this fork, copied at the point, and moved before the next. Compares
        identities, for speed.
        """
        sections = self._inventory.last_steady_sections()
        if self._shared is None:
            return False
        last, version = self._shared
        return version == self._storage.version and len(last) == len(sections) and all(map(operator.is_, last, sections))

    def publish(self, send: Callable[[Sequence[_core.Shared]], None]) -> None:
        """Publishes the shared memory, with the schema of the state, if either has changed.

        Args:
            send: sends the schema and this memory. Clones can do without them, so that its failure is ignored.
        """
        memory = [arena.memory for arena in self._storage.arenas]
        if self._published is self._shared and [alive() for alive in self._memory] == memory:
            return
        # The secret is missing after the agent's end, or there is no memory for the lines.
        with contextlib.suppress(CloneError, OSError):
            send(memory)
            self._published, self._memory = self._shared, [weakref.ref(one) for one in memory]

    def forget_published(self) -> None:
        """Forgets what was published: another agent knows nothing of it."""
        self._published, self._memory = None, []
