"""The parts of a state as they are at one moment. What is as it was at the last look is not described again, for training stands still."""

import operator
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forebay.clone._adapter import Adapter, Component
from forebay.clone._manifest import VALUE, Entry, Layout, Placement
from forebay.clone._values import DEPTH_MAX, Path, encode, spelled

__all__ = ["Part", "Parts"]

# What stands in a state and can't be another value and still be the same object.
_UNCHANGING = frozenset((type(None), bool, int, float, str, bytes, type))
_TEXT = frozenset((str,))


@dataclass(frozen=True)
class Part:
    """A component as it is now.

    Attributes:
        component: see there.
        text: its values, written down.
        entries: first the values', then one a tensor; without digests and places.
        tensors: of the entries but the first.
        addresses: of each tensor's bytes, where they lie in the processor's memory in the order of the layout; else None.
    """

    component: Component
    text: bytes
    entries: Sequence[Entry]
    tensors: Sequence[Any]
    addresses: Sequence[int | None]


class Parts:
    """Describes components, again and again."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._last: dict[Path, _Last] = {}

    def of(self, components: Iterable[Component]) -> list[Part]:
        """Components as they are now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        return [self._part(component) for component in components]

    def _part(self, component: Component) -> Part:
        value = component.get()
        last = self._last.pop(component.path, None)
        found = _Leaves.of(value)
        if last is not None and found is not None and (tensors := last.tensors(found, self._adapter)) is not None:
            self._last[component.path] = last
            return replace(last.part, tensors=tensors)
        part = self._described(component, value)
        if found is not None and (last := _Last.of(part, found, self._adapter)):
            self._last[component.path] = last
        return part

    def _described(self, component: Component, value: object) -> Part:
        entries: list[Entry] = []
        tensors: list[Any] = []
        addresses: list[int | None] = []

        def note(path: Path, leaf: object) -> bool:
            described = self._adapter.describe(leaf, path)
            if described is None:
                return False
            placement = Placement.SHARDED if described.is_sharded else component.placement
            entries.append(Entry(spelled(path), placement, described.layout, described.length, ""))
            tensors.append(leaf)
            addresses.append(described.address)
            return True

        text = encode(value, component.path, note)
        values = Entry(spelled(component.path), component.placement, Layout(VALUE, (len(text),), (1,), "cpu"), len(text), "")
        return Part(component, text, (values, *entries), tensors, addresses)


class _Leaves(NamedTuple):
    """What stands in nested dictionaries.

    Attributes:
        keys: of all of them; before each one's, how many.
        values: those that are no dictionaries, and where one was, its type.
    """

    keys: list[object]
    values: list[object]

    @classmethod
    def of(cls, value: object) -> "_Leaves | None":
        """None where there is another container, or no dictionary, or a key is no text, or there is no end of them."""
        found = cls([], [])
        return found if type(value) is dict and found.add(value, 0) else None

    def add(self, value: dict[object, object], depth: int) -> bool:
        """Whether it could be added."""
        if depth > DEPTH_MAX or not _TEXT.issuperset(map(type, value)):
            return False
        self.keys.append(len(value))
        self.keys.extend(value)
        if dict not in map(type, value.values()):
            self.values.extend(value.values())
            return True
        for item in value.values():
            if type(item) is dict:
                self.values.append(dict)
                if not self.add(item, depth + 1):
                    return False
            else:
                self.values.append(item)
        return True


class _Last(NamedTuple):
    """A part as it was when it was last looked at; it keeps no tensor.

    Attributes:
        part: without its tensors.
        keys: see `_Leaves`.
        identities: of `_Leaves.values`.
        kept: those of them that are no tensors: nothing else can have their identities meanwhile.
        alive: those that are.
        numbers: where those stand.
        facts: see `Adapter.facts`.
    """

    part: Part
    keys: list[object]
    identities: list[int]
    kept: list[object]
    alive: "list[weakref.ref[Any]]"
    numbers: list[int]
    facts: list[object]

    @classmethod
    def of(cls, part: Part, leaves: _Leaves, adapter: Adapter) -> "_Last | None":
        """None where what stands there could be another value the next time, and nobody would see."""
        kept = [leaf for leaf in leaves.values if type(leaf) in _UNCHANGING]
        numbers = [number for number, leaf in enumerate(leaves.values) if type(leaf) not in _UNCHANGING]
        others = [leaves.values[number] for number in numbers]
        if len(others) != len(part.tensors) or not all(map(operator.is_, others, part.tensors)):
            return None
        if (facts := adapter.facts(part.tensors)) is None:
            return None
        alive = [weakref.ref(tensor) for tensor in part.tensors]
        return cls(replace(part, tensors=()), leaves.keys, list(map(id, leaves.values)), kept, alive, numbers, facts)

    def tensors(self, leaves: _Leaves, adapter: Adapter) -> list[Any] | None:
        """The tensors among these leaves, if all is as it was."""
        if leaves.keys != self.keys or list(map(id, leaves.values)) != self.identities:
            return None
        tensors = [leaves.values[number] for number in self.numbers]
        # With `in`, or by comparing the lists, tensors would be compared by their elements.
        if not all(map(operator.is_, tensors, [alive() for alive in self.alive])):
            return None
        return tensors if adapter.facts(tensors) == self.facts else None
