"""Samples of equal size, one after the other in a file, that need no decoding."""

import operator
from pathlib import Path
from typing import Any

from forebay.loader._given import is_whole
from forebay.loader._paths import look_up, spelled
from forebay.loader._samples import IndexedSamples
from forebay.loader._tokens import npy_head
from forebay.loader.dataset import Extent

__all__ = ["FixedRows"]

ROW_BYTES_MAX = 2**31 - 1


class FixedRows(IndexedSamples):
    """Rows of bytes, all of one size, such as `numpy.ndarray.tofile` writes those of an array.

    A batch is a `uint8` tensor (rows, `row_bytes`); view it as what it is, `batch.view(torch.float32)`. Batches are put
    together as a whole, without a call of `decode` for each row; a loader with a cache does it natively.

    Args:
        path: path of the file, or an address such as `s3://BUCKET/KEY`.
        row_bytes: bytes of a row.
        offset: bytes before the first row, such as a header's. None: 0; a `.npy` file, whose head is not a row, is then
            refused.

    Attributes:
        path: path of the file.
        row_bytes: bytes of a row.
        offset: bytes before the first row.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not a regular file, or has no whole number of rows, or none.
    """

    draws = False

    def __init__(self, path: str | Path, row_bytes: int, *, offset: int | None = None) -> None:
        if not is_whole(row_bytes) or not 1 <= row_bytes <= ROW_BYTES_MAX:
            raise ValueError(f"row_bytes={row_bytes!r}: give the bytes of a row, a whole number from 1 to {ROW_BYTES_MAX:,}")
        begin = 0 if offset is None else offset
        if not is_whole(begin) or begin < 0:
            raise ValueError(f"offset={offset!r}: give the byte of the file at which rows begin, a whole number from 0")
        self.path, self.row_bytes, self.offset = spelled(path), operator.index(row_bytes), operator.index(begin)
        found = look_up(self.path)
        if offset is None and self.path.endswith(".npy") and (npy := npy_head(found)) is not None:
            raise ValueError(f"{path} is a .npy file, whose head is not a row: give offset={npy[0]}, at which its numbers begin")
        self._mark = found.mark
        self._rows, left = divmod(found.size - self.offset, self.row_bytes)
        if self._rows < 1 or left:
            has = f"{left} bytes more than {self._rows:,} rows" if self._rows > 0 else "no whole row"
            raise ValueError(f"{path} has {has} of {row_bytes} bytes from byte {begin} on: it was cut, or has rows of another size")
        self.identity = f"{self._rows} rows of {row_bytes} bytes"

    def __len__(self) -> int:
        return self._rows

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        if not 0 <= i < self._rows:
            raise IndexError(f"row {i}: there are {self._rows}")
        return Extent(self.path, self.offset + i * self.row_bytes, self.row_bytes, self._mark)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`. A NumPy array of bytes."""
        del i, rng
        import numpy as np

        # One that may be written to, as a tensor may.
        return np.array(data, np.uint8)
