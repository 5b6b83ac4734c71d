"""The manifest: what a state consists of, entry by entry, each with its digest."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

from forebay.clone._errors import DamagedError

__all__ = ["VALUE", "Entry", "Layout", "Manifest", "Placement"]

FORMAT = "forebay clone manifest 3"
MANIFEST_BYTES_MAX = 256 << 20
ALIGNMENT_BYTES = 64
_DIGEST = re.compile("[0-9a-f]{32}")
_INT = frozenset((int,))
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

    def to_json(self) -> str:
        """The entry as it is written. By hand, for the same reason."""
        place = "" if self.place is None else f',"place":[{self.place[0]},{self.place[1]}]'
        return (
            f'{{"path":{quoted(self.path)},"placement":"{_WRITTEN[self.placement]}","layout":{_written(self.layout)},'
            f'"length":{self.length},"digest":"{self.digest}"{place}}}'
        )


_WRITTEN = {placement: placement.value for placement in Placement}


@functools.lru_cache(maxsize=4096)
def _written(layout: Layout) -> str:
    """A layout as it is written. Kept: a model has many tensors, and few layouts."""
    return json.dumps(layout._asdict(), separators=(",", ":"))


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
        mine, others = ({entry.path: (entry.layout, entry.digest) for entry in manifest.entries} for manifest in (self, other))
        return [path for path in {**mine, **others} if mine.get(path) != others.get(path)]

    def to_json(self) -> bytes:
        """The manifest as JSON, one line."""
        header = {"format": FORMAT, "framework": self.framework, "rank": self.rank, "ranks": self.ranks, "absent": self.absent}
        entries = ",".join([entry.to_json() for entry in self.entries])
        return f'{json.dumps(header, separators=(",", ":"))[:-1]},"entries":[{entries}]}}'.encode()

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
            entries = tuple(_entry(**entry) for entry in fields.pop("entries"))
            absent = tuple(map(_text, fields.pop("absent")))
            framework, rank, ranks = _header(**fields)
            if len({entry.path for entry in entries}) != len(entries) or not entries:
                raise ValueError("a path stands twice, or none at all")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"not a manifest: {error}") from error
        return cls(framework, rank, ranks, absent, entries)


def offsets(lengths: list[int]) -> Iterator[int]:
    """Where each of so many bytes begins, and last, where all end."""
    return itertools.accumulate([aligned(length) for length in lengths], initial=0)


def aligned(length: int) -> int:
    """Bytes from where so many begin to where the next may."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _header(*, framework: object, rank: object, ranks: object) -> tuple[str, int, int]:
    return _text(framework), _count(rank), _count(ranks)


def _entry(*, path: object, placement: object, layout: dict[str, object], length: object, digest: object, place: object = None) -> Entry:
    if place is not None and (not isinstance(place, list) or len(place) != 2):
        raise ValueError(f"{path}: {place!r} is no place")
    if not isinstance(digest, str) or not (_DIGEST.fullmatch(digest) if place is None else digest == ""):
        raise ValueError(f"{path}: {digest!r} is no digest")
    where = None if place is None else (_count(place[0]), _count(place[1]))
    return Entry(_text(path), Placement(placement), _layout(**layout), _count(length), digest, where)


def _layout(*, dtype: object, shape: object, strides: object, device: object) -> Layout:
    if not isinstance(shape, list) or not isinstance(strides, list) or len(shape) != len(strides):
        raise ValueError("shape and strides are no lists of one length")
    if not _INT.issuperset(map(type, shape)) or not _INT.issuperset(map(type, strides)):
        raise ValueError(f"{shape!r} and {strides!r} are no counts")
    return _known(_text(dtype), tuple(shape), tuple(strides), _text(device))


@functools.lru_cache(maxsize=4096)
def _known(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], device: str) -> Layout:
    """A layout. Kept: a model has many tensors, and few layouts."""
    return Layout(dtype, tuple(map(_count, shape)), tuple(map(_count, strides)), device)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value
