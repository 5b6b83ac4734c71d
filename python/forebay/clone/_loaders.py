"""State that a loader without `state_dict` keeps from one epoch to the next: generators, counters, orders.

Iterators can't be carried.

A clone makes a new loader. To read the rest of an epoch as its parent does, it sets what is found here as it was
when that epoch began.
"""

import collections
import contextlib
import copy
import inspect
import io
import logging
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay.clone._errors import CloneError, UndescribableError
from forebay.clone._values import encode

__all__ = ["Access", "Loaders", "generators_of"]

DEPTH_MAX = 8
OBJECTS_MAX = 10_000
"""Objects of one loader that are looked at, at most."""
ITEMS_MAX = 1000
"""Items of a container that are looked at, at most; more only of a sampler's, if they are numbers."""
NUMBERS_MAX = 1 << 20
"""Numbers of a sampler's list, array or tensor, at most."""

# Of these nothing is looked at: they hold no place in an epoch, or have it in their own `state_dict`.
_CLOSED = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
    io.IOBase,
    logging.Logger,
    threading.Thread,
)
_CLOSED_MODULES = ("forebay.", "multiprocessing.", "concurrent.", "asyncio.", "_thread", "weakref")
_SCALARS = (type(None), bool, int, float, str, bytes)
_CONTAINERS = (list, tuple, dict, collections.OrderedDict, collections.Counter)
# Where iterators of theirs have workers, those have state that nobody can read.
_LOADERS = ("torch.utils.data.", "torchdata.")

Access = tuple[Callable[[], Any], Callable[[Any], object]]


class _Found:
    """Everything that was reached from a loader.

    Attributes:
        owners: objects with attributes, by path, each with whether it may be a sampler.
        generators: how they are read and set, by path.
        iterators: the path and the object of each iterator that has not ended and whose position can't be read.
    """

    def __init__(self, loader: object, access: Callable[[object], Access | None]) -> None:
        self.owners: dict[str, tuple[object, bool]] = {}
        self.generators: dict[str, Access] = {}
        self.iterators: list[tuple[str, object]] = []
        self._access = access
        self._seen: set[int] = set()
        is_own = not type(loader).__module__.startswith(_LOADERS)
        self._visit(loader, "loader", 0, is_sampler=is_own)

    def _visit(self, value: object, path: str, depth: int, *, is_sampler: bool) -> None:
        if isinstance(value, _SCALARS) or depth > DEPTH_MAX or len(self._seen) > OBJECTS_MAX or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if (found := self._access(value)) is not None:
            self.generators[path] = found
            return
        if isinstance(value, _CLOSED) or type(value).__module__.startswith(_CLOSED_MODULES):
            return
        if _is_opaque(value):
            if not _has_ended(value):
                self.iterators.append((path, value))
            return
        if isinstance(value, dict | list | tuple | set | frozenset | collections.deque):
            if len(value) <= ITEMS_MAX:
                for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                    self._visit(item, f"{path}[{key!r}]", depth + 1, is_sampler=is_sampler)
            return
        if (attributes := getattr(value, "__dict__", None)) is None or not isinstance(attributes, dict):
            return
        self.owners[path] = (value, is_sampler)
        for name, item in list(attributes.items()):
            is_order = "sampler" in name or (is_sampler and not name.startswith("data"))
            self._visit(item, f"{path}.{name}", depth + 1, is_sampler=is_order)


def _is_opaque(value: object) -> bool:
    """Returns whether it is an iterator whose position is in no attribute.

    Python's own, and those of loaders with workers.
    """
    if not hasattr(type(value), "__next__"):
        return False
    return not hasattr(value, "__dict__") or (type(value).__module__.startswith(_LOADERS) and bool(getattr(value, "_num_workers", 0)))


def _has_ended(value: Any) -> bool:  # noqa: ANN401  (any iterator)
    if isinstance(value, types.GeneratorType):
        return inspect.getgeneratorstate(value) == inspect.GEN_CLOSED
    if hasattr(value, "__dict__"):
        return not getattr(value, "_persistent_workers", True) and getattr(value, "_tasks_outstanding", 1) == 0
    hint = getattr(value, "__length_hint__", None)
    return hint is not None and hint() == 0


class Loaders:
    """The loaders that a session iterates over, and how their objects were when they were first seen."""

    def __init__(self, access: Callable[[object], Access | None], tensors: Sequence[type]) -> None:
        """Begins with none.

        Args:
            access: returns how a generator's state is read and set; None for any other object.
            tensors: the types of tensors.
        """
        self._access, self._tensors = access, tensors
        # By identity, with what keeps another from being taken for it.
        self._first: dict[int, tuple[weakref.ref[Any], dict[str, object]]] = {}

    def state(self, loader: object) -> tuple[dict[str, Any], dict[str, Access]]:
        """Returns what an epoch that begins now depends on.

        `generators` and `values` by path, and in `kept` why it can't be carried.

        Beside it how the generators are read and set.

        What is as it was when a loader was first seen is left out: each program makes it so. So is `kept` before its
        first epoch.
        """
        found = _Found(loader, self._access)
        is_first = not any(self._is_known(owner) for owner, _ in found.owners.values())
        values = {
            path: changed for path, (owner, is_sampler) in found.owners.items() if (changed := self._changed(owner, is_sampler=is_sampler))
        }
        state: dict[str, Any] = {"generators": {path: get() for path, (get, _) in found.generators.items()}, "values": values}
        if found.iterators and not is_first:
            path, iterator = found.iterators[0]
            state["kept"] = f"{path}, a {type(iterator).__module__}.{type(iterator).__qualname__}"
        return state, found.generators

    def set(self, loader: object, state: Mapping[str, Any]) -> dict[str, Access]:
        """Sets a loader of the same program to a state, before its `iter`. Returns how its generators are read and set.

        Raises:
            CloneError: the loader lacks an object that the state is of.
        """
        found = _Found(loader, self._access)
        for owner, is_sampler in found.owners.values():
            self._changed(owner, is_sampler=is_sampler)
        if lacking := [path for path in state["generators"] if path not in found.generators]:
            raise CloneError(f"{lacking[0]} is a generator where the state was captured, and none here: make the loader as the parent's")
        if lacking := [path for path in state["values"] if path not in found.owners]:
            raise CloneError(f"{lacking[0]} is missing here, and the parent has it: make the loader as the parent's")
        for path, values in state["values"].items():
            # Not by `setattr`: loaders refuse to have some of their attributes set.
            vars(found.owners[path][0]).update(copy.deepcopy(values))
        for path, generator in state["generators"].items():
            found.generators[path][1](generator)
        return found.generators

    def _is_known(self, owner: object) -> bool:
        known = self._first.get(id(owner))
        return known is not None and known[0]() is owner

    def _changed(self, owner: object, *, is_sampler: bool) -> dict[str, object]:
        """Returns the attributes of an object that are not as they were when it was first seen."""
        now = {name: text for name, value in vars(owner).items() if (text := self._noted(value, is_sampler=is_sampler)) is not None}
        if not self._is_known(owner):
            try:
                alive = weakref.ref(owner)
            except TypeError:
                return {}
            self._first = {number: one for number, one in self._first.items() if one[0]() is not None}
            self._first[id(owner)] = (alive, now)
            return {}
        first = self._first[id(owner)][1]
        # Copied: what is shuffled in place during the epoch is to be as it was when that began.
        return {name: copy.deepcopy(vars(owner)[name]) for name, text in now.items() if first.get(name) != text}

    def _noted(self, value: Any, *, is_sampler: bool) -> object | None:  # noqa: ANN401
        """Returns something that is equal as long as a value is; None for a value that is not carried."""
        kind = type(value)
        if kind in _SCALARS:
            return kind, repr(value) if kind is float else value
        if is_sampler and (kind in self._tensors or kind.__module__ == "numpy"):
            small = getattr(value, "nbytes", NUMBERS_MAX * 8) < NUMBERS_MAX * 8
            return (kind, str(value.dtype), tuple(value.shape), hash(str(value.tolist()))) if small else None
        if kind not in _CONTAINERS or len(value) > (NUMBERS_MAX if is_sampler else ITEMS_MAX):
            return None
        # A dataset's tensors, and what it keeps of its samples, are no place in an epoch.
        with contextlib.suppress(UndescribableError):
            return kind, hash(encode(value, ("loader",), lambda *_: False))
        return None


def generators_of(loader: object, access: Callable[[object], Access | None]) -> dict[str, Access]:
    """Returns how the generators that a loader uses are read and set, by path."""
    return _Found(loader, access).generators
