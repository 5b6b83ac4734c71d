"""Sharded tensors for ranks that hold other parts of them than the parent's ranks did.

A rank's part of a tensor is a box: a range of each dimension. The adapter tells the boxes of a rank in a component of
the state, by paths. A rank of the clone copies what its own box has in common with the boxes of the parent's ranks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from forebay import _core
from forebay.clone._adapter import StateAdapter
from forebay.clone._capture import Capture
from forebay.clone._errors import DamagedError, DifferenceError
from forebay.clone._filling import put, text_of, verify_digest
from forebay.clone._manifest import DIGEST_BYTES, CapturedSection, Entry, EntryKind, Layout, Placement, Section
from forebay.clone._parts import ComponentState
from forebay.clone._values import Path, decode, spelled

__all__ = ["Box", "in_boxes", "is_sharded"]

AS_MANY = "start the clone with as many ranks as its parent"


class Box(NamedTuple):
    """The part of a tensor that a rank holds; sizes and indices by dimension.

    Attributes:
        whole: sizes of the whole tensor.
        start: index of the part's first element.
        shape: sizes of the part; 0 if the rank holds nothing of it.
    """

    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def _ends(self) -> tuple[int, ...]:
        return tuple(at + size for at, size in zip(self.start, self.shape, strict=True))

    def common(self, other: "Box") -> "Box | None":
        """Returns what two boxes of a tensor have in common; None if that is nothing."""
        start = tuple(map(max, self.start, other.start))
        ends = map(min, self._ends, other._ends)
        shape = tuple(end - first for end, first in zip(ends, start, strict=True))
        return Box(self.whole, start, shape) if all(size > 0 for size in shape) else None

    def element(self, index: Sequence[int], steps: Sequence[int]) -> int:
        """Returns the place of an element in this part, which has these steps from one to the next of a dimension."""
        return sum((at - start) * step for at, start, step in zip(index, self.start, steps, strict=True))


class _RankState(NamedTuple):
    """The captured state of a rank of the parent.

    Attributes:
        capture: its bytes.
        boxes: boxes of its tensors, by what the paths of their entries begin with.
        entries: its entries with their offsets in the capture, by path.
    """

    capture: Capture
    boxes: Mapping[str, Box]
    entries: Mapping[str, tuple[Entry, int]]


# As `_core.copy_boxes` takes it.
_BoxCopy = tuple[tuple[int, int], int, tuple[int, Sequence[int]], tuple[int, Sequence[int]], Sequence[int]]


def is_sharded(capture: Capture) -> bool:
    """Returns whether a capture holds only parts of some tensors."""
    return any(kind.placement is Placement.SHARDED for held in capture.manifest.held for kind in set(held.section.kinds))


def in_boxes(
    captures: Sequence[Capture], parts: Mapping[str, ComponentState], adapter: StateAdapter, memory: Callable[[int], _core.Reserved]
) -> Capture:
    """Returns a capture of rank 0's state in which each sharded tensor is the part that this process holds.

    Args:
        captures: the states of all ranks of the parent, in their order.
        parts: components of this process's state, by path.
        adapter: the framework.
        memory: allocates at least as many bytes as it is given.

    Raises:
        DifferenceError: it is unknown which part a rank holds, ranks that hold the same part differ, or a tensor has
            other sizes here.
        DamagedError: no state can be like that, or bytes are not those that were sent.
        CloneError: there is no memory for the copy.
    """
    here = {path: box for part in parts.values() if part.component.tells_boxes for path, box in _boxes(part.text, part.component.path)}
    layouts = {path: kind.layout for part in parts.values() for path, kind in zip(part.section.paths, part.section.kinds, strict=True)}
    ranks = [_RankState(capture, _told(capture, parts), _entries(capture)) for capture in captures]
    first = captures[0].manifest
    wanted = replace(first, held=tuple(_divided(held, here, layouts, adapter) for held in first.held))
    reserved = memory(wanted.length)
    kept: list[tuple[int, int, int, int]] = []
    sharded: list[tuple[int, int, int, int]] = []
    copies: list[list[_BoxCopy]] = [[] for _ in captures]
    sent: list[list[Entry]] = [[] for _ in captures]
    for number, ((entry, at), (mine, to)) in enumerate(zip(first.offsets(), wanted.offsets(), strict=True)):
        if entry.placement is not Placement.SHARDED:
            kept.append((number, reserved.address + to, entry.length, at))
            continue
        sharded.append((number, reserved.address + to, mine.length, 0))
        for rank, source, copy in _planned(mine, to, _box_of(here, mine.path), ranks, adapter):
            sent[rank].append(source)
            copies[rank].append(copy)
    count = len(first.entries)
    digests = bytearray(_core.fill(captures[0].descriptor, count, [(_core.Spans(kept), 0, 0)]))
    for number, *_ in kept:
        verify_digest(first.entries[number].path, _of(digests, number), _of(first.digests, number))
    for capture, of_rank, entries in zip(captures, copies, sent, strict=True):
        if not of_rank:
            continue
        found = _core.copy_boxes(capture.descriptor, (reserved.address, reserved.length), of_rank)
        for entry, digest in zip(entries, found, strict=True):
            verify_digest(entry.path, digest, bytes.fromhex(entry.digest))
    of_parts = _core.digests(count, [(_core.Spans(sharded), 0, 0)])
    for number, *_ in sharded:
        put(digests, number, _of(of_parts, number))
    return Capture(replace(wanted, digests=bytes(digests)), reserved.seal(wanted.length))


def _of(digests: bytes | bytearray, number: int) -> bytes:
    return bytes(digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES])


def _boxes(text: bytes, path: Path) -> Iterator[tuple[str, Box]]:
    """Yields the boxes that a component tells, each with the path that its entries begin with.

    Raises:
        DamagedError: the component tells something else.
    """
    # There are no tensors in it.
    told = decode(text, path, lambda _: None)
    for name, numbers in told.items() if isinstance(told, dict) else [("", None)]:
        if not isinstance(numbers, list) or len(numbers) != 3 or not all(isinstance(one, list) for one in numbers):
            raise DamagedError(f"{spelled(path)}: {name!r} has no sizes, beginning and sizes of a part")
        box = Box(*map(tuple, numbers))
        is_part = len(box.whole) == len(box.start) == len(box.shape) and all(type(one) is int for numbers in box for one in numbers)
        if not is_part or not all(0 <= at <= at + size <= of for of, at, size in zip(*box, strict=True)):
            raise DamagedError(f"{spelled(path)}: {name!r} is not a part of a tensor: {numbers}")
        yield f"{spelled(path[:-1])}/{name}", box


def _told(capture: Capture, parts: Mapping[str, ComponentState]) -> dict[str, Box]:
    """Returns the boxes of a rank of the parent."""
    found: dict[str, Box] = {}
    for at, held in enumerate(capture.manifest.held):
        part = parts.get(held.section.paths[0])
        if part is not None and part.component.tells_boxes:
            found.update(_boxes(text_of(capture, at), part.component.path))
    return found


def _entries(capture: Capture) -> dict[str, tuple[Entry, int]]:
    return {entry.path: (entry, offset) for entry, offset in capture.manifest.offsets()}


def _box_of(boxes: Mapping[str, Box], path: str) -> Box:
    """Returns the box of an entry: that of the longest path that its own begins with.

    Raises:
        DifferenceError: nothing is known of it.
    """
    begin = path
    while begin and begin not in boxes:
        begin = begin.rpartition("/")[0]
    if not begin:
        raise DifferenceError(f"{path} is sharded, and nothing tells which part of it a rank holds: {AS_MANY}")
    return boxes[begin]


def _divided(held: CapturedSection, here: Mapping[str, Box], layouts: Mapping[str, Layout], adapter: StateAdapter) -> CapturedSection:
    """Returns a section with the layouts that its sharded tensors have in this process."""
    section = held.section
    if not any(kind.placement is Placement.SHARDED for kind in section.kinds):
        return section.whole
    kinds = []
    for path, kind in zip(section.paths, section.kinds, strict=True):
        if kind.placement is Placement.SHARDED:
            shape = _box_of(here, path).shape
            layout = layouts.get(path)
            if layout is None or (layout.dtype, layout.shape) != (kind.layout.dtype, shape):
                layout = Layout.in_order(kind.layout.dtype, shape, kind.layout.device)
            kinds.append(EntryKind(Placement.SHARDED, layout, adapter.length(layout)))
        else:
            kinds.append(kind)
    return Section(section.paths, tuple(kinds)).whole


def _planned(mine: Entry, to: int, box: Box, ranks: Sequence[_RankState], adapter: StateAdapter) -> Iterator[tuple[int, Entry, _BoxCopy]]:
    """Yields what is copied for an entry: the number of the rank that has it, that rank's entry, and the copy.

    Args:
        mine: the entry as this process holds it.
        to: its offset in this process's memory in bytes.
        box: its box.
        ranks: all ranks of the parent.
        adapter: the framework.

    Raises:
        DifferenceError: ranks that hold the same part differ, parts overlap or are cut otherwise than told, or the
            tensor has other sizes here.
        DamagedError: the ranks do not hold all of it.
    """
    path = mine.path
    element = adapter.length(Layout(mine.layout.dtype, (1,), (1,), mine.layout.device))
    seen: dict[Box, tuple[int, Entry]] = {}
    copied: list[Box] = []
    for rank, state in enumerate(ranks):
        if path not in state.entries:
            continue
        source, at = state.entries[path]
        theirs = _box_of(state.boxes, path)
        if theirs.whole != box.whole:
            raise DifferenceError(f"{path} differs: {list(theirs.whole)} where the state was captured, {list(box.whole)} here")
        if source.place is not None or (source.layout.dtype, source.layout.shape) != (mine.layout.dtype, theirs.shape):
            raise DifferenceError(f"{path}: rank {rank} has {source.layout}, which is not cut as its parameter: {AS_MANY}")
        if source.length != adapter.length(source.layout):
            raise DamagedError(f"{path}: {source.length} bytes are not {source.layout}")
        other, same = seen.setdefault(theirs, (rank, source))
        if same.digest != source.digest:
            raise DifferenceError(f"{path} is not the same in rank {other} and rank {rank} of its parent, which hold the same part of it")
        common = box.common(theirs)
        if common is None or other != rank:
            continue
        if any(common.common(before) for before in copied):
            raise DifferenceError(f"{path}: parts that its parent's ranks hold overlap: {AS_MANY}")
        copied.append(common)
        from_ = theirs.element(common.start, source.layout.strides)
        # Offsets of entries are multiples of 64, and so of an element's bytes.
        into = to // element + box.element(common.start, mine.layout.strides)
        yield rank, source, ((at, source.length), element, (from_, source.layout.strides), (into, mine.layout.strides), common.shape)
    held, wanted = sum(math.prod(part.shape) for part in copied), math.prod(box.shape)
    if held != wanted:
        raise DamagedError(f"{path}: its parent's ranks hold {held} of the {wanted} elements of this rank's part")
