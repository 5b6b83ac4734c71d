"""Indices of the samples in tar files. Extended headers count: names, sizes, and the holes of sparse files."""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from forebay._say import say_once
from forebay.loader._errors import LoaderError
from forebay.loader._index import ShardIndex, Unusual
from forebay.loader._paths import PathStat

__all__ = ["BLOCK", "checksum_of", "tar_samples"]

BLOCK = 512
META = re.compile(r"(.*/)?__[^/]*__($|/)")
"""Members of a tar file that belong to no sample (WebDataset)."""
EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
"""Types of headers that say something of the member that follows."""
CONTINUED = b"M"
"""Type of a member that began in another volume (GNU tar)."""
LOOKED_AT = 1 << 16
"""Bytes after an archive's end that are looked at for another archive. GNU tar ends one with up to 10 KiB of zeros."""


@dataclass(frozen=True)
class _Member:
    """A file in a tar file.

    Attributes:
        name: name with folders.
        offset: offset of the data.
        length: bytes of the data in the tar file.
        header: offset of the header block that describes it.
        unusual: facts that the header block does not state; None if it states everything.
    """

    name: str
    offset: int
    length: int
    header: int
    unusual: Unusual | None


def tar_samples(shard: PathStat) -> ShardIndex:
    """Returns the index of a tar file.

    Samples are WebDataset's groups: members in a row whose names are equal up to the first dot.

    A sample's extent begins with its first member's header block and has all headers in between; a field is named by
    what follows the dot.
    """
    index = ShardIndex()
    names: dict[str, int] = {}
    path, size = shard.path, shard.size
    last: str | None = None
    seen: set[str] = set()
    for member in _members(shard):
        key, dot, name = _split(member.name)
        if not dot or META.match(member.name):
            continue
        end = member.offset + member.length
        if end > size:
            raise LoaderError(
                f"{path} ends at byte {size}, and its member {member.name} at {end}: it was cut, or goes on in another volume"
            )
        if key != last:
            index.offsets.append(member.header)
            index.lengths.append(0)
            index.firsts.append(index.firsts[-1])
            index.keys.append(key)
            last, seen = key, set()
        if name in seen:
            raise LoaderError(f"{path} has {member.name} twice in one sample")
        seen.add(name)
        if member.unusual is not None:
            index.unusual[len(index.field_names)] = member.unusual._replace(header=member.header - index.offsets[-1])
        index.field_names.append(names.setdefault(name, len(names)))
        index.field_offsets.append(member.offset - index.offsets[-1])
        index.field_lengths.append(member.length)
        index.firsts[-1] += 1
        index.lengths[-1] = end - index.offsets[-1]
    index.names = list(names)
    return index


def checksum_of(header: memoryview | bytes) -> str:
    """Returns the check sum that a header block has of itself, as it is written there."""
    return bytes(header[148:156]).hex()


def _members(shard: PathStat) -> Iterator[_Member]:
    """Yields the regular files of a tar file."""
    path = shard.path
    try:
        with shard.open() as file:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for info in tar:
                    # It would remember them all.
                    tar.members.clear()  # type: ignore[attr-defined]
                    if info.isreg():
                        yield _described(tar, file, info, path)
                    elif info.islnk() or info.issym():
                        say_once(
                            "links",
                            f"{path}: {info.name} is a link, and links are left out of samples, as WebDataset leaves them out; pack the "
                            "files themselves, with tar --dereference --hard-dereference",
                        )
                    elif info.type == CONTINUED:
                        raise LoaderError(f"{path} begins within {info.name}, as the volumes of one archive do: pack each shard by itself")
                    if tar.offset <= info.offset:
                        raise LoaderError(f"{path}: the header at byte {info.offset} has a size that can't be: it is damaged")
                end = tar.offset
            file.seek(end)
            rest = file.read(LOOKED_AT)
            # tarfile takes a header that was cut for the end.
            if rest[:BLOCK] != bytes(BLOCK):
                raise tarfile.ReadError(f"no end mark at byte {end}")
            _tell_more(path, end, rest)
    except tarfile.ReadError as error:
        raise LoaderError(f"{path}: {error}: it was cut, or is not a plain tar file (a compressed one can't be read in parts)") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise LoaderError(f"{path}: a header can't be read ({error}): it was cut, or is damaged") from None


def _described(tar: tarfile.TarFile, file: BinaryIO, info: tarfile.TarInfo, path: str) -> _Member:
    # Typeshed has bytes here.
    sparse = cast("list[tuple[int, int]] | None", info.sparse)
    said = info.pax_headers
    if info.size < 0:
        raise LoaderError(f"{path}: {info.name} has {info.size} bytes: its header is damaged")
    if sparse is None and "size" not in said:
        return _Member(info.name, info.offset_data, info.size, info.offset_data - BLOCK, None)
    at = info.offset
    while True:
        file.seek(at)
        block = file.read(BLOCK)
        header = tarfile.TarInfo.frombuf(block, tar.encoding or "utf-8", tar.errors or "surrogateescape")
        if header.type not in EXTENDED:
            break
        at += BLOCK + _blocks(header.size)
    checksum = checksum_of(block)
    if sparse is None:
        return _Member(info.name, info.offset_data, info.size, at, Unusual(0, checksum, info.size, None))
    size = int(said.get("GNU.sparse.realsize", said.get("GNU.sparse.size", info.size)))
    parts = [(offset, length) for offset, length in sparse if length]
    ends = [0, *(offset + length for offset, length in parts)]
    length = sum(length for _, length in parts)
    # The archive's own size of it, of which tarfile may have made the file's: the map, unless that lies in headers, and
    # the parts.
    begun = info.offset_data if header.type == tarfile.GNUTYPE_SPARSE else at + BLOCK
    packed = int(said["size"]) if "size" in said else header.size
    is_ordered = all(end <= offset and length > 0 for end, (offset, length) in zip(ends, parts, strict=False)) and ends[-1] <= size
    if not is_ordered or info.offset_data + length != begun + packed:
        raise LoaderError(f"{path}: the map of the sparse file {info.name} does not fit its {size} bytes: it was cut, or is damaged")
    tar.offset = begun + _blocks(packed)
    return _Member(info.name, info.offset_data, length, at, Unusual(0, checksum, size, parts))


def _blocks(size: int) -> int:
    """Returns a size, rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def _split(name: str) -> tuple[str, str, str]:
    """Returns a member's key, a dot if there is one, and the field's name, as WebDataset splits them."""
    folder, slash, file = name.rpartition("/")
    stem, dot, rest = file.partition(".")
    return folder + slash + stem, dot if stem else "", rest.lower()


def _tell_more(path: str, end: int, rest: bytes) -> None:
    """Says once in a process that another archive follows the first one's end, as `cat a.tar b.tar` makes them."""
    at = next((at for at in range(0, len(rest) - BLOCK + 1, BLOCK) if any(rest[at : at + BLOCK])), None)
    if at is None:
        return
    try:
        tarfile.TarInfo.frombuf(rest[at : at + BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return
    said = f"{path}: another archive begins at byte {end + at}, after the first one's end, and is left out, as by tar; split them"
    say_once("archives", said)
