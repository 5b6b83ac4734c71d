"""Plain attributes of modules and optimizers: state outside any `state_dict`, such as a count of steps."""

import collections
import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from forebay._say import say
from forebay.clone._adapter import Component
from forebay.clone._errors import DifferenceError, UndescribableError
from forebay.clone._manifest import Placement
from forebay.clone._values import Path, encode, spelled
from forebay.torch._generators import access
from forebay.torch._given import type_of
from forebay.torch._group import of_group
from forebay.torch._tensors import PLAIN

__all__ = ["Attributes"]

ITEMS_MAX = 100_000
"""Items of one container, at most; of a larger one nothing is carried."""

# The framework's own attributes, which other components carry, or which are no state.
_OF_MODULES = frozenset((*vars(nn.Module()), "_compiled_call_impl"))
_OF_OPTIMIZERS = frozenset(("defaults", "state", "param_groups", "step", "_zero_grad_profile_name", "_opt_called"))
_SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset, collections.OrderedDict, collections.Counter, collections.deque))
# Types that count in torch's own modules: schedules set a dropout's `p`; other attributes say how a module was made.
# Torch's own optimizers keep all state in `state`; their attributes are caches.
_OF_TORCH_S = frozenset((bool, float))


Reader = Callable[[dict[str, Any]], Any]


class _Looked(NamedTuple):
    """An object, and its attributes as they were when it was first seen.

    Attributes:
        name: its path in the module.
        attributes: its `__dict__`.
        is_counted: returns whether an attribute of that name, with that value, may be state.
        readers: functions, each with the value that it returned for `attributes`; together they read all attributes
            that can't change in place.
        length: number of attributes.
        first: by name, the note of an attribute's first value (`_noted`).
        has_more: some attributes can change in place, such as tensors and lists.
    """

    name: str
    attributes: dict[str, Any]
    is_counted: Callable[[str, object], bool]
    readers: tuple[tuple[Reader, Any], ...]
    length: int
    first: dict[str, object]
    has_more: bool

    @classmethod
    def at(cls, name: str, one: object) -> "_Looked":
        """Notes an object's attributes."""
        is_torch_s = type(one).__module__.startswith("torch.")
        is_module = isinstance(one, nn.Module)
        left = _OF_MODULES if is_module else _OF_OPTIMIZERS
        kinds = None if not is_torch_s else _OF_TORCH_S if is_module else frozenset[type]()

        def is_counted(key: str, value: object) -> bool:
            return key not in left and not key.startswith("_optimizer_") and (kinds is None or type(value) in kinds)

        attributes = vars(one)
        counted = {key: value for key, value in attributes.items() if is_counted(key, value)}
        first = {key: _noted(value)[0] for key, value in counted.items()}
        compared = [key for key, value in counted.items() if _is_fixed(value)]
        identified = [
            key for key, value in counted.items() if isinstance(first[key], int) and not _is_fixed(value) and access(value) is None
        ]
        readers: list[Reader] = []
        if compared:
            readers.append(operator.itemgetter(*compared))
        if identified:
            readers.append(functools.partial(_identities, identified))
        read = tuple((reader, reader(attributes)) for reader in readers)
        has_more = len(compared) + len(identified) != len(first)
        return cls(name, attributes, is_counted, read, len(attributes), first, has_more)

    def is_as_it_was(self) -> bool:
        """Returns whether no attribute has changed."""
        return (
            not self.has_more
            and len(self.attributes) == self.length
            and _are_same([(reader, self.attributes) for reader, _ in self.readers], [value for _, value in self.readers])
        )


class Attributes:
    """Attributes of a module's objects, or of an optimizer, that changed since the job's state was first described.

    Generators, and tensors that are neither parameters nor buffers, always belong to them.
    """

    def __init__(self, path: Path, objects: Callable[[], Iterable[tuple[str, object]]], own: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Notes the attributes of objects, which have names, as they are; `own` are tensors of other components."""
        self._path, self._objects, self._own = path, objects, own
        # By identity, with the object, so that no other has it.
        self._looked: dict[int, tuple[object, _Looked]] = {}
        # Set to what the parent had: these count as changed, whatever they are.
        self._set: set[tuple[str, str]] = set()
        self._was_set = False
        # Objects that each fork looks at in full, and all others, which it reads in one pass: training waits meanwhile.
        self._restless: list[_Looked] = []
        self._quiet: list[_Looked] = []
        self._named: set[tuple[str, str]] = set()
        self.look()

    def component(self) -> Component:
        """Returns the part of the state that they are."""
        return Component(self._path, Placement.PER_RANK, self.changed, self.put)

    def look(self) -> None:
        """Notes objects that have been added, and forgets those that are gone."""
        looked = {}
        for name, one in self._objects():
            known = self._looked.get(id(one))
            looked[id(one)] = (one, known[1]._replace(name=name) if known else _Looked.at(name, one))
        self._looked = looked
        self._sort()

    def _sort(self) -> None:
        touched = {name for name, _ in self._set}
        everything = [one for _, one in self._looked.values()]
        self._restless = [one for one in everything if one.has_more or one.name in touched]
        self._quiet = [one for one in everything if not (one.has_more or one.name in touched)]
        self._dicts = [one.attributes for one in self._quiet]
        self._lengths = [one.length for one in self._quiet]
        self._reads = [(reader, one.attributes) for one in self._quiet for reader, _ in one.readers]
        self._values = [value for one in self._quiet for _, value in one.readers]

    def changed(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns what a clone would not have by itself: by object `values` and `generators`, by name."""
        if self._was_set:
            # Setting other components may set attributes too, such as `set_extra_state`: all are as the parent's now.
            self._was_set, self._looked = False, {}
            self.look()
        found: dict[str, dict[str, dict[str, Any]]] = {}
        own: set[int] = set()
        looked = self._restless
        if list(map(len, self._dicts)) != self._lengths or not _are_same(self._reads, self._values):
            looked = [*looked, *(one for one in self._quiet if not one.is_as_it_was())]
        for one in looked:
            own = own or _storages(self._own())
            state: dict[str, dict[str, Any]] = {"values": {}, "generators": {}}
            for key, value in one.attributes.items():
                if one.is_counted(key, value) or (one.name, key) in self._set:
                    self._add(state, one, key, value, own)
            if any(state.values()):
                found[one.name] = state
        return found

    def _add(self, state: dict[str, dict[str, Any]], one: _Looked, key: str, value: Any, own: set[int]) -> None:  # noqa: ANN401
        if (generator := access(value)) is not None:
            state["generators"][key] = generator[0]()
            return
        noted, is_always = _noted(value)
        is_changed = noted != one.first.get(key, _MISSING) or (one.name, key) in self._set
        if not is_changed and not is_always:
            return
        if not isinstance(noted, int):
            if not _shares(value, own):
                state["values"][key] = _copied(value)
        elif is_changed and (one.name, key) not in self._named:
            self._named.add((one.name, key))
            if (of_group() or (0, 1))[0] == 0:
                where = spelled((*self._path[:-1], *filter(None, [one.name]), key))
                say(
                    f"{where}, a {type_of(value)}, has changed while training, and a fork does not carry it: where results depend on it, "
                    "keep numbers or tensors there, or give it by get_extra_state"
                )

    def put(self, states: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """Sets the attributes to the parent's; raises `DifferenceError` if an object is not there."""
        self.look()
        here = {one.name: one for _, one in self._looked.values()}
        if lacking := [name for name in states if name not in here]:
            raise DifferenceError(f"{spelled((*self._path, lacking[0]))} is missing here: have the clone make what its parent has added")
        for one in here.values():
            state = states.get(one.name, {"values": {}, "generators": {}})
            # What passes before the state came have changed here, and steps have not changed there.
            for key in [key for key in one.first if type(one.first[key]) is tuple]:
                if key not in state["values"] and key in one.attributes and _noted(one.attributes[key])[0] != one.first[key]:
                    one.attributes[key] = one.first[key][1]  # type: ignore[index]
            for key, value in state["values"].items():
                _set(one.attributes, key, value)
                self._set.add((one.name, key))
            for key, value in state["generators"].items():
                if (generator := access(one.attributes.get(key))) is None:
                    raise DifferenceError(
                        f"{spelled((*self._path, one.name, key))} is a generator where the state was captured, and none here"
                    )
                generator[1](value)
        self._was_set = True


_MISSING = object()


def _is_fixed(value: object) -> bool:
    """Returns whether a value is a scalar, or a tuple of scalars: it can't change in place."""
    return type(value) in _SCALARS or (type(value) is tuple and all(type(item) in _SCALARS for item in value))


def _identities(names: list[str], attributes: dict[str, Any]) -> list[int]:
    return [id(attributes[name]) for name in names]


def _are_same(reads: list[tuple[Reader, dict[str, Any]]], values: list[Any]) -> bool:
    """Returns whether readers return the values that they returned first."""
    try:
        return [reader(attributes) for reader, attributes in reads] == values
    except KeyError:
        return False


def _noted(value: Any) -> tuple[object, bool]:  # noqa: ANN401  (any attribute)
    """Returns a note by which a change of a value is seen, and whether the value is carried in any case.

    The note is the type and value of a scalar, the text of a container, or the identity of an object that can't be
    carried.
    """
    kind = type(value)
    if kind in _SCALARS:
        return (kind, value), False
    if kind in PLAIN:
        return "tensor", True
    if kind in _CONTAINERS and len(value) > ITEMS_MAX:
        return id(value), False
    tensors = 0

    def note(_: object, leaf: object) -> bool:
        nonlocal tensors
        tensors += type(leaf) in PLAIN
        return type(leaf) in PLAIN

    if kind in _CONTAINERS or kind.__module__ == "numpy":
        with contextlib.suppress(UndescribableError):
            return f"{kind.__name__} {encode(value, (), note).decode()}", tensors > 0
    return id(value), False


def _storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if type(tensor) in PLAIN}


def _shares(value: Any, own: set[int]) -> bool:  # noqa: ANN401
    """Returns whether a value is, or has, a tensor that other components carry, or a view of one."""
    if type(value) in PLAIN:
        return value.layout == torch.strided and value.numel() > 0 and value.untyped_storage().data_ptr() in own
    if type(value) in _CONTAINERS:
        return any(_shares(item, own) for item in (value.values() if isinstance(value, dict) else value))
    return False


def _copied(value: Any) -> Any:  # noqa: ANN401
    """Returns a copy of its own, so that a tensor that is loaded is nobody else's."""
    kind = type(value)
    if kind in PLAIN:
        return value.detach().clone()
    if kind is collections.deque:
        return collections.deque(map(_copied, value), value.maxlen)
    if kind in (dict, collections.OrderedDict, collections.Counter):
        return kind((key, _copied(item)) for key, item in value.items()) if kind is not collections.Counter else copy.copy(value)
    return kind(map(_copied, value)) if kind in _CONTAINERS else copy.copy(value)


def _set(attributes: dict[str, Any], key: str, value: Any) -> None:  # noqa: ANN401
    old: Any = attributes.get(key)
    # Whoever has it, such as an optimizer, is to go on having it.
    if type(old) in PLAIN and type(value) in PLAIN and old.requires_grad and old.is_leaf and old.shape == value.shape:
        with torch.no_grad():
            old.copy_(value)
        return
    attributes[key] = value
