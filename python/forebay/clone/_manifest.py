"""The manifest: what a state consists of, entry by entry, each with its digest."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from forebay.clone._errors import DamagedError

__all__ = ["VALUE", "Entry", "Layout", "Manifest", "Placement"]

FORMAT = "forebay clone manifest 4"
MANIFEST_BYTES_MAX = 256 << 20
ALIGNMENT_BYTES = 64
_DIGEST = re.compile("[0-9a-f]{32}")
COUNTS_END = 1 << 62
_INT, _TEXT, _LISTS = frozenset((int,)), frozenset((str,)), frozenset((list,))
VALUE = "value"
"""The type of an entry that is no tensor, but typed JSON."""


class Placement(Enum):
    """How the ranks of a job hold an entry."""

    REPLICATED = "replicated"
    """All ranks hold the same bytes."""
    SHARDED = "sharded"
    """Each rank holds a part of one tensor."""
    PER_RANK = "per rank"
    """Each rank holds its own: generators, BatchNorm's running statistics, gradients, the loader's position."""
    LEADING = "leading"
    """Each rank holds its own until the next forward pass, which gives all of them rank 0's: buffers under DDP."""


class Layout(NamedTuple):
    """How the elements of a tensor lie in memory.

    Attributes:
        dtype: the framework's name of the element type; `VALUE` for typed JSON.
        shape: sizes; of this rank's part, where the tensor is sharded.
        strides: in elements, without gaps between them; 1 where the size is at most 1.
        device: the kind of device, such as `cpu`.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}, strides {list(self.strides)}, on {self.device}"


class Entry(NamedTuple):
    """One tensor, or the values of one part of the state.

    A named tuple, as layouts are: a state has thousands, made while training stands still, and frozen dataclasses take five times as long.

    Attributes:
        path: where it stands, such as `optimizer/state/fc.weight/exp_avg`.
        placement: how the ranks hold it.
        layout: type, sizes, strides, kind of device.
        length: bytes.
        digest: XXH3-128 of its bytes, 32 hexadecimal digits; empty as long as it has a place, for who reads it there finds out.
        place: of one that was not copied: in which shared memory it lies, and from which offset on.
    """

    path: str
    placement: Placement
    layout: Layout
    length: int
    digest: str
    place: tuple[int, int] | None = None

    @property
    def copied(self) -> int:
        """Bytes of it that a capture holds."""
        return self.length if self.place is None else 0


_WRITTEN = {placement: placement.value for placement in Placement}
_READ = {written: placement for placement, written in _WRITTEN.items()}


@dataclass(frozen=True)
class Manifest:
    """All entries of a rank's state.

    Attributes:
        framework: name and version, such as `torch 2.9.0`.
        rank: of the process whose state it is.
        ranks: how many the job has.
        absent: kinds that the job declared to have none of.
        entries: in the order in which their bytes follow each other.
    """

    framework: str
    rank: int
    ranks: int
    absent: tuple[str, ...]
    entries: tuple[Entry, ...]

    def offsets(self) -> Iterator[tuple[Entry, int]]:
        """Each entry with the offset in bytes at which a capture holds it, if it was copied: one behind the other, on multiples of 64."""
        return zip(self.entries, offsets([entry.copied for entry in self.entries]), strict=False)

    @functools.cached_property
    def length(self) -> int:
        """Bytes of a capture."""
        *_, end = offsets([entry.copied for entry in self.entries])
        return end

    @functools.cached_property
    def state_length(self) -> int:
        """Bytes of a capture that would hold all of it."""
        *_, end = offsets([entry.length for entry in self.entries])
        return end

    @property
    def in_place(self) -> list[Entry]:
        """The entries that were not copied."""
        return [entry for entry in self.entries if entry.place is not None]

    def read(self, digests: Mapping[str, str]) -> "Manifest":
        """The same state when all of it has been read.

        Args:
            digests: of the entries that were not copied, by path.
        """
        entries = (Entry(*entry[:4], digests[entry.path]) if entry.place else entry for entry in self.entries)
        return replace(self, entries=tuple(entries))

    def differences(self, other: "Manifest") -> list[str]:
        """Paths of entries that only one of the two has, or that differ in layout or bytes."""
        if [(entry.path, entry.layout, entry.digest) for entry in self.entries] == [
            (entry.path, entry.layout, entry.digest) for entry in other.entries
        ]:
            return []
        mine, others = ({entry.path: (entry.layout, entry.digest) for entry in manifest.entries} for manifest in (self, other))
        return [path for path in {**mine, **others} if mine.get(path) != others.get(path)]

    def to_json(self) -> bytes:
        """The manifest as JSON, one line."""
        return self._json

    @functools.cached_property
    def _json(self) -> bytes:
        """By columns: a state has thousands of entries, and training stands still, or a clone waits."""
        layouts: dict[Layout, int] = {}
        # By identity first, which takes a third of the time: most entries that are alike have one and the same.
        numbers: dict[int, int] = {}
        for entry in self.entries:
            if id(entry.layout) not in numbers:
                numbers[id(entry.layout)] = layouts.setdefault(entry.layout, len(layouts))
        fields: dict[str, object] = {
            "format": FORMAT,
            "framework": self.framework,
            "rank": self.rank,
            "ranks": self.ranks,
            "absent": self.absent,
            "paths": [entry.path for entry in self.entries],
            "placements": [_WRITTEN[entry.placement] for entry in self.entries],
            "layout_of": [numbers[id(entry.layout)] for entry in self.entries],
            "lengths": [entry.length for entry in self.entries],
            "digests": [entry.digest for entry in self.entries],
            "places": [[number, *entry.place] for number, entry in enumerate(self.entries) if entry.place],
            "layouts": list(layouts),
        }
        return f"{{{','.join([f'{json.dumps(name)}:{_as_json(name, values)}' for name, values in fields.items()])}}}".encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Reads a manifest that is not trusted.

        Raises:
            DamagedError: it is not what `to_json` writes.
        """
        try:
            if len(text) > MANIFEST_BYTES_MAX:
                raise ValueError(f"{len(text):,} bytes; the most is {MANIFEST_BYTES_MAX:,}")
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError(f"not of the format {FORMAT!r}: use the same version of Forebay on both sides")
            absent = tuple(map(_text, fields.pop("absent")))
            framework, rank, ranks = _text(fields.pop("framework")), _count(fields.pop("rank")), _count(fields.pop("ranks"))
            entries = _entries(**fields)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise DamagedError(f"not a manifest: {error}") from error
        return cls(framework, rank, ranks, absent, entries)


_LAST: dict[str, tuple[object, str]] = {}


def _as_json(name: str, values: object) -> str:
    """A field's values as JSON. Most are those of the manifest before, the very same objects, and to find that out takes microseconds."""
    last, text = _LAST.get(name, (None, ""))
    if values != last:
        text = json.dumps(values, separators=(",", ":"))
        _LAST[name] = (values, text)
    return text


def offsets(lengths: list[int]) -> Iterator[int]:
    """Where each of so many bytes begins, and last, where all end."""
    return itertools.accumulate([aligned(length) for length in lengths], initial=0)


def aligned(length: int) -> int:
    """Bytes from where so many begin to where the next may."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _entries(
    *, paths: object, placements: object, layout_of: object, lengths: object, digests: object, places: object, layouts: object
) -> tuple[Entry, ...]:
    """Entries out of columns, of which none is trusted."""
    paths, placements, digests = _column(paths, _TEXT), _column(placements, _TEXT), _column(digests, _TEXT)
    lengths, layout_of = _counts(lengths), _counts(layout_of)
    known = [_layout(*one) for one in _column(layouts, _LISTS)]
    if len({len(paths), len(placements), len(digests), len(lengths), len(layout_of)}) > 1:
        raise ValueError("its columns are not of one length")
    if len(set(paths)) != len(paths) or not paths:
        raise ValueError("a path stands twice, or none at all")
    placed: list[tuple[int, int] | None] = [None] * len(paths)
    for place in _column(places, _LISTS):
        number, *where = _counts(place)
        if len(where) != 2:
            raise ValueError(f"{place!r} is no place")
        placed[number] = (where[0], where[1])
    for path, digest, place in zip(paths, digests, placed, strict=True):
        if digest if place else not _DIGEST.fullmatch(digest):
            raise ValueError(f"{path}: {digest!r} is no digest")
    described = [known[number] for number in layout_of]
    return tuple(map(Entry, paths, [_READ[one] for one in placements], described, lengths, digests, placed))


def _column(values: object, kind: frozenset[type]) -> list[Any]:
    if not isinstance(values, list) or not kind.issuperset(map(type, values)):
        raise ValueError(f"{values!r:.100} is no list of {' or '.join(one.__name__ for one in kind)}")
    return values


def _counts(values: object) -> list[int]:
    numbers: list[int] = _column(values, _INT)
    if numbers and not 0 <= min(numbers) <= max(numbers) < COUNTS_END:
        raise ValueError(f"{values!r:.100}: one is no count")
    return numbers


def _layout(dtype: object, shape: object, strides: object, device: object) -> Layout:
    sizes, steps = _counts(shape), _counts(strides)
    if len(sizes) != len(steps):
        raise ValueError("shape and strides are not of one length")
    return Layout(_text(dtype), tuple(sizes), tuple(steps), _text(device))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < COUNTS_END:
        raise ValueError(f"{value!r} is no count")
    return value
