"""Components as they are at one moment.

Those that have not changed are not described again, since training stands still.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, TensorRecord, Watch
from forebay.clone._manifest import EntryKind, Placement, Section
from forebay.clone._values import Path, encode, spelled

__all__ = ["ComponentCache", "ComponentState", "Expected"]


@dataclass(frozen=True)
class ComponentState:
    """A component as it is now.

    Attributes:
        component: the component.
        text: its encoded values.
        section: the description of values and tensors; the same object until the description changes.
        tensors: tensors of the section's entries but the first.
        addresses: address of each tensor's bytes, if they are in the processor's memory in the order of the layout;
            else None.
    """

    component: Component
    text: bytes
    section: Section
    tensors: Sequence[Any]
    addresses: Sequence[int | None]


class ComponentCache:
    """Describes components, and caches the descriptions."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._last: dict[Path, Expected] = {}
        # Looks at the watched objects with which a part was last read.
        self._under: dict[Path, list[_core.Look | None]] = {}
        # Components that return other objects each time: looking at them costs more than it could save.
        self._restless: set[Path] = set()
        self._looks: dict[Watch, _core.Look | None] = {}

    def of(self, components: Iterable[Component]) -> list[ComponentState]:
        """Describes components as they are now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        components = list(components)
        # Before anything is read, so that changes in between are seen the next time.
        looks = {watch: self._looked_at(watch) for watch in {watch for component in components for watch in component.watches}}
        return [self._part(component, [looks[watch] for watch in component.watches]) for component in components]

    def stands(self, part: ComponentState) -> bool:
        """Returns whether the tensors of a part, the state's own, are still at their described addresses."""
        if not part.tensors:
            return True
        component = part.component
        last = self._last.get(component.path)
        if last is not None and last.part.section is part.section:
            tensors = last.known.again()
            return tensors is not None and all(map(operator.is_, tensors, part.tensors))
        if component.put is None or component.steady:
            return False
        # Some are temporary copies, which the part keeps.
        found = [self._adapter.describe(tensor, component.path) for tensor in part.tensors]
        return [one and one.address for one in found] == list(part.addresses)

    def last(self, path: Path) -> Section | None:
        """Returns a component's section as it was last described or set.

        None if it has to be described again in any case.
        """
        last = self._last.get(path)
        return last.part.section if last is not None else None

    def is_unmoved(self, path: Path) -> bool:
        """Returns whether the tensors that were described last still exist at their addresses.

        New ones may have come.
        """
        last = self._last.get(path)
        return last is not None and last.known.again() is not None

    def _looked_at(self, watch: Watch) -> "_core.Look | None":
        """Returns the last look if no object was replaced since, or a new one; None if an object can't be looked at."""
        look = self._looks.get(watch)
        if look is None or not look.is_same(watch.root()):
            look = _core.Look.at(watch.root(), self._adapter.plain(), watch.of_tensors, watch.of_objects) if watch.is_plain() else None
            self._looks[watch] = look
        return look

    def _part(self, component: Component, looks: "list[_core.Look | None]") -> ComponentState:
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

    def expected(self, part: ComponentState, value: object) -> "Expected | None":
        """Returns the record by which a component is recognised, or will be once it is set to a value.

        Args:
            part: description of the component.
            value: the value that its `get` returns, or will return.
        """
        return Expected.of(part, value, self._adapter)

    def expect(self, path: Path, expected: "Expected | None") -> None:
        """Records a component's description: if its value is then the same, it is not described again."""
        # The looks at watched objects are known once the component has been read.
        self._under.pop(path, None)
        if expected is not None:
            self._last[path] = expected
        else:
            self._last.pop(path, None)

    def _described(self, component: Component, value: object) -> ComponentState:
        paths: list[str] = [spelled(component.path)]
        kinds: list[EntryKind] = []
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
        section = Section(tuple(paths), (EntryKind.of_values(component.placement, text), *kinds))
        return ComponentState(component, text, section, tensors, addresses)


# The same object for what is alike, as sections have it.
_kind = functools.lru_cache(maxsize=4096)(EntryKind)


class Expected(NamedTuple):
    """A part as it was when it was last looked at, or will be; it keeps no tensor.

    Attributes:
        part: the part without its tensors.
        look: look at the value that was described; None if it holds an object that can't be looked at.
        known: its tensors, and those whose type and sizes it reads.
    """

    part: ComponentState
    look: _core.Look | None
    known: TensorRecord

    @classmethod
    def of(cls, part: ComponentState, value: object, adapter: Adapter) -> "Expected | None":
        """Records a part; returns None if a later change of its value could not be detected."""
        look = _core.Look.at(value, adapter.plain(), (), ())
        if look is None and not part.component.watches:
            return None
        if (known := adapter.known([*part.tensors, *part.component.shapes()])) is None:
            return None
        return cls(replace(part, tensors=()), look, known)

    def again(self) -> ComponentState | None:
        """Returns the part, if its tensors still exist with their layouts and addresses."""
        tensors = self.known.again()
        return None if tensors is None else replace(self.part, tensors=tensors[: len(self.part.addresses)])
