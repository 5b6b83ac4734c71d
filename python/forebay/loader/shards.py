"""Datasets whose samples lie many to a file: tar files, TFRecord files, files of tokens. Nothing is converted."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from forebay.loader._errors import LoaderError
from forebay.loader._given import check_function, check_whole, paths_of
from forebay.loader._index import RECORD_HEAD, TAR_BLOCK, Reader, indexed, records, tar_samples
from forebay.loader._paths import look_up, spelled
from forebay.loader.dataset import Extent

__all__ = ["RecordShards", "TarShards", "TokenFile"]


class _Shards:
    """Samples that lie many to a file, found by an index of each file.

    Args:
        paths: of the files.
        read: makes the index of one.
        keyed: see `Located`.
        index: a directory where indices are kept; None for the user's cache.
    """

    def __init__(self, paths: Iterable[str | Path] | Path, read: Reader, *, keyed: bool, index: str | Path | None) -> None:
        self.keyed = keyed
        self._indices = indexed(paths_of(paths), read, None if index is None else Path(index))

    def __len__(self) -> int:
        return len(self._indices)

    def blocks(self) -> list[int]:
        """Where each shard ends."""
        return self._indices.ends()

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        shard, index, number = self._indices.find(i)
        return Extent(shard.path, index.offsets[number], index.lengths[number], shard.mark)


class TarShards(_Shards):
    """Samples in tar files, as WebDataset writes them: `000.jpg`, `000.cls`, `001.jpg`...

    Args:
        paths: of the shards, or of one; or `s3://BUCKET/KEY`.
        decode: makes a sample of its fields (by name: what follows the first dot, in lower case) and of its generator.
        keyed: see `Located`: false if `decode` draws from global generators.
        index: a directory where indices are kept; None for the user's cache. A shard's headers are read once to make its index.

    Attributes:
        keyed: as given.

    Raises:
        OSError: a shard can't be read.
        LoaderError: a shard is damaged, or no plain tar file.
        ValueError: there is no shard, or decode is no function.
    """

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[Mapping[str, memoryview], Any], Any],
        *,
        keyed: bool = True,
        index: str | Path | None = None,
    ) -> None:
        check_function("decode", decode)
        super().__init__(paths, tar_samples, keyed=keyed, index=index)
        self._decode = decode

    def key(self, i: int) -> str:
        """A sample's name in its shard: what its members have in common."""
        _, index, number = self._indices.find(i)
        return index.keys[number]

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the shard is another than when it was indexed.
        """
        shard, index, number = self._indices.find(i)
        found = {}
        for name, offset, length in index.fields(number):
            # The size in the member's header, in octal digits; from 8 GiB on it is written otherwise.
            size = bytes(data[offset - TAR_BLOCK + 124 : offset - TAR_BLOCK + 136]).strip(b" \0")
            if size[:1] != b"\x80" and (not size.isdigit() or int(size, 8) != length):
                raise _changed(shard.path)
            found[name] = data[offset : offset + length]
        return self._decode(found, rng)


class RecordShards(_Shards):
    """Records in TFRecord files, each a sample.

    Args:
        paths: of the files, or of one, uncompressed; or `s3://BUCKET/KEY`.
        decode: makes a sample of a record and of its generator.
        keyed: see `Located`: false if `decode` draws from global generators.
        index: a directory where indices are kept; None for the user's cache. A file's headers are read once to make its index.

    Attributes:
        keyed: as given.

    Raises:
        OSError: a file can't be read.
        LoaderError: it is damaged, or no TFRecord file.
        ValueError: there is no file.
    """

    def __init__(
        self,
        paths: Iterable[str | Path] | Path,
        decode: Callable[[memoryview, Any], Any],
        *,
        keyed: bool = True,
        index: str | Path | None = None,
    ) -> None:
        check_function("decode", decode)
        super().__init__(paths, records, keyed=keyed, index=index)
        self._decode = decode

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`.

        Raises:
            LoaderError: the file is another than when it was indexed.
        """
        record = data[RECORD_HEAD.size :]
        if RECORD_HEAD.unpack_from(data)[0] != len(record):
            raise _changed(self._indices.find(i)[0].path)
        return self._decode(record, rng)


class TokenFile:
    """Windows of a file of tokens, such as `numpy.ndarray.tofile` writes: the tokens and the one after each, as training predicts them.

    Window `i` begins at token `i * window`; what is left at the file's end is left out. Samples are pairs of NumPy arrays of `window`
    tokens, read-only.

    Args:
        path: of the file, or `s3://BUCKET/KEY`.
        window: tokens.
        dtype: of a token, as NumPy names it.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no regular file, has no whole number of tokens, or not enough for one window; or a window or dtype that can't be.
    """

    def __init__(self, path: str | Path, window: int, dtype: str = "uint16") -> None:
        window = check_whole("window", window, 1)
        self._dtype = _token_type(dtype)
        self._found = look_up(spelled(path))
        self._window = window
        tokens, left = divmod(self._found.size, self._dtype.itemsize)
        if left:
            raise ValueError(f"{path} has {left} bytes more than {tokens} tokens of {self._dtype}: it was cut, or has another dtype")
        self._length: int = (tokens - 1) // window
        if self._length < 1:
            raise ValueError(f"{path} has {tokens} tokens: a window of {window} needs {window + 1}")

    def __len__(self) -> int:
        return self._length

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        if not 0 <= i < self._length:
            raise IndexError(f"window {i}: there are {self._length}")
        item = self._dtype.itemsize
        return Extent(self._found.path, i * self._window * item, (self._window + 1) * item, self._found.mark)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        del i, rng
        import numpy as np

        tokens = np.frombuffer(data, self._dtype)
        return tokens[:-1], tokens[1:]


def _token_type(dtype: object) -> Any:  # noqa: ANN401  (NumPy's, which may be missing)
    import numpy as np

    wrong = f"dtype={dtype!r}: give a token's type as NumPy names it, such as uint16"
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        raise ValueError(wrong) from None
    # NumPy takes None for float64.
    if dtype is None or found.kind not in "biuf":
        raise ValueError(wrong)
    return found


def _changed(path: str) -> LoaderError:
    return LoaderError(f"{path} is not the file that was indexed: begin again with the shards as they are now")
