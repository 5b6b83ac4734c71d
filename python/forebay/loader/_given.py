"""Checks of arguments that several kinds of datasets take. Each message names the mend."""

import operator
import os
from collections.abc import Iterable, Sequence, Sized
from numbers import Real
from pathlib import Path
from typing import SupportsIndex, TypeGuard

from forebay.loader._paths import spelled
from forebay.loader.dataset import is_located

__all__ = [
    "EPOCHS_END",
    "check_epoch",
    "check_function",
    "check_map_style",
    "check_whole",
    "columns_of",
    "is_number",
    "is_whole",
    "paths_of",
    "seed_of",
]

EPOCHS_END = 2**32 - 1
"""The number after the last one keys groups of blocks (`policy::order::Blocks`)."""


def paths_of(paths: Iterable[str | Path] | str | Path) -> list[str]:
    """Returns the paths of files as text; a single path need not be in a list. Raises `ValueError` if there is none."""
    # Gone through, a lone string would give its letters.
    found = [spelled(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not found:
        raise ValueError("no shards were given: give the path of one file or more")
    return found


def seed_of(seed: object) -> int:
    """Returns a seed as a whole number; raises `ValueError` for any other value, or one too large for torch."""
    if not isinstance(seed, SupportsIndex) or not -(2**63) <= operator.index(seed) < 2**64:
        raise ValueError(f"seed={seed!r}: give a whole number; torch's seeds have 64 bits")
    return operator.index(seed)


def is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """Returns true for a whole number of any type, but false for a bool, which Python counts among them."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Returns true for a number, whole or not, but false for a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int) -> int:
    """Returns a whole number that a user gave as `name`; raises `ValueError` for any other value, or a smaller one."""
    if not is_whole(value) or operator.index(value) < least:
        raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    return operator.index(value)


def check_epoch(epoch: object) -> int:
    """Returns the number of an epoch; raises `ValueError` for any other value."""
    if not is_whole(epoch) or not 0 <= operator.index(epoch) < EPOCHS_END:
        raise ValueError(f"epoch {epoch!r}: epochs are numbered from 0 to {EPOCHS_END - 1}")
    return operator.index(epoch)


def check_function(name: str, value: object) -> None:
    """Refuses what can't be called (`ValueError`), which would show with the first sample only."""
    if not callable(value):
        raise ValueError(f"{name}={value!r}: give a function")


def columns_of(columns: Sequence[str] | None) -> list[str] | None:
    """Returns the names of columns that a user gave, each once; None for all. Raises `ValueError` for anything else."""
    if columns is None:
        return None
    # A text is a sequence of texts, too.
    names = [] if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"columns={columns!r}: give a list of names, or leave it out for all columns")
    return list(dict.fromkeys(names))


def check_map_style(dataset: object) -> None:
    """Refuses what has no samples by their numbers (`TypeError`)."""
    if not (isinstance(dataset, Sized) and (hasattr(dataset, "__getitem__") or is_located(dataset))):
        raise TypeError(f"{type(dataset).__name__} is not a map-style dataset: it needs __len__ and __getitem__, or locate and decode")
