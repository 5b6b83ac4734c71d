"""Datasets whose samples show which they are and what random numbers they drew."""

import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from forebay.loader import Extent
from forebay.loader._agent import AgentRank
from forebay.loader._index import masked_crc32c
from forebay.torch import DataLoader

# Batches are small here, and the machine is busy.
torch.set_num_threads(1)


def epoch(loader: DataLoader, number: int) -> list[Any]:
    """The batches of an epoch."""
    loader.set_epoch(number)
    return list(loader)


def served(loader: DataLoader) -> AgentRank:
    """The rank of a loader with a cache."""
    assert loader._agent is not None
    return loader._agent


def figures(loader: DataLoader) -> dict[str, int]:
    """The counts of the agent that serves a loader."""
    return served(loader).figures()


class Indices(Dataset[object]):
    """Each sample is its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> object:
        return index


class DrawingFiles(Indices):
    """Each sample draws from all global generators."""

    def __getitem__(self, index: int) -> object:
        return index, random.random(), float(np.random.rand()), torch.rand(2)  # noqa: S311


class SampleFolder:
    """One file a sample, of a size of its own. Without `__getitem__`."""

    def __init__(self, folder: Path, length: int) -> None:
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{index:04d}" for index in range(length)]
        for index, path in enumerate(self.paths):
            path.write_bytes(self.content(index))

    def content(self, index: int) -> bytes:
        return bytes([index % 251]) * (index % 7 + 1)

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, i: int, /) -> Extent:
        return Extent(str(self.paths[i]))


class KeyedFiles(SampleFolder):
    """Samples draw from their generators."""

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        assert data == self.content(i)
        return i, torch.rand(2, generator=rng), sum(data)


class GlobalFiles(KeyedFiles):
    """Samples draw from the global generators, too."""

    keyed = False

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        return *super().decode(data, i, rng), random.random(), float(np.random.rand()), torch.rand(2)  # noqa: S311


class FileViews(SampleFolder):
    """Samples are views of the memory that the source gave."""

    def content(self, index: int) -> bytes:
        return bytes([index % 251]) * 64

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> object:
        return np.frombuffer(data, dtype=np.uint8)


def write_records(path: Path, contents: list[bytes]) -> Path:
    """A TFRecord file."""
    with path.open("wb") as file:
        for content in contents:
            head = struct.pack("<Q", len(content))
            file.write(head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content)))
    return path


def same(ours: Iterable[object], others: Iterable[object]) -> int:
    """Asserts that batches are bit-equal; gives how many there are."""
    ours, others = list(ours), list(others)
    assert len(ours) == len(others)
    for one, other in zip(ours, others, strict=True):
        equal(one, other)
    return len(ours)


def equal(one: object, other: object) -> None:
    """Asserts that two batches are bit-equal."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            equal(first, second)
    else:
        assert one == other
