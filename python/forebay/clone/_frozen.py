"""Inventories of frameworks that never write to a tensor that somebody else holds.

There a reference to a tensor keeps its value. So a state is frozen in the moment in which its references are taken,
and is copied and digested by a thread while training goes on; or immediately, if holding it would slow the next step.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from forebay import _core
from forebay.clone._adapter import Adapter, Component, StateAdapter, TensorMemory
from forebay.clone._capture import Capture, reserve
from forebay.clone._early import StepCopy
from forebay.clone._errors import CloneError, DamagedError, DifferenceError
from forebay.clone._filling import LoadPlan, by_component, check, put, put_component, some, text_of, verify_one
from forebay.clone._inventory import CaptureForm, Inventory, Survey
from forebay.clone._manifest import DIGEST_BYTES, Layout, Manifest, firsts_of, starts_of
from forebay.clone._parts import ComponentCache, ComponentState
from forebay.clone._ranks import Ranks
from forebay.clone._read_lease import ParentTensors
from forebay.clone._shared import Storage
from forebay.clone._values import decode, spelled

__all__ = ["FreezingAdapter", "FreezingInventory"]

SnapshotT = TypeVar("SnapshotT")


class FreezingAdapter(StateAdapter, Protocol):
    """A framework that copies a held tensor before it writes to it."""

    def tensor_at(self, memory: TensorMemory, layout: Layout) -> Any:  # noqa: ANN401
        """Returns a tensor that reads this memory without a copy, and keeps its owner alive."""


class FreezingInventory(Inventory, Generic[SnapshotT]):
    """The parts of a job's state, read from snapshots.

    A snapshot is cheap: it holds references to tensors, and copies of all other values.
    """

    sees_steps = False

    def __init__(
        self,
        adapter: FreezingAdapter,
        objects: Mapping[str, Mapping[str, object]],
        survey: Callable[[], SnapshotT],
        snapshot: Callable[[], SnapshotT],
        components: Callable[[SnapshotT], list[Component]],
        absent: tuple[str, ...],
        *,
        freezes: bool,
    ) -> None:
        """Describes a state.

        Args:
            adapter: the framework.
            objects: objects by kind and name, for `change`.
            survey: takes a snapshot that is compared with others.
            snapshot: takes a snapshot to go on from.
            components: returns the components of a snapshot. Their `put` sets the job.
            absent: kinds that the job does not have.
            freezes: false if the next step is slow while somebody holds a snapshot: then it is copied at the point.
        """
        # Only a rank with shared storage or a read lease asks for more, and nothing here is steady.
        super().__init__(cast("Adapter", adapter), adapter, objects, [], absent)
        self.freezes = freezes
        self._freezing = adapter
        self._survey, self._snapshot, self._components_of = survey, snapshot, components

    def frozen(self) -> Inventory:
        """Returns an inventory of the state as it is now, which stays the same while training goes on."""
        early = self.early.take() if self.early else None
        return _FrozenInventory(self._adapter, self._ranks, self._objects, self._components_of(self._snapshot()), self._absent, early)

    def length(self) -> int:
        """Returns the bytes that a capture would have now; see `Inventory.length`."""
        parts = self._parts()
        if self.early is not None:
            self.early.lay_out(parts)
        return starts_of([part.section.whole for part in parts])[-1]

    def capture(self, memory: Callable[[int], _core.Reserved] = reserve, storage: Storage | None = None) -> Capture:
        """Copies the state as it is now; see `Inventory.capture`. No tensor is read in place."""
        return self.frozen().capture(memory)

    def load(
        self,
        capture: Capture,
        remote: ParentTensors | None = None,
        survey: Survey | None = None,
        others: Sequence[Capture] = (),
        *,
        is_seeded: bool = False,
        empty: Callable[[Layout], Any] | None = None,
        ready: Mapping[str, LoadPlan] | None = None,
    ) -> Manifest:
        """Sets the job to a captured state, whose tensors are read where they are.

        See `Inventory.load`. The capture holds all bytes, so nothing is read remotely, and no tensor is filled.
        """
        del remote, survey, others, is_seeded, empty, ready
        parts, manifest = self.survey(), capture.manifest
        self._check_job(manifest, is_dealt=False)
        found = by_component(manifest, parts)
        texts = {name: text_of(capture, at) for name, at in found.items()}
        for name, at in found.items():
            self._check_part(parts[name], manifest.held[at].section.paths, manifest, at, texts[name])
        tensors = self._tensors(capture)
        for name, part in sorted(parts.items(), key=lambda one: list(found).index(one[0])):
            component = part.component
            if component.put is not None:
                put_component(component, decode(texts[name], component.path, lambda path: tensors[spelled(path)]))
        after = self._digested(self._parts())
        if wrong := manifest.differences(after):
            asked = "does a callback's load_state_dict set all of it?"
            raise DamagedError(f"not as it was captured after loading: {some(wrong)}: {asked}")
        return manifest

    def _check_part(self, part: ComponentState, paths: Sequence[str], manifest: Manifest, at: int, text: bytes) -> None:
        """Refuses a component that has other tensors here, unless they may differ."""
        component, held = part.component, manifest.held[at]
        if held.places:
            raise DifferenceError(f"{paths[0]} was captured by another framework than this one")
        if component.is_fixed:
            part = replace(part, component=replace(component, put=None))
        check(self._freezing, part, held, text)

    def _tensors(self, capture: Capture) -> dict[str, Any]:
        """Returns the captured tensors by path, each checked by its digest.

        Raises:
            DamagedError: an entry differs from what was sent.
        """
        manifest = capture.manifest
        memory = _mapped(capture)
        addresses = [memory.address + offset for _, offset in manifest.offsets()]
        entries = manifest.entries
        spans = [(number, address, entry.length, 0) for number, (entry, address) in enumerate(zip(entries, addresses, strict=True))]
        digests = _core.digests(len(entries), [(_core.Spans(spans), 0, 0)])
        if digests != manifest.digests:
            for at, held in enumerate(manifest.held):
                for number in range(len(held.section.paths)):
                    begin = (manifest.firsts[at] + number) * DIGEST_BYTES
                    verify_one(manifest, at, number, digests[begin : begin + DIGEST_BYTES])
        return {
            entry.path: self._freezing.tensor_at(TensorMemory(address, entry.length, memory.owner), entry.layout)
            for entry, address in zip(entries, addresses, strict=True)
            if entry.layout.dtype != "value"
        }

    def _parts(self) -> list[ComponentState]:
        return ComponentCache(self._adapter).of(self._components_of(self._survey()))


class _FrozenInventory(Inventory):
    """A state that stays the same, of which some tensors may have been copied while the step before computed it."""

    def __init__(
        self,
        adapter: Adapter,
        ranks: Ranks,
        objects: Mapping[str, Mapping[str, object]],
        components: list[Component],
        absent: tuple[str, ...],
        early: tuple[StepCopy, _core.Reserved] | None,
    ) -> None:
        super().__init__(adapter, ranks, objects, components, absent)
        self._copied = early

    def _pack(self, parts: list[ComponentState], forms: list[CaptureForm], reserved: _core.Reserved) -> bytearray:
        if self._copied is None:
            return super()._pack(parts, forms, reserved)
        step, memory = self._copied
        starts = starts_of([form.held for form in forms])
        located = {
            path: (address, kind.length, start + within)
            for part, form, start in zip(parts, forms, starts, strict=False)
            for path, kind, address, within in zip(
                part.section.paths[1:], part.section.kinds[1:], part.addresses, form.held.starts[1:], strict=False
            )
            if address is not None
        }
        digests_of = step.finish(located if memory is reserved else {})
        firsts = firsts_of([form.held for form in forms])
        left, copied = [], {}
        for part, form, first in zip(parts, forms, firsts, strict=False):
            numbers = {number: digests_of[path] for number, path in enumerate(part.section.paths) if path in digests_of}
            copied.update({first + number: digest for number, digest in numbers.items()})
            left.append(form.without(part, numbers.keys()) if numbers else form)
        digests = super()._pack(parts, left, reserved)
        for number, digest in copied.items():
            put(digests, number, digest)
        return digests


def _mapped(capture: Capture) -> TensorMemory:
    """Maps the memory of a capture, which can't change any more."""
    length = capture.manifest.length
    try:
        mapped = mmap.mmap(capture.descriptor, length, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    except OSError as error:
        raise CloneError(f"the copy of a state of {length:,} bytes can't be mapped: {error}") from error
    owner = np.frombuffer(mapped, np.uint8)
    return TensorMemory(owner.ctypes.data, length, owner)
