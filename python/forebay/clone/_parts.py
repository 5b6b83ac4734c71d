"""The parts of a state as they are at one moment. What is as it was at the last look is not described again, for training stands still."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, Watch
from forebay.clone._manifest import VALUE, Entry, Layout, Placement
from forebay.clone._values import Path, encode, spelled

__all__ = ["Part", "Parts"]


@dataclass(frozen=True)
class Part:
    """A component as it is now.

    Attributes:
        component: see there.
        text: its values, written down.
        entries: first the values', then one a tensor; without digests and places. The same object as long as nothing else is described.
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
        # Which look of what it is read from a part was last found under.
        self._under: dict[Path, _core.Look] = {}
        self._looks: dict[Watch, _core.Look] = {}

    def of(self, components: Iterable[Component]) -> list[Part]:
        """Components as they are now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        components = list(components)
        watches = {component.watch for component in components if component.watch is not None}
        # What is not among them now has been exchanged, or was never looked at.
        same = {watch: look for watch in watches if (look := self._looks.get(watch)) is not None and look.is_same(watch.root())}
        parts = [self._part(component, same.get(component.watch) if component.watch else None) for component in components]
        for watch in watches - same.keys():
            self._look_at(watch)
        for component in components:
            if component.watch is not None and (look := self._looks.get(component.watch)) is not None:
                self._under[component.path] = look
        return parts

    def expect(self, part: Part, value: object) -> None:
        """Notes what a component has been set to: if it then gives just that, it is not described.

        Args:
            part: as it will be described.
            value: what its `get` will give.
        """
        self._remember(part, value)
        # Whether it does is not known before it was asked.
        self._under.pop(part.component.path, None)

    def _look_at(self, watch: Watch) -> None:
        look = _core.Look.at(watch.root(), self._adapter.plain(), watch.of_tensors, watch.of_objects) if watch.is_plain() else None
        if look is None:
            self._looks.pop(watch, None)
        else:
            self._looks[watch] = look

    def _part(self, component: Component, look: "_core.Look | None") -> Part:
        last = self._last.get(component.path)
        is_read = last is None or look is None or self._under.get(component.path) is not look
        if last is not None and not is_read and (part := last.again(self._adapter)) is not None:
            return part
        value = component.get()
        if last is not None and last.look is not None and last.look.is_same(value) and (part := last.again(self._adapter)) is not None:
            return part
        part = self._described(component, value)
        self._remember(part, value)
        return part

    def _remember(self, part: Part, value: object) -> None:
        path = part.component.path
        if last := _Last.of(part, value, self._adapter):
            self._last[path] = last
        else:
            self._last.pop(path, None)

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


class _Last(NamedTuple):
    """A part as it was when it was last looked at; it keeps no tensor.

    Attributes:
        part: without its tensors.
        look: at the value that it was described from; None where that holds what can't be looked at.
        alive: its tensors.
        facts: see `Adapter.facts`.
    """

    part: Part
    look: _core.Look | None
    alive: "list[weakref.ref[Any]]"
    facts: object

    @classmethod
    def of(cls, part: Part, value: object, adapter: Adapter) -> "_Last | None":
        """None where what stands there could be another value the next time, and nobody would see."""
        look = _core.Look.at(value, adapter.plain(), (), ())
        if look is None and part.component.watch is None:
            return None
        tensors = list(part.tensors)
        if (facts := adapter.facts(tensors)) is None:
            return None
        return cls(replace(part, tensors=()), look, [weakref.ref(tensor) for tensor in tensors], facts)

    def again(self, adapter: Adapter) -> Part | None:
        """The same part, if the tensors that it had are still there and lie as they lay."""
        tensors = [alive() for alive in self.alive]
        if any(tensor is None for tensor in tensors) or adapter.facts(tensors) != self.facts:
            return None
        return replace(self.part, tensors=tensors)
