"""Where samples lie in shards: read off each shard once, and kept in a directory of the user's."""

import contextlib
import hashlib
import json
import os
import pwd
import struct
import sys
import tempfile
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from forebay._say import say
from forebay.loader._at_once import look_through
from forebay.loader._errors import LoaderError
from forebay.loader._paths import Found, is_object, look_up

__all__ = ["Index", "Indices", "Unusual", "indexed", "records"]

VERSION = 2
RECORD_HEAD = struct.Struct("<QI")
RECORD_TAIL_BYTES = 4

_untold = threading.Lock()
"""Held for good by who has said that indices can't be kept."""


class Unusual(NamedTuple):
    """A field of which more has to be known than where its bytes lie.

    Attributes:
        header: where in the sample's extent the header block lies that describes it.
        checksum: of that header block, which tells it from that of another file.
        size: bytes of the field.
        parts: offset in the field and length of each run of its bytes in the extent, which lie there one after the other; between them
            are zeros. None if all its bytes lie there.
    """

    header: int
    checksum: str
    size: int
    parts: list[tuple[int, int]] | None


@dataclass
class Index:
    """The samples of one shard, in order. Offsets and lengths are in bytes.

    Attributes:
        offsets: where each sample's extent begins.
        lengths: of the extents.
        firsts: number of each sample's first field, and one more for the end.
        names: of fields, each once.
        field_names: which of `names` each field has.
        field_offsets: where in its extent each field's bytes begin.
        field_lengths: of the fields.
        keys: each sample's name, a line each.
        unusual: fields of which more has to be known, by number.
    """

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    lengths: "array[int]" = field(default_factory=lambda: array("Q"))
    firsts: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    names: list[str] = field(default_factory=list)
    field_names: "array[int]" = field(default_factory=lambda: array("Q"))
    field_offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    field_lengths: "array[int]" = field(default_factory=lambda: array("Q"))
    keys: list[str] = field(default_factory=list)
    unusual: dict[int, Unusual] = field(default_factory=dict)

    def fields(self, sample: int) -> Iterator[tuple[str, int, int]]:
        """Name, offset in the extent and length of each of a sample's fields."""
        for number in range(self.firsts[sample], self.firsts[sample + 1]):
            yield self.names[self.field_names[number]], self.field_offsets[number], self.field_lengths[number]

    def arrays(self) -> "list[array[int]]":
        """All of them, in the order in which they are kept."""
        return [self.offsets, self.lengths, self.firsts, self.field_names, self.field_offsets, self.field_lengths]


Reader = Callable[[Found], Index]


class Indices:
    """The samples of several shards, numbered through."""

    def __init__(self, shards: list[tuple[Found, Index]]) -> None:
        self._shards = [shard for shard, _ in shards]
        self._indices = indices = [index for _, index in shards]
        self._ends = list(accumulate(len(index.offsets) for index in indices))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def ends(self) -> list[int]:
        """Where each shard ends, but for those without samples."""
        return [end for end, index in zip(self._ends, self._indices, strict=True) if len(index.offsets)]

    def find(self, sample: int) -> tuple[Found, Index, int]:
        """The shard that a sample lies in, its index, and the sample's number there.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample}: there are {len(self)}")
        shard = bisect_right(self._ends, sample)
        return self._shards[shard], self._indices[shard], sample - (self._ends[shard - 1] if shard else 0)


def indexed(paths: list[str], read: Reader, directory: Path | None, on_error: str) -> tuple[Indices, dict[str, str]]:
    """Returns the samples of these shards, and the reason by path for each one that was left out.

    An index that was kept is used if its shard has the same size and time of change, or is the same version of an object.

    Args:
        paths: of shards; their order is that of the samples.
        read: makes the index of one.
        directory: where indices are kept; None for the user's cache. Without a user's cache, or if the directory can't be written to, no
            index is kept, which one line says.
        on_error: see `look_through`.

    Raises:
        OSError: a shard can't be read.
        LoaderError: it is damaged, or of another kind.
    """
    directory = directory or _users_directory()
    if directory is None:
        _tell_unkept(f"user {os.getuid()} has no home directory (XDG_CACHE_HOME and HOME name none, nor does a password entry)")
    shards, skipped = look_through(lambda path: _kept_or_read(look_up(path), read, directory), paths, on_error)
    return Indices(shards), skipped


def _users_directory() -> Path | None:
    """Returns the directory for indices in the user's cache; None for a user without a home directory.

    Paths that are not absolute do not count, as the XDG rules have it. A container that runs under a random user id has no password entry.
    """
    if os.path.isabs(cache := os.environ.get("XDG_CACHE_HOME", "")):  # noqa: PTH117  (a text)
        return Path(cache) / "forebay" / "shards"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117
        with contextlib.suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    # One that does not exist is not ours to make.
    return Path(home) / ".cache" / "forebay" / "shards" if os.path.isabs(home) and Path(home).is_dir() else None  # noqa: PTH117


def _kept_or_read(found: Found, read: Reader, directory: Path | None) -> tuple[Found, Index]:
    if directory is None:
        return found, read(found)
    # Who it is of, not where it lies: a shard that is mounted elsewhere is indexed again, and that is all.
    path = found.path if is_object(found.path) else os.path.abspath(found.path)  # noqa: PTH100  (paths are strings here)
    time = {"mark": found.mark} if is_object(path) else {"mtime_ns": found.mtime_ns}
    of = {"version": VERSION, "kind": read.__name__, "path": path, "size": found.size, **time}
    place = directory / hashlib.blake2b(f"{of['kind']} {of['path']}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    # Whatever may be wrong with what was kept, it can be made anew.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        return found, _unpacked(place.read_bytes(), of)
    index = read(found)
    try:
        _keep(place, _packed(index, of))
    except OSError as error:
        _tell_unkept(f"{directory} can't be written to ({error.strerror or error})")
    return found, index


def _tell_unkept(why: str) -> None:
    """Says once in a process that no index is kept: each further shard would fail alike."""
    if _untold.acquire(blocking=False):
        say(f"index=: {why}: where samples lie in shards is read off them again each time; give index= a directory that can be written to")


def _keep(place: Path, content: bytes) -> None:
    """Whole or not at all: several ranks may do so at once."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor)
            file.write(content)
        os.replace(name, place)  # noqa: PTH105
    except OSError:
        os.unlink(name)  # noqa: PTH108
        raise


def _packed(index: Index, of: dict[str, object]) -> bytes:
    """A line of JSON that says what follows: arrays of 64-bit numbers, lowest byte first."""
    arrays = [array("Q", one) for one in index.arrays()]
    if sys.byteorder == "big":
        for one in arrays:
            one.byteswap()
    body = b"".join(one.tobytes() for one in arrays)
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    unusual = {str(number): one for number, one in index.unusual.items()}
    named = {"names": index.names, "keys": index.keys, "unusual": unusual}
    head = {**of, "counts": [len(one) for one in arrays], "digest": digest, **named}
    return json.dumps(head).encode() + b"\n" + body


def _unpacked(content: bytes, of: dict[str, object]) -> Index:
    """Raises something if it is of another shard, or damaged."""
    line, _, body = content.partition(b"\n")
    head = json.loads(line)
    if {key: head.get(key) for key in of} != of or hashlib.blake2b(body, digest_size=16).hexdigest() != head["digest"]:
        raise ValueError("of another shard, or damaged")
    index = Index(names=head["names"], keys=head["keys"])
    index.unusual = {int(number): Unusual(*one) for number, one in head["unusual"].items()}
    del index.firsts[:]
    start = 0
    for one, count in zip(index.arrays(), head["counts"], strict=True):
        one.frombytes(body[start : start + 8 * count])
        start += 8 * count
        if sys.byteorder == "big":
            one.byteswap()
    samples, fields = len(index.offsets), len(index.field_names)
    if [len(one) for one in index.arrays()] != [samples, samples, samples + 1, fields, fields, fields] or index.firsts[-1] != fields:
        raise ValueError("its parts don't fit together")
    return index


def records(shard: Found) -> Index:
    """The records of a TFRecord file. An extent begins with the record's length; its only field is the record.

    The length's check sum is compared, so that a file of another kind is found out.
    """
    index = Index(names=["record"])
    path, size, at = shard.path, shard.size, 0
    with shard.open() as file:
        while at < size:
            file.seek(at)
            head = file.read(RECORD_HEAD.size)
            if len(head) < RECORD_HEAD.size:
                raise LoaderError(f"{path} ends at byte {size}, within the head of record {len(index.offsets)}: it was cut")
            length, check = RECORD_HEAD.unpack(head)
            if masked_crc32c(head[:8]) != check:
                raise LoaderError(f"{path}: no record begins at byte {at}: it is damaged, or no (uncompressed) TFRecord file")
            end = at + RECORD_HEAD.size + length + RECORD_TAIL_BYTES
            if end > size:
                raise LoaderError(f"{path} ends at byte {size}, and its record {len(index.offsets)} at {end}: it was cut")
            index.offsets.append(at)
            index.lengths.append(end - RECORD_TAIL_BYTES - at)
            index.field_names.append(0)
            index.field_offsets.append(RECORD_HEAD.size)
            index.field_lengths.append(length)
            index.firsts.append(len(index.field_names))
            at = end
    return index


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc32c_table()


def masked_crc32c(data: bytes) -> int:
    """As TFRecord files have it: of a few bytes only, since it goes through them one by one."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
