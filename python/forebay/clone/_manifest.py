"""The manifest: all entries of a state, each with its digest."""

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from forebay.clone._errors import DamagedError

__all__ = ["DIGEST_BYTES", "VALUE", "CapturedSection", "Entry", "EntryKind", "Layout", "Manifest", "Placement", "Section"]

FORMAT = "forebay clone manifest 5"
MANIFEST_BYTES_MAX = 256 << 20
ALIGNMENT_BYTES = 64
DIGEST_BYTES = 16
UNKNOWN = bytes(DIGEST_BYTES)
"""Digest of an entry that was not copied: a clone computes it while it reads."""
COUNTS_END = 1 << 62
_INT, _TEXT, _LISTS = frozenset((int,)), frozenset((str,)), frozenset((list,))
VALUE = "value"
"""Element type of an entry that is no tensor, but typed JSON."""


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


_READ = {placement.value: placement for placement in Placement}


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
    def line(self) -> bytes:
        """The section as JSON, by columns."""
        numbers: dict[EntryKind, int] = {}
        # By identity first, which takes a third of the time.
        known: dict[int, int] = {}
        for kind in self.kinds:
            if id(kind) not in known:
                known[id(kind)] = numbers.setdefault(kind, len(numbers))
        kinds = [[kind.placement.value, *kind.layout, kind.length] for kind in numbers]
        return _as_json({"paths": self.paths, "kinds": kinds, "kind_of": [known[id(kind)] for kind in self.kinds]})

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
    def read(cls, line: bytes) -> "Section":
        """Reads a section from its JSON, which is not trusted.

        Raises:
            ValueError: it is no section; or a `TypeError`, or a `LookupError`.
        """
        fields = json.loads(line)
        paths, numbers = _column(fields.pop("paths"), _TEXT), _counts(fields.pop("kind_of"))
        kinds = [_kind(*one) for one in _column(fields.pop("kinds"), _LISTS)]
        if fields:
            raise ValueError(f"nobody knows {', '.join(fields)}")
        if len(paths) != len(numbers) or not paths:
            raise ValueError("its columns are not of one length, or have nothing in them at all")
        read = cls(tuple(paths), tuple([kinds[number] for number in numbers]))
        # Most likely identical with the JSON that would be written, and equivalent in any case.
        vars(read)["line"] = line
        return read


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
    def line(self) -> bytes:
        """The places as JSON."""
        return _as_json([[number, *place] for number, place in self.places.items()])

    @classmethod
    def read(cls, section: Section, line: bytes) -> "CapturedSection":
        """Reads the places of a section's entries from JSON, which is not trusted.

        Raises:
            ValueError: they are invalid; or a `TypeError`.
        """
        if line == b"[]":
            return section.whole
        places: dict[int, tuple[int, int]] = {}
        last = 0
        for place in _column(json.loads(line), _LISTS):
            number, *where = _counts(place)
            if len(where) != 2 or not last < number < len(section.paths):
                raise ValueError(f"{place!r} is no place of one more of its tensors")
            places[number] = (where[0], where[1])
            last = number
        read = cls(section, places)
        vars(read)["line"] = line
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

    def to_json(self) -> bytes:
        """Returns the manifest as JSON: a line of its own, and two for each section."""
        return self._json

    @functools.cached_property
    def _json(self) -> bytes:
        fields = {
            "format": FORMAT,
            "framework": self.framework,
            "rank": self.rank,
            "ranks": self.ranks,
            "absent": self.absent,
            "digests": self.digests.hex(),
        }
        return b"\n".join((_as_json(fields), *lines_of(self.held)))

    @classmethod
    def from_json(cls, text: bytes, known: Iterable[CapturedSection] = ()) -> "Manifest":
        """Reads a manifest that is not trusted.

        Args:
            text: JSON in the form of `to_json`.
            known: sections that may be in it: they need not be parsed, and are reused with their cached properties.

        Raises:
            DamagedError: it is not what `to_json` writes.
        """
        try:
            if len(text) > MANIFEST_BYTES_MAX:
                raise ValueError(f"{len(text):,} bytes; the most is {MANIFEST_BYTES_MAX:,}")
            first, *lines = text.split(b"\n")
            fields = json.loads(first)
            if fields.pop("format") != FORMAT:
                raise ValueError(f"not of the format {FORMAT!r}: use the same version of Forebay on both sides")
            absent = tuple(map(_text, fields.pop("absent")))
            framework, rank, ranks = _text(fields.pop("framework")), _count(fields.pop("rank")), _count(fields.pop("ranks"))
            digests = bytes.fromhex(_text(fields.pop("digests")))
            if fields:
                raise ValueError(f"nobody knows {', '.join(fields)}")
            read = cls(framework, rank, ranks, absent, held_of(lines, known), digests)
            read._check()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DamagedError(f"not a manifest: {error}") from error
        return read

    def _check(self) -> None:
        if len(self.digests) != self.firsts[-1] * DIGEST_BYTES:
            raise ValueError("it has not one digest for each entry")
        if len(set().union(*(held.section.paths for held in self.held))) != self.firsts[-1]:
            raise ValueError("a path stands twice")
        for held, first in zip(self.held, self.firsts, strict=False):
            for number in held.places:
                at = (first + number) * DIGEST_BYTES
                if self.digests[at : at + DIGEST_BYTES] != UNKNOWN:
                    raise ValueError(f"{held.section.paths[number]}: a digest of what was not copied is no digest")


def firsts_of(held: Iterable[CapturedSection]) -> list[int]:
    """Returns `Manifest.firsts` of sections."""
    return list(itertools.accumulate([len(one.section.paths) for one in held], initial=0))


def starts_of(held: Iterable[CapturedSection]) -> list[int]:
    """Returns `Manifest.starts` of sections."""
    return list(itertools.accumulate([one.starts[-1] for one in held], initial=0))


def lines_of(held: Iterable[CapturedSection]) -> list[bytes]:
    """Returns sections as JSON, two lines each."""
    return [line for one in held for line in (one.section.line, one.line)]


def held_of(lines: list[bytes], known: Iterable[CapturedSection] = ()) -> tuple[CapturedSection, ...]:
    """Reads sections from the form of `lines_of`, which is not trusted.

    Args:
        lines: two lines for each section.
        known: sections that are reused where they are equal.

    Raises:
        ValueError: the lines are invalid; or a `TypeError`, or a `LookupError`.
    """
    if len(lines) % 2 or not lines:
        raise ValueError("it has no sections, or half of one")
    sections = {one.section.line: one for one in known}
    found = []
    for section_line, line in zip(lines[::2], lines[1::2], strict=True):
        like = sections.get(section_line)
        if like is not None and like.line == line:
            found.append(like)
        else:
            found.append(CapturedSection.read(like.section if like else Section.read(section_line), line))
    return tuple(found)


def offsets(lengths: list[int]) -> Iterator[int]:
    """Yields the aligned offset of each length, in bytes, and last, the end of all."""
    return itertools.accumulate([aligned(length) for length in lengths], initial=0)


def aligned(length: int) -> int:
    """Bytes from where so many begin to where the next may."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _column(values: object, kind: frozenset[type]) -> list[Any]:
    if not isinstance(values, list) or not kind.issuperset(map(type, values)):
        raise ValueError(f"{values!r:.100} is no list of {' or '.join(one.__name__ for one in kind)}")
    return values


def _counts(values: object) -> list[int]:
    numbers: list[int] = _column(values, _INT)
    if numbers and not 0 <= min(numbers) <= max(numbers) < COUNTS_END:
        raise ValueError(f"{values!r:.100}: one is no count")
    return numbers


def _kind(placement: object, dtype: object, shape: object, strides: object, device: object, length: object) -> EntryKind:
    sizes, steps = _counts(shape), _counts(strides)
    if len(sizes) != len(steps):
        raise ValueError("shape and strides are not of one length")
    return EntryKind(_READ[_text(placement)], Layout(_text(dtype), tuple(sizes), tuple(steps), _text(device)), _count(length))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < COUNTS_END:
        raise ValueError(f"{value!r} is no count")
    return value
