"""Datasets for every loader: they say where samples lie, and can read them themselves."""

from __future__ import annotations

import os
import zlib
from typing import Any

import torch
from torch.utils.data import Dataset

from forebay.loader import Extent

# Of a sample that is a row of bytes.
ROW_BYTES = 4096


class ChecksumFiles(Dataset[torch.Tensor]):
    """A file a sample; all of it is read, and what is made of it costs next to nothing: its check sum and its size.

    With several roots, which all hold the same files, sample i is read below root i modulo their number.
    """

    def __init__(self, roots: list[str]) -> None:
        self.roots = roots
        places = ((place, names) for place, _, names in os.walk(roots[0]))
        self.names = sorted(os.path.relpath(os.path.join(place, name), roots[0]) for place, names in places for name in names)  # noqa: PTH118
        self.identity = f"{len(self.names)} files"

    def __len__(self) -> int:
        return len(self.names)

    def locate(self, i: int, /) -> Extent:
        """Its file."""
        return Extent(os.path.join(self.roots[i % len(self.roots)], self.names[i]))  # noqa: PTH118

    def decode(self, data: memoryview, _i: int, _rng: Any, /) -> torch.Tensor:  # noqa: ANN401 # whatever the loader's generator is
        """Check sum and size."""
        return torch.tensor((zlib.crc32(data), len(data)))

    def __getitem__(self, i: int) -> torch.Tensor:
        with open(self.locate(i).path, "rb") as file:  # noqa: PTH123 # as most training programs do
            return self.decode(memoryview(file.read()), i, None)


class ByteRows(Dataset[memoryview]):
    """Rows of bytes in one file; `decode` is Python and does nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = os.path.getsize(path) // ROW_BYTES  # noqa: PTH202
        self.identity = f"{self.rows} rows"

    def __len__(self) -> int:
        return self.rows

    def locate(self, i: int, /) -> Extent:
        """Its range."""
        return Extent(self.path, i * ROW_BYTES, ROW_BYTES)

    def decode(self, data: memoryview, _i: int, _rng: Any, /) -> memoryview:  # noqa: ANN401
        """The row itself."""
        return data

    def __getitem__(self, i: int) -> memoryview:
        with open(self.path, "rb") as file:  # noqa: PTH123
            return memoryview(os.pread(file.fileno(), ROW_BYTES, i * ROW_BYTES))


def joined(rows: list[memoryview]) -> torch.Tensor:
    """A batch of rows."""
    return torch.frombuffer(bytearray().join(rows), dtype=torch.uint8).view(len(rows), ROW_BYTES)
