"""Datasets with many samples in a file: tar files, TFRecord files. Nothing is converted."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from forebay.loader._errors import LoaderError
from forebay.loader._given import check_function, paths_of
from forebay.loader._index import RECORD_HEAD, ShardIndex, Unusual, indexed, records
from forebay.loader._paths import PathStat
from forebay.loader._samples import IndexedSamples
from forebay.loader._tar import BLOCK, checksum_of, tar_samples
from forebay.loader.dataset import Extent

__all__ = ["RecordShards", "TarShards"]

Content = TypeVar("Content")


class _Shards(IndexedSamples, Generic[Content]):
    """Samples of which each file has many, found by an index of the file."""

    @staticmethod
    def _read(shard: PathStat) -> ShardIndex:
        """Makes the index of a file."""
        raise NotImplementedError

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[Content, Any], Any],
        *,
        keyed: bool = True,
        index: str | Path | None = None,
        on_error: str = "raise",
    ) -> None:
        check_function("decode", decode)
        self.keyed = keyed
        directory = None if index is None else Path(index)
        self._indices, self.skipped_shards = indexed(paths_of(paths), type(self)._read, directory, on_error)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._indices)

    def blocks(self) -> list[int]:
        """Returns the end of each shard, as a number of samples."""
        return self._indices.ends()

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        shard, index, number = self._indices.find(i)
        return Extent(shard.path, index.offsets[number], index.lengths[number], shard.mark)


class TarShards(_Shards[Mapping[str, memoryview]]):
    """Samples in tar files, as WebDataset writes them: `000.jpg`, `000.cls`, `001.jpg`...

    Args:
        paths: path of a shard, or an address such as `s3://BUCKET/KEY`, or several.
        decode: makes a sample of its fields (by name: what follows the first dot, in lower case) and of its generator.
        keyed: see `Located`: false if `decode` draws from global generators.
        index: a directory where indices are kept; None for the user's cache. A shard's headers are read once to make
            its index.
        on_error: `"raise"`, or `"skip"`: shards that are damaged or missing are left out, which one line says.

    Attributes:
        keyed: as given.
        skipped_shards: the reason by path for each shard that was left out.

    Raises:
        OSError: a shard can't be read.
        LoaderError: a shard is damaged, or no plain tar file.
        ValueError: there is no shard, or decode is not a function.
    """

    _read = staticmethod(tar_samples)

    def key(self, i: int) -> str:
        """Returns a sample's name in its shard: the part that the names of its members share."""
        _, index, number = self._indices.find(i)
        return index.keys[number]

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the shard is another than when it was indexed.
        """
        shard, index, number = self._indices.find(i)
        if index.unusual:
            return self._decode(_fields(index, number, data, shard.path), rng)
        found = {}
        for name, offset, length in index.fields(number):
            # As GNU tar and Python write it; others may have blanks, or fewer digits.
            header = data[offset - BLOCK : offset]
            if header[124:136] != b"%011o\0" % length and not _has_size(header, length):
                raise _changed(shard.path)
            found[name] = data[offset : offset + length]
        return self._decode(found, rng)


class RecordShards(_Shards[memoryview]):
    """Records in TFRecord files, each a sample.

    Args:
        paths: path of an uncompressed file, or an address such as `s3://BUCKET/KEY`, or several.
        decode: makes a sample of a record and of its generator.
        keyed: see `Located`: false if `decode` draws from global generators.
        index: a directory where indices are kept; None for the user's cache. A file's headers are read once to make its
            index.
        on_error: `"raise"`, or `"skip"`: files that are damaged or missing are left out, which one line says.

    Attributes:
        keyed: as given.
        skipped_shards: the reason by path for each file that was left out.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is damaged, or no TFRecord file.
        ValueError: there is no file.
    """

    _read = staticmethod(records)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the file is another than when it was indexed.
        """
        record = data[RECORD_HEAD.size :]
        if RECORD_HEAD.unpack_from(data)[0] != len(record):
            raise _changed(self._indices.find(i)[0].path)
        return self._decode(record, rng)


def _has_size(header: memoryview, length: int) -> bool:
    """Returns true if a member's header states this size, in octal digits.

    From 8 GiB on it is written otherwise, and not compared.
    """
    size = bytes(header[124:136]).strip(b" \0")
    return size[:1] == b"\x80" or (size.isdigit() and int(size, 8) == length)


def _fields(index: ShardIndex, sample: int, data: memoryview, path: str) -> dict[str, memoryview]:
    """Returns the fields of a sample, some of which are described by more than the header block before them."""
    found = {}
    for number, (name, offset, length) in enumerate(index.fields(sample), index.firsts[sample]):
        unusual = index.unusual.get(number)
        if unusual is None:
            is_same = _has_size(data[offset - BLOCK : offset], length)
        else:
            is_same = checksum_of(data[unusual.header : unusual.header + BLOCK]) == unusual.checksum
        if not is_same:
            raise _changed(path)
        content = data[offset : offset + length]
        found[name] = content if unusual is None or unusual.parts is None else _expanded(content, unusual, unusual.parts)
    return found


def _expanded(content: memoryview, unusual: Unusual, parts: list[tuple[int, int]]) -> memoryview:
    """Returns a sparse file's bytes with its holes, read-only."""
    whole, at = bytearray(unusual.size), 0
    for offset, length in parts:
        whole[offset : offset + length] = content[at : at + length]
        at += length
    return memoryview(whole).toreadonly()


def _changed(path: str) -> LoaderError:
    return LoaderError(f"{path} is not the file that was indexed: begin again with the shards as they are now")
