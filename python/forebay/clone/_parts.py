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
        self._under: dict[Path, _core.Look | None] = {}
        self._looks: dict[Watch, _core.Look | None] = {}

    def of(self, components: Iterable[Component]) -> list[Part]:
        """Components as they are now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        components = list(components)
        # Before anything is read: what changes meanwhile is then seen the next time.
        looks = {watch: self._looked_at(watch) for watch in {component.watch for component in components} if watch is not None}
        return [self._part(component, looks[component.watch] if component.watch else None) for component in components]

    def stands(self, part: Part) -> bool:
        """Whether the tensors of a part that was described before, the state's own, still lie where they lay."""
        if not part.tensors or (part.component.put is not None and not part.component.steady):
            return True
        last = self._last.get(part.component.path)
        return last is not None and last.part.entries is part.entries and self._adapter.facts(list(part.tensors)) == last.facts

    def _looked_at(self, watch: Watch) -> "_core.Look | None":
        """The last look, if nothing has been exchanged since, or a new one; None where there is something that can't be looked at."""
        look = self._looks.get(watch)
        if look is None or not look.is_same(watch.root()):
            look = _core.Look.at(watch.root(), self._adapter.plain(), watch.of_tensors, watch.of_objects) if watch.is_plain() else None
            self._looks[watch] = look
        return look

    def _part(self, component: Component, look: "_core.Look | None") -> Part:
        path = component.path
        last = self._last.get(path)
        is_known = last is not None and look is not None and self._under.get(path) is look
        if last is not None and is_known and (part := last.again(self._adapter)) is not None:
            return part
        value = component.get()
        same = last.again(self._adapter) if last is not None and last.look is not None and last.look.is_same(value) else None
        if same is None:
            same = self._described(component, value)
            self.expect(same, value)
        self._under[path] = look
        return same

    def expect(self, part: Part, value: object) -> None:
        """Notes what a component has been described as, or set to: if it then gives just that, it is not described again.

        Args:
            part: as it is, or will be, described.
            value: what its `get` gives.
        """
        path = part.component.path
        # Which look it is found under is known when it has been read.
        self._under.pop(path, None)
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
