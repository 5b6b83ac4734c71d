"""Indices of the samples in shards: made by reading each shard once, and kept in a directory of the user's."""

import contextlib
import hashlib
import json
import os
import pwd
import struct
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from forebay._say import say_once
from forebay.loader._at_once import look_through
from forebay.loader._errors import LoaderError
from forebay.loader._paths import PathStat, is_object, look_up
from forebay.loader._samples import part_of

__all__ = ["ShardIndex", "ShardIndices", "Unusual", "indexed", "records"]

VERSION = 2
RECORD_HEAD = struct.Struct("<QI")
RECORD_TAIL_BYTES = 4


class Unusual(NamedTuple):
    """A field that is described by more than offset and length of its bytes.

    Attributes:
        header: offset in the sample's extent of the header block that describes the field.
        checksum: check sum of that header block, which differs for another file.
        size: bytes of the field.
        parts: offset in the field and length of each run of its bytes in the extent, which lie there one after the
            other; between them are zeros. None if all its bytes lie there.
    """

    header: int
    checksum: str
    size: int
    parts: list[tuple[int, int]] | None


@dataclass
class ShardIndex:
    """The samples of one shard, in order. Offsets and lengths are in bytes.

    Attributes:
        offsets: begin of each sample's extent.
        lengths: lengths of the extents.
        firsts: number of each sample's first field, and one more for the end.
        names: names of fields, each once.
        field_names: index in `names` of each field's name.
        field_offsets: begin of each field's bytes in the sample's extent.
        field_lengths: lengths of the fields.
        keys: names of the samples.
        unusual: fields that are described by more than offset and length, by number.
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
        """Yields name, offset in the extent and length of each field of a sample."""
        for number in range(self.firsts[sample], self.firsts[sample + 1]):
            yield self.names[self.field_names[number]], self.field_offsets[number], self.field_lengths[number]

    def arrays(self) -> "list[array[int]]":
        """Returns all arrays, in the order in which they are stored."""
        return [self.offsets, self.lengths, self.firsts, self.field_names, self.field_offsets, self.field_lengths]


Reader = Callable[[PathStat], ShardIndex]


class ShardIndices:
    """The samples of several shards, numbered through."""

    def __init__(self, shards: list[tuple[PathStat, ShardIndex]]) -> None:
        self._shards = [shard for shard, _ in shards]
        self._indices = indices = [index for _, index in shards]
        self._ends = list(accumulate(len(index.offsets) for index in indices))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def ends(self) -> list[int]:
        """Returns the end of each shard that has samples, as a number of samples."""
        return [end for end, index in zip(self._ends, self._indices, strict=True) if len(index.offsets)]

    def find(self, sample: int) -> tuple[PathStat, ShardIndex, int]:
        """Returns the shard of a sample, the shard's index, and the sample's number in it (`IndexError` without)."""
        shard, number = part_of(self._ends, sample)
        return self._shards[shard], self._indices[shard], number


def indexed(paths: list[str], read: Reader, directory: Path | None, on_error: str) -> tuple[ShardIndices, dict[str, str]]:
    """Returns the samples of these shards in order, and the reason by path for each one that was left out.

    An index that was kept in the directory (None: in the user's cache) is used if its shard has the same size and time
    of change, or is the same version of an object. Without a user's cache, or if the directory can't be written to, no
    index is kept, which one line says. Raises as `look_through`.
    """
    directory = directory or _users_directory()
    if directory is None:
        _tell_unkept(f"user {os.getuid()} has no home directory (XDG_CACHE_HOME and HOME name none, nor does a password entry)")
    shards, skipped = look_through(lambda path: _kept_or_read(look_up(path), read, directory), paths, on_error)
    return ShardIndices(shards), skipped


def _users_directory() -> Path | None:
    """Returns the directory for indices in the user's cache; None for a user without a home directory.

    Paths that are not absolute do not count, as the XDG rules have it. A container that runs under a random user id has
    no password entry.
    """
    if os.path.isabs(cache := os.environ.get("XDG_CACHE_HOME", "")):  # noqa: PTH117  (a text)
        return Path(cache) / "forebay" / "shards"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117
        with contextlib.suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    # One that does not exist is not ours to make.
    return Path(home) / ".cache" / "forebay" / "shards" if os.path.isabs(home) and Path(home).is_dir() else None  # noqa: PTH117


def _kept_or_read(found: PathStat, read: Reader, directory: Path | None) -> tuple[PathStat, ShardIndex]:
    if directory is None:
        return found, read(found)
    # The path is part of the key: a shard that is mounted elsewhere is indexed again, and nothing worse.
    path = found.path if is_object(found.path) else os.path.abspath(found.path)  # noqa: PTH100  (paths are strings here)
    time = {"mark": found.mark} if is_object(path) else {"mtime_ns": found.mtime_ns}
    of = {"version": VERSION, "kind": read.__name__, "path": path, "size": found.size, **time}
    place = directory / hashlib.blake2b(f"{of['kind']} {of['path']}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    # An index that can't be read is made again.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        return found, _unpacked(place.read_bytes(), of)
    index = read(found)
    try:
        _keep(place, _packed(index, of))
    except OSError as error:
        _tell_unkept(f"{directory} can't be written to ({error.strerror or error})")
    return found, index


def _tell_unkept(why: str) -> None:
    say_once("index", f"index=: {why}: shards are indexed again each time; give index= a directory that can be written to")


def _keep(place: Path, content: bytes) -> None:
    """Writes an index whole or not at all: several ranks may do so at the same time."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor)
            file.write(content)
        os.replace(name, place)  # noqa: PTH105
    except OSError:
        os.unlink(name)  # noqa: PTH108
        raise


def _packed(index: ShardIndex, of: dict[str, object]) -> bytes:
    """Returns an index as bytes: a line of JSON, then arrays of 64-bit numbers, lowest byte first."""
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


def _unpacked(content: bytes, of: dict[str, object]) -> ShardIndex:
    """Returns an index that was packed; raises if it is of another shard, or damaged."""
    line, _, body = content.partition(b"\n")
    head = json.loads(line)
    if {key: head.get(key) for key in of} != of or hashlib.blake2b(body, digest_size=16).hexdigest() != head["digest"]:
        raise ValueError("of another shard, or damaged")
    index = ShardIndex(names=head["names"], keys=head["keys"])
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


def records(shard: PathStat) -> ShardIndex:
    """Returns the index of a TFRecord file. An extent begins with the record's length; its only field is the record.

    The length's check sum is compared, so that a file of another kind is found out.
    """
    index = ShardIndex(names=["record"])
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
    """Returns the masked CRC-32C of a TFRecord file's head. It is slow, and meant for a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
