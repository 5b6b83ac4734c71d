"""Loading of a component: its tensors, filled with the bytes of a captured state and checked by digest."""

import ctypes
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay import _core
from forebay.clone._adapter import Adapter, Component, StateAdapter, TensorMemory
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError, DifferenceError
from forebay.clone._manifest import DIGEST_BYTES, CapturedSection, Layout, Manifest, Section
from forebay.clone._parts import ComponentCache, ComponentState, Expected
from forebay.clone._read_lease import ParentTensors
from forebay.clone._values import Path, decode, spelled

__all__ = [
    "LoadPlan",
    "VerifiedTensors",
    "by_component",
    "check",
    "fill",
    "make",
    "memory_of",
    "put",
    "put_component",
    "some",
    "text_of",
    "verify_digest",
    "verify_one",
]

UNKNOWN_DIGEST = bytes(DIGEST_BYTES)
NAMED_MAX = 5
"""Entries that one message names."""


@dataclass(frozen=True)
class LoadPlan:
    """The target to which a component is loaded.

    Attributes:
        part: the component as it is here.
        held: its section as it is expected.
        text: its values as they are expected.
        tree: containers that are to be set, with tensors in them; None where nothing can be set.
        tensors: tensors to be filled, in the order of the section's entries but the first.
        addresses: for each tensor the address to which its bytes can be written; else None.
        in_place: for each writable tensor that was not copied: its position among those not copied, its number, and
            its address.
        copied: writable tensors whose bytes a capture has.
        located: all writable tensors.
        expected: the description that the component will have, if that is known.
    """

    part: ComponentState
    held: CapturedSection
    text: bytes
    tree: object
    tensors: Sequence[Any]
    addresses: Sequence[int | None]
    in_place: Sequence[tuple[int, int, int]]
    copied: _core.Spans
    located: _core.Spans
    expected: Expected | None

    def is_of(self, part: ComponentState, held: CapturedSection, text: bytes) -> bool:
        """Returns whether the plan fits a component as it has come."""
        return self.part is part and self.held is held and self.text == text

    @property
    def is_there(self) -> bool:
        """Returns whether nothing need be set.

        The values are equal, there are no tensors, and setting them has no other effect.
        """
        return self.part.component.is_plain and not self.tensors and not self.part.tensors and self.text == self.part.text

    @property
    def name(self) -> str:
        """Path of the component."""
        return self.held.section.paths[0]


@dataclass(frozen=True)
class VerifiedTensors:
    """Tensors of a component whose bytes were digested as they were written to their final addresses.

    Attributes:
        tensors: all tensors of the component.
        addresses: their addresses.
        versions: their version numbers.
        digests: digests of all entries.
        unverified: numbers of tensors that have an address and have to be digested once more.
        located: spans of the unverified tensors.
    """

    tensors: Sequence[Any]
    addresses: Sequence[int | None]
    versions: list[int]
    digests: bytes
    unverified: frozenset[int]
    located: _core.Spans

    def put(self, digests: bytearray, first: int) -> None:
        """Writes the digests of verified tensors; `first` is the number of the component's first entry among all."""
        begin = (first + 1) * DIGEST_BYTES
        if not self.unverified and None not in self.addresses:
            digests[begin : begin + len(self.digests) - DIGEST_BYTES] = self.digests[DIGEST_BYTES:]
            return
        for number, address in enumerate(self.addresses, 1):
            if address is not None and number not in self.unverified:
                put(digests, first + number, self.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES])

    def is_still(self, part: ComponentState, adapter: Adapter) -> bool:
        """Returns whether no counted write has changed the tensors."""
        if len(part.tensors) != len(self.tensors) or not all(map(operator.is_, part.tensors, self.tensors)):
            return False
        return part.addresses == self.addresses and adapter.versions(self.tensors) == self.versions


def make(
    adapter: Adapter,
    described: ComponentCache,
    part: ComponentState,
    held: CapturedSection,
    text: bytes,
    empty: Callable[[Layout], Any],
    before: LoadPlan | None = None,
) -> LoadPlan:
    """Plans the loading of a component: to its own tensors where the layouts are equal, else to new ones.

    Changes nothing.

    Args:
        adapter: knows the tensors.
        described: describes components.
        part: the component as it is here.
        held: its section as it has come.
        text: its values as they have come.
        empty: makes a tensor whose source is in shared memory.
        before: plan for the section as it was expected: its new tensors are reused first.

    Raises:
        DifferenceError: the component can't be set, and differs from what has come.
        DamagedError: no state can be like that.
    """
    check(adapter, part, held, text)
    component, section = part.component, held.section
    tree, expected = None, None
    tensors, addresses = part.tensors, part.addresses
    if component.put is not None:
        tree, tensors, addresses = _received(adapter, part, held, text, empty, before)
        if component.steady and all(kind.placement is component.placement for kind in section.kinds):
            # After loading it is only compared with that: describing thousands of tensors takes long.
            expected = described.expected(ComponentState(component, text, section, tensors, addresses), tree)
    numbered = [
        (number, address, kind.length, start)
        for number, (address, kind, start) in enumerate(zip(addresses, section.kinds[1:], held.starts[1:-1], strict=True), 1)
        if address is not None
    ]
    copied = _core.Spans([span for span in numbered if span[0] not in held.places])
    there = ((position, number, addresses[number - 1]) for position, number in enumerate(held.places))
    in_place = [(position, number, address) for position, number, address in there if address is not None]
    return LoadPlan(part, held, text, tree, tensors, addresses, in_place, copied, _core.Spans(numbered), expected)


def check(adapter: StateAdapter, part: ComponentState, held: CapturedSection, text: bytes) -> None:
    """Checks that the length of every entry fits its layout, and that a component which can't be set is the same.

    Raises:
        DifferenceError: the component can't be set, and differs from what has come.
        DamagedError: an entry has another length than its layout.
    """
    section, mine = held.section, part.section
    for kind in set(section.kinds[1:]):
        if kind.length != adapter.length(kind.layout):
            path = section.paths[section.kinds.index(kind, 1)]
            raise DamagedError(f"{path}: {kind.length} bytes are no {kind.layout}")
    if part.component.put is not None:
        return
    if section != mine:
        theirs, ours = (dict(zip(one.paths[1:], [kind.layout for kind in one.kinds[1:]], strict=True)) for one in (section, mine))
        for path in {**theirs, **ours}:
            if theirs.get(path) != ours.get(path):
                there, here = theirs.get(path, "nothing"), ours.get(path, "nothing")
                raise DifferenceError(f"{path} differs: {there} where the state was captured, {here} here")
        if section.paths != mine.paths:
            raise DamagedError(f"{section.paths[0]}: its entries are in another order than here")
    if text != part.text:
        there, here = _shortened(text), _shortened(part.text)
        raise DifferenceError(f"{section.paths[0]} differs: {there} where the state was captured, {here} here")


def _received(
    adapter: Adapter, part: ComponentState, held: CapturedSection, text: bytes, empty: Callable[[Layout], Any], before: LoadPlan | None
) -> tuple[object, list[Any], list[int | None]]:
    """Returns a component's containers, the tensors in them, and the addresses to which these can be written."""
    section = held.section
    own = _by_path(part.section, part.tensors, part.addresses)
    spare = _by_path(before.held.section, before.tensors, before.addresses) if before else {}
    numbers = {path: number for number, path in enumerate(section.paths[1:], 1)}
    found: dict[int, tuple[Any, int | None]] = {}

    def tensor(path: Path) -> object:
        spelt = spelled(path)
        number = numbers.pop(spelt)
        layout = section.kinds[number].layout
        known, one, address = own.get(spelt, NOTHING)
        if known != layout:
            known, one, address = spare.get(spelt, NOTHING)
        if known != layout:
            one = (empty if number in held.places else adapter.empty)(layout)
            # A tensor that was just made is contiguous.
            address = adapter.begin(one) if layout.device == "cpu" else None
        found[number] = (one, address)
        return one

    tree = decode(text, part.component.path, tensor)
    if numbers:
        raise DamagedError(f"{section.paths[0]} does not mention {some(list(numbers))}")
    in_order = [found[number] for number in range(1, len(section.paths))]
    return tree, [one for one, _ in in_order], [address for _, address in in_order]


NOTHING = (None, None, None)


def _by_path(section: Section, tensors: Sequence[Any], addresses: Sequence[int | None]) -> dict[str, tuple[Layout | None, Any, int | None]]:
    layouts = [kind.layout for kind in section.kinds[1:]]
    return dict(zip(section.paths[1:], zip(layouts, tensors, addresses, strict=True), strict=True))


def fill(
    adapter: Adapter, made: Sequence[LoadPlan], numbers: Sequence[int], capture: Capture, remote: ParentTensors | None
) -> tuple[bytes, dict[str, VerifiedTensors]]:
    """Fills the tensors of components.

    Args:
        adapter: the framework.
        made: load plans of the components.
        numbers: for each component the number of its section in the capture's manifest.
        capture: the bytes of the entries that were copied.
        remote: reader of all other entries.

    Returns:
        The digests of all entries, and the verified tensors of components that are unchanged between steps, by path.

    Raises:
        CloneError: what the capture does not hold could not be read.
        DamagedError: an entry differs from what was sent.
    """
    manifest = capture.manifest
    firsts, starts = manifest.firsts, manifest.starts
    digests = bytearray(manifest.digests)
    # Entries in the parent's memory come first: its next step ends the read lease.
    _read(made, numbers, manifest, remote, digests)
    _fill_by_way(adapter, made, numbers, capture, remote, digests)
    try:
        copied = _core.fill(
            capture.descriptor, firsts[-1], [(one.copied, starts[at], firsts[at]) for one, at in zip(made, numbers, strict=True)]
        )
    except OSError as error:
        raise _unreadable(error) from error
    _verify(made, numbers, manifest, copied)
    verified = {}
    # A tensor with gaps may share memory with any other.
    has_gaps = any(
        address is None and kind.layout.device == "cpu"
        for one in made
        for address, kind in zip(one.addresses, one.held.section.kinds[1:], strict=True)
    )
    for one, at, shared in zip(made, numbers, _core.overlapping([one.located for one in made]), strict=True):
        if one.part.component.steady:
            of_section = bytes(digests[firsts[at] * DIGEST_BYTES : firsts[at + 1] * DIGEST_BYTES])
            # Of two tensors that share memory only the last one written has its bytes.
            unverified = frozenset(number for number, address in enumerate(one.addresses, 1) if address) if has_gaps else frozenset(shared)
            located = [(number, one.addresses[number - 1] or 0, one.held.section.kinds[number].length, 0) for number in unverified]
            verified[one.name] = VerifiedTensors(
                one.tensors, one.addresses, adapter.versions(one.tensors), of_section, unverified, _core.Spans(located)
            )
    return bytes(digests), verified


def _read(made: Sequence[LoadPlan], numbers: Sequence[int], manifest: Manifest, remote: ParentTensors | None, digests: bytearray) -> None:
    """Reads the entries that were not copied and whose tensors can be written to directly."""
    wanted: list[tuple[int, int]] = []
    places: list[tuple[int, int]] = []
    if remote is None:
        return
    for one, at in zip(made, numbers, strict=True):
        before = remote.before(at)
        wanted += [(before + position, address) for position, _, address in one.in_place]
        places += [(at, number) for _, number, _ in one.in_place]
    found = remote.read(wanted)
    for position, (at, number) in enumerate(places):
        _put_read(manifest, at, number, found[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES], digests)


def _put_read(manifest: Manifest, at: int, number: int, digest: bytes, digests: bytearray) -> None:
    """Sets the digest of an entry that was read under a lease, and compares it where it was known before.

    It is known where the state has come from another host.

    Raises:
        DamagedError: they differ.
    """
    begin = (manifest.firsts[at] + number) * DIGEST_BYTES
    if manifest.digests[begin : begin + DIGEST_BYTES] != UNKNOWN_DIGEST:
        verify_one(manifest, at, number, digest)
    digests[begin : begin + DIGEST_BYTES] = digest


def _fill_by_way(
    adapter: Adapter, made: Sequence[LoadPlan], numbers: Sequence[int], capture: Capture, remote: ParentTensors | None, digests: bytearray
) -> None:
    """Fills tensors whose bytes can't be written to directly, by way of a buffer."""
    manifest = capture.manifest
    # Component, section, number.
    entries = [
        (one, at, number)
        for one, at in zip(made, numbers, strict=True)
        for number, address in enumerate(one.addresses, 1)
        if address is None or (number in one.held.places and remote is None)
    ]
    # Entries in the parent's memory come first, as in `fill`.
    entries.sort(key=lambda entry: entry[2] not in entry[0].held.places)
    kinds = [one.held.section.kinds[number] for one, _, number in entries]
    copied = [place for place, (one, _, number) in enumerate(entries) if number not in one.held.places]
    positions = {place: position for position, place in enumerate(copied)}
    pieces = _core.Pieces([kinds[place].length for place in copied])
    for batch in adapter.inward([one.tensors[number - 1] for one, _, number in entries], [kind.layout for kind in kinds]):
        reads = []
        for piece in batch:
            one, at, number = entries[piece.number]
            if number not in one.held.places:
                start = manifest.starts[at] + one.held.starts[number] + piece.start
                reads.append((positions[piece.number], start, piece.address, piece.length))
            elif remote is None:
                raise CloneError(f"{one.held.section.paths[number]} was not copied, and its job is not there to be read from")
            else:
                position = remote.before(at) + list(one.held.places).index(number)
                _put_read(manifest, at, number, remote.read([(position, piece.address)]), digests)
        try:
            pieces.read(capture.descriptor, reads)
        except OSError as error:
            raise _unreadable(error) from error
    for place, digest in zip(copied, pieces.digests(), strict=True):
        one, at, number = entries[place]
        verify_one(manifest, at, number, digest)


def put_component(component: Component, value: object) -> None:
    """Sets a component; its object may raise errors of its own."""
    try:
        component.put(value)  # type: ignore[misc]
    except CloneError:
        raise
    except Exception as error:
        raise DamagedError(f"{spelled(component.path)} could not be set: {type(error).__name__}: {error}") from error


def put(digests: bytearray, number: int, digest: bytes) -> None:
    """Sets the digest of one of all entries."""
    digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] = digest


def _verify(made: Sequence[LoadPlan], numbers: Sequence[int], manifest: Manifest, found: bytes) -> None:
    """Checks the digests of entries that were copied; `found` has none of the others."""
    for one, at in zip(made, numbers, strict=True):
        first, sent = manifest.firsts[at], manifest.digests
        of_tensors = slice((first + 1) * DIGEST_BYTES, manifest.firsts[at + 1] * DIGEST_BYTES)
        if found[of_tensors] == sent[of_tensors]:
            continue
        for number, address in enumerate(one.addresses, 1):
            if address is not None and number not in one.held.places:
                begin = (first + number) * DIGEST_BYTES
                verify_one(manifest, at, number, found[begin : begin + DIGEST_BYTES])


def _unreadable(error: OSError) -> DamagedError:
    return DamagedError(f"the copy of a state can't be read: {error}")


def text_of(capture: Capture, at: int) -> bytes:
    """Returns the encoded values of a section.

    Raises:
        DamagedError: they do not have the digest that was sent.
    """
    manifest = capture.manifest
    text = os.pread(capture.descriptor, manifest.held[at].section.kinds[0].length, manifest.starts[at])
    memory = memory_of(text)
    verify_one(manifest, at, 0, bytes.fromhex(_core.digest(memory.address, memory.length)))
    return text


def memory_of(text: bytes) -> TensorMemory:
    """Returns the memory of a text."""
    return TensorMemory(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0, len(text), text)


def verify_one(manifest: Manifest, at: int, number: int, digest: bytes) -> None:
    """Compares the digest of an entry, by the numbers of its section and in it, with the one that was sent.

    Raises:
        DamagedError: they differ.
    """
    begin = (manifest.firsts[at] + number) * DIGEST_BYTES
    verify_digest(manifest.held[at].section.paths[number], digest, manifest.digests[begin : begin + DIGEST_BYTES])


def verify_digest(path: str, digest: bytes, sent: bytes) -> None:
    """Compares the digest of the entry at a path with the one that was sent.

    Raises:
        DamagedError: they differ.
    """
    if digest != sent:
        raise DamagedError(f"{path}: the bytes that arrived have the digest {digest.hex()}; sent was {sent.hex()}")


def some(paths: Sequence[str]) -> str:
    """Returns the first paths in words, and the number of the others."""
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: bytes) -> str:
    return text.decode(errors="replace") if len(text) <= 200 else f"{text[:200].decode(errors='replace')}..."


def by_component(manifest: Manifest, parts: Mapping[str, object]) -> dict[str, int]:
    """Returns the number of each component's section."""
    found: dict[str, int] = {}
    for at, held in enumerate(manifest.held):
        name = held.section.paths[0]
        if (stranger := held.section.stranger if name in parts else name) is not None:
            raise DifferenceError(f"the captured state has {stranger}, for which there is no place here")
        if not held.section.has_values_first:
            raise DamagedError(f"{name}: values and tensors have changed places")
        found[name] = at
    if lacking := [name for name in parts if name not in found]:
        raise DifferenceError(f"the captured state lacks {some(lacking)}")
    return found
