"""The manifest: all entries of a state, each with its digest."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from forebay import _core
from forebay.clone._errors import DamagedError

__all__ = ["DIGEST_BYTES", "VALUE", "CapturedSection", "Entry", "EntryKind", "Layout", "Manifest", "Placement", "Section"]

ALIGNMENT_BYTES = 64
DIGEST_BYTES = 16
VALUE = "value"
"""Element type of an entry of values in typed JSON."""


class Placement(Enum):
    """Placement of an entry on the ranks of a job."""

    REPLICATED = "replicated"
    """All ranks hold the same bytes."""
    SHARDED = "sharded"
    """Each rank holds a part of one tensor."""
    PER_RANK = "per rank"
    """Each rank holds its own: generators, BatchNorm's running statistics, gradients, the loader's position."""
    LEADING = "leading"
    """Each rank holds its own until the next forward pass, which gives all of them rank 0's: buffers under DDP."""


class Layout(NamedTuple):
    """Layout of a tensor's elements in memory.

    Attributes:
        dtype: the framework's name of the element type; `VALUE` for typed JSON.
        shape: sizes, those of this rank's part if the tensor is sharded.
        strides: in elements, without gaps between them; 1 where the size is at most 1.
        device: the kind of device, such as `cpu`.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> "Layout":
        """Returns the layout of elements with these strides; those where the size is at most 1 are arbitrary."""
        return cls(dtype, tuple(shape), tuple(stride if size > 1 else 1 for size, stride in zip(shape, strides, strict=True)), device)

    @classmethod
    def in_order(cls, dtype: str, shape: Sequence[int], device: str) -> "Layout":
        """Returns the layout of elements in the order of their dimensions, the last dimension fastest."""
        return cls.of(dtype, shape, [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))], device)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}, strides {list(self.strides)}, on {self.device}"


class EntryKind(NamedTuple):
    """Properties that many entries have in common.

    Attributes:
        placement: placement on the ranks.
        layout: type, sizes, strides, kind of device.
        length: bytes.
    """

    placement: Placement
    layout: Layout
    length: int

    @classmethod
    def of_values(cls, placement: Placement, text: bytes) -> "EntryKind":
        """Returns the kind of an entry of encoded values."""
        return cls(placement, Layout(VALUE, (len(text),), (1,), "cpu"), len(text))


@dataclass(frozen=True)
class Section:
    """The entries of one component, without their contents.

    A state has thousands of entries, training stands still while they are described, and most do not change: so
    everything derived from a section is cached in it, and it is the very same object until a tensor is replaced.

    Attributes:
        paths: paths such as `optimizer/state/fc.weight/exp_avg`: first the component's own, for its values, then one
            a tensor.
        kinds: kinds of the entries; one object for equal kinds.
    """

    paths: tuple[str, ...]
    kinds: tuple[EntryKind, ...]

    @functools.cached_property
    def written(self) -> _core.StateSection:
        """The section in the form in which it is written, with every entry copied."""
        return _core.StateSection(self.paths, self.kinds)

    @functools.cached_property
    def stranger(self) -> str | None:
        """The first path outside the component, if there is one."""
        inside = f"{self.paths[0]}/"
        return next((path for path in self.paths[1:] if not path.startswith(inside)), None)

    @functools.cached_property
    def has_values_first(self) -> bool:
        """True if the first entry is one of values, and all others are tensors."""
        first, *others = self.kinds
        return first.layout.dtype == VALUE and not any(kind.layout.dtype == VALUE for kind in others)

    @functools.cached_property
    def starts(self) -> list[int]:
        """Offsets as in `CapturedSection.starts`, with every entry copied."""
        return list(offsets([kind.length for kind in self.kinds]))

    @property
    def whole(self) -> "CapturedSection":
        """The section in a capture that has copied all of it."""
        return CapturedSection(self, {})

    @classmethod
    def of(cls, written: _core.StateSection) -> "Section":
        """Returns the section that was read in this form."""
        paths, rows, numbers = written.columns()
        kinds = [EntryKind(Placement(row[0]), Layout(row[1], tuple(row[2]), tuple(row[3]), row[4]), row[5]) for row in rows]
        return cls(tuple(paths), tuple([kinds[number] for number in numbers]))


@dataclass(frozen=True)
class CapturedSection:
    """A section as a capture holds it.

    Attributes:
        section: the entries.
        places: shared memory and offset of entries that were not copied, by number and in that order.
    """

    section: Section
    places: Mapping[int, tuple[int, int]]

    @functools.cached_property
    def starts(self) -> list[int]:
        """Offsets of the entries from the first one, in bytes, on multiples of 64; and last, the end of all."""
        if not self.places:
            return self.section.starts
        return list(offsets([0 if number in self.places else kind.length for number, kind in enumerate(self.section.kinds)]))

    @functools.cached_property
    def written(self) -> _core.StateSection:
        """The section in the form in which it is written."""
        whole = self.section.written
        return whole.with_places([(number, *place) for number, place in self.places.items()]) if self.places else whole

    @classmethod
    def of(cls, written: _core.StateSection, section: Section | None = None) -> "CapturedSection":
        """Returns what was read in this form.

        Args:
            written: the form.
            section: the section, if a known one has the same entries.
        """
        read = cls(section or Section.of(written), {number: (memory, offset) for number, memory, offset in written.places})
        vars(read)["written"] = written
        vars(read.section).setdefault("written", written.with_places([]))
        return read


class Entry(NamedTuple):
    """One tensor, or the values of one part of the state.

    Attributes:
        path: path such as `optimizer/state/fc.weight/exp_avg`.
        placement: placement on the ranks.
        layout: type, sizes, strides, kind of device.
        length: bytes.
        digest: XXH3-128 of its bytes, 32 hexadecimal digits; empty for an entry with a place, whose reader computes it.
        place: shared memory and offset of an entry that was not copied.
    """

    path: str
    placement: Placement
    layout: Layout
    length: int
    digest: str
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Manifest:
    """All entries of a rank's state.

    Attributes:
        framework: name and version, such as `torch 2.9.0`.
        rank: rank whose state it is.
        ranks: number of the job's ranks.
        absent: kinds that the job declared absent.
        held: sections, in the order of their bytes.
        digests: XXH3-128 of each entry's bytes, 16 bytes each, in their order; nought for entries that were not copied.
    """

    framework: str
    rank: int
    ranks: int
    absent: tuple[str, ...]
    held: tuple[CapturedSection, ...]
    digests: bytes

    @functools.cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, one by one."""
        digests = (self.digests[at : at + DIGEST_BYTES] for at in range(0, len(self.digests), DIGEST_BYTES))
        of_all = ((held, number) for held in self.held for number in range(len(held.section.paths)))
        return tuple(
            Entry(held.section.paths[number], *held.section.kinds[number], "" if place else digest.hex(), place)
            for (held, number), digest in zip(of_all, digests, strict=True)
            for place in (held.places.get(number),)
        )

    def offsets(self) -> Iterator[tuple[Entry, int]]:
        """Returns each entry with its offset in the capture, in bytes, valid if it was copied."""
        starts = [start + within for held, start in zip(self.held, self.starts, strict=False) for within in held.starts[:-1]]
        return zip(self.entries, starts, strict=True)

    @functools.cached_property
    def firsts(self) -> list[int]:
        """Number of each section's first entry among all; and last, the number of entries."""
        return firsts_of(self.held)

    @functools.cached_property
    def starts(self) -> list[int]:
        """Offset of each section in the capture, in bytes; and last, its end."""
        return starts_of(self.held)

    @property
    def length(self) -> int:
        """Bytes of a capture."""
        return self.starts[-1]

    @property
    def state_length(self) -> int:
        """Bytes of a capture that would hold all of it."""
        return starts_of([held.section.whole for held in self.held])[-1]

    @property
    def in_place(self) -> list[Entry]:
        """The entries that were not copied."""
        return [entry for entry in self.entries if entry.place is not None]

    def read(self, digests: bytes) -> "Manifest":
        """Returns the manifest of the state after all of it was read, with all digests."""
        return replace(self, held=tuple([held.section.whole for held in self.held]), digests=digests)

    def differences(self, other: "Manifest") -> list[str]:
        """Returns the paths of entries that only one of the two has, or that differ in layout or bytes."""
        if self.digests == other.digests and [held.section for held in self.held] == [held.section for held in other.held]:
            return []
        mine, others = ({entry.path: (entry.layout, entry.digest) for entry in manifest.entries} for manifest in (self, other))
        return [path for path in {**mine, **others} if mine.get(path) != others.get(path)]

    @property
    def written(self) -> "_core.WrittenManifest":
        """The manifest in the form in which it is written."""
        absent, sections = list(self.absent), [held.written for held in self.held]
        return self.framework, self.rank, self.ranks, absent, self.digests, sections

    @classmethod
    def of(cls, found: "_core.FoundManifest", known: Sequence[CapturedSection] = ()) -> "Manifest":
        """Returns the manifest that was read in this form.

        Args:
            found: the form.
            known: the sections that were known when it was read: they are reused with their cached properties.
        """
        framework, rank, ranks, absent, digests, sections = found
        held = []
        for written, number in sections:
            like = None if number is None else known[number]
            is_same = like is not None and like.written is written
            held.append(like if like is not None and is_same else CapturedSection.of(written, like.section if like else None))
        return cls(framework, rank, ranks, tuple(absent), tuple(held), digests)

    def to_json(self) -> bytes:
        """Returns the manifest as JSON: a line of its own, and two for each section."""
        return _core.write_manifest(self.written)

    @classmethod
    def from_json(cls, text: bytes, known: Sequence[CapturedSection] = ()) -> "Manifest":
        """Reads a manifest that is not trusted.

        Args:
            text: JSON in the form of `to_json`.
            known: sections that may be in it: they need not be parsed, and are reused with their cached properties.

        Raises:
            DamagedError: it is not what `to_json` writes.
        """
        try:
            found = _core.read_manifest(text, [one.written for one in known])
        except ValueError as error:
            raise DamagedError(str(error)) from error
        return cls.of(found, known)


def firsts_of(held: Iterable[CapturedSection]) -> list[int]:
    """Returns `Manifest.firsts` of sections."""
    return list(itertools.accumulate([len(one.section.paths) for one in held], initial=0))


def starts_of(held: Iterable[CapturedSection]) -> list[int]:
    """Returns `Manifest.starts` of sections."""
    return list(itertools.accumulate([one.starts[-1] for one in held], initial=0))


def offsets(lengths: list[int]) -> Iterator[int]:
    """Yields the aligned offset of each length, in bytes, and last, the end of all."""
    return itertools.accumulate([aligned(length) for length in lengths], initial=0)


def aligned(length: int) -> int:
    """Returns a length in bytes, rounded up to where the next entry may begin."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
