"""A session's position in the data: the batches read in the epoch, and the state of its loader when the epoch began."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from forebay.clone._errors import CloneError, DifferenceError
from forebay.clone._loaders import Access, Loaders

__all__ = ["LoaderPosition"]

END = object()

Batch = TypeVar("Batch")


class LoaderPosition:
    """The position of `Session.batches`, as a part of the state.

    Attributes:
        batch: batches read in the epoch.
    """

    def __init__(self) -> None:
        self.batch = 0
        # The session's generators, and the loader, when the epoch began.
        self._generators: dict[str, Any] = {}
        self._loader: dict[str, Any] = {}
        # The loader's own generators: their states at the fork, until this program has its loader; then their
        # accessors.
        self._then: dict[str, Any] = {}
        self._access: dict[str, Access] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain values."""
        now = {path: get() for path, (get, _) in self._access.items()} if self._access else self._then
        return {"batch": self.batch, "generators": self._generators, "loader": self._loader, "now": now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the position to the parent's.

        Raises:
            DifferenceError: the parent's loader has state that can't be carried.
        """
        if kept := state["loader"].get("kept"):
            raise DifferenceError(
                f"the loader of s.batches() goes on from its last epoch, with {kept}: its state can't be read. Have the parent make "
                "new iterators for each epoch (persistent_workers=False), give session() a loader with state_dict, or fork in the "
                "first epoch"
            )
        self.batch, self._generators, self._loader, self._then = (state[name] for name in ("batch", "generators", "loader", "now"))
        self._access = {}

    def clear(self) -> None:
        """Begins an epoch of a loader that keeps its own position."""
        self.batch, self._generators, self._loader, self._then, self._access = 0, {}, {}, {}, {}

    def begin(self, generators: Mapping[str, Any], loaders: Loaders, loader: object) -> None:
        """Records the state on which the epoch that begins depends."""
        self.clear()
        self._generators = dict(generators)
        self._loader, self._access = loaders.state(loader)

    def go_on(self, loaders: Loaders, loader: object) -> None:
        """Sets the loader to its parent's state, in a clone that begins with an epoch."""
        if self._loader:
            loaders.set(loader, self._loader)

    def catch_up(self, loaders: Loaders, loader: Iterable[Batch], set_generators: Callable[[Mapping[str, Any]], None]) -> Iterator[Batch]:
        """Skips the batches that the parent has read, in a clone that begins within an epoch. Returns the rest.

        Args:
            loaders: those of the session.
            loader: made as the parent's.
            set_generators: sets the session's generators.

        Raises:
            CloneError: the loader has fewer batches, or other parts than the parent's.
        """
        access = loaders.set(loader, self._loader) if self._loader else {}
        set_generators(self._generators)
        iterator = iter(loader)
        for batch in range(self.batch):
            if next(iterator, END) is END:
                raise CloneError(
                    f"the loader has {batch} batches, and its parent had had {self.batch} of this epoch: make it as the parent's"
                )
        for path, state in self._then.items():
            access[path][1](state)
        self._access = access
        return iterator
