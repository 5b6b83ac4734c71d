"""The parts of a state as they are at one moment. What is as it was at the last look is not described again, for training stands still."""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, Known, Watch
from forebay.clone._manifest import Kind, Placement, Section
from forebay.clone._values import Path, encode, spelled

__all__ = ["Expected", "Part", "Parts"]


@dataclass(frozen=True)
class Part:
    """A component as it is now.

    Attributes:
        component: see there.
        text: its values, written down.
        section: what there is to say of values and tensors. The same object as long as nothing else is described.
        tensors: of the section's entries but the first.
        addresses: of each tensor's bytes, where they lie in the processor's memory in the order of the layout; else None.
    """

    component: Component
    text: bytes
    section: Section
    tensors: Sequence[Any]
    addresses: Sequence[int | None]


class Parts:
    """Describes components, again and again."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._last: dict[Path, Expected] = {}
        # Which looks of what it is read from a part was last found under.
        self._under: dict[Path, list[_core.Look | None]] = {}
        # What gives something else each time: to look at it costs more than it could save.
        self._restless: set[Path] = set()
        self._looks: dict[Watch, _core.Look | None] = {}

    def of(self, components: Iterable[Component]) -> list[Part]:
        """Components as they are now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        components = list(components)
        # Before anything is read: what changes meanwhile is then seen the next time.
        looks = {watch: self._looked_at(watch) for watch in {watch for component in components for watch in component.watches}}
        return [self._part(component, [looks[watch] for watch in component.watches]) for component in components]

    def stands(self, part: Part) -> bool:
        """Whether the tensors of a part that was described before, the state's own, still lie where they lay."""
        if not part.tensors:
            return True
        component = part.component
        last = self._last.get(component.path)
        if last is not None and last.part.section is part.section:
            tensors = last.known.again()
            return tensors is not None and all(map(operator.is_, tensors, part.tensors))
        if component.put is None or component.steady:
            return False
        # Some are throw-away copies, which the part has.
        found = [self._adapter.describe(tensor, component.path) for tensor in part.tensors]
        return [one and one.address for one in found] == list(part.addresses)

    def last(self, path: Path) -> Section | None:
        """That of a component when it was described last, or set; None if it has to be described anew in any case."""
        last = self._last.get(path)
        return last.part.section if last is not None else None

    def lie_still(self, path: Path) -> bool:
        """Whether the tensors that a component had then are still there, and lie where they lay. It may have other ones by now, too."""
        last = self._last.get(path)
        return last is not None and last.known.again() is not None

    def _looked_at(self, watch: Watch) -> "_core.Look | None":
        """The last look, if nothing has been exchanged since, or a new one; None where there is something that can't be looked at."""
        look = self._looks.get(watch)
        if look is None or not look.is_same(watch.root()):
            look = _core.Look.at(watch.root(), self._adapter.plain(), watch.of_tensors, watch.of_objects) if watch.is_plain() else None
            self._looks[watch] = look
        return look

    def _part(self, component: Component, looks: "list[_core.Look | None]") -> Part:
        path = component.path
        last = self._last.get(path)
        under = self._under.get(path)
        if last is not None and under and all(map(operator.is_, under, looks)) and (part := last.again()) is not None:
            return part
        value = component.get()
        same = last.again() if last is not None and last.look is not None and last.look.is_same(value) else None
        if same is None:
            same = self._described(component, value)
            if last is not None and component.put is not None and not component.steady and not looks:
                self._restless.add(path)
            self.expect(path, None if path in self._restless else self.expected(same, value))
        if None not in looks and not component.reads_more():
            self._under[path] = looks
        return same

    def expected(self, part: Part, value: object) -> "Expected | None":
        """What a component is described as, or will be when it is set to a value.

        Args:
            part: how.
            value: what its `get` gives, or will give.
        """
        return Expected.of(part, value, self._adapter)

    def expect(self, path: Path, expected: "Expected | None") -> None:
        """Notes what a component has been described as, or set to: if it then gives just that, it is not described again."""
        # Which look it is found under is known when it has been read.
        self._under.pop(path, None)
        if expected is not None:
            self._last[path] = expected
        else:
            self._last.pop(path, None)

    def _described(self, component: Component, value: object) -> Part:
        paths: list[str] = [spelled(component.path)]
        kinds: list[Kind] = []
        tensors: list[Any] = []
        addresses: list[int | None] = []

        def note(path: Path, leaf: object) -> bool:
            described = self._adapter.describe(leaf, path)
            if described is None:
                return False
            placement = Placement.SHARDED if described.is_sharded else component.placement
            paths.append(spelled(path))
            kinds.append(_kind(placement, described.layout, described.length))
            tensors.append(leaf)
            addresses.append(described.address)
            return True

        text = encode(value, component.path, note)
        section = Section(tuple(paths), (Kind.of_values(component.placement, text), *kinds))
        return Part(component, text, section, tensors, addresses)


# The same object for what is alike, as sections have it.
_kind = functools.lru_cache(maxsize=4096)(Kind)


class Expected(NamedTuple):
    """A part as it was when it was last looked at, or will be; it keeps no tensor.

    Attributes:
        part: without its tensors.
        look: at the value that it was described from; None where that holds what can't be looked at.
        known: its tensors, and those of which it reads type and sizes.
    """

    part: Part
    look: _core.Look | None
    known: Known

    @classmethod
    def of(cls, part: Part, value: object, adapter: Adapter) -> "Expected | None":
        """None where what stands there could be another value the next time, and nobody would see."""
        look = _core.Look.at(value, adapter.plain(), (), ())
        if look is None and not part.component.watches:
            return None
        if (known := adapter.known([*part.tensors, *part.component.shapes()])) is None:
            return None
        return cls(replace(part, tensors=()), look, known)

    def again(self) -> Part | None:
        """The same part, if the tensors that it had are still there and lie as they lay."""
        tensors = self.known.again()
        return None if tensors is None else replace(self.part, tensors=tensors[: len(self.part.addresses)])
