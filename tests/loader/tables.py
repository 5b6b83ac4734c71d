"""Rows for tests of Arrow and Parquet files."""

from collections.abc import Mapping
from typing import Any

import pyarrow

from forebay.loader.source import read_sample

TYPES = {"id": pyarrow.int64(), "text": pyarrow.string(), "tokens": pyarrow.list_(pyarrow.int32()), "known": pyarrow.float64()}


def table_of(first: int, count: int) -> pyarrow.Table:
    """Rows of several types, numbered from `first` on."""
    numbers = range(first, first + count)
    rows = {
        "id": list(numbers),
        "text": [f"row {number}" * (number % 5) for number in numbers],
        "tokens": [[number] * (number % 4) for number in numbers],
        "known": [None if number % 3 else number / 7 for number in numbers],
    }
    return pyarrow.table(rows, pyarrow.schema(TYPES))


def row(values: Mapping[str, Any], rng: object) -> dict[str, Any]:
    return dict(values)


def identity(values: Mapping[str, Any], rng: object) -> int:
    return int(values["id"])


def read(dataset: Any, order: list[int]) -> list[Any]:  # noqa: ANN401  (any with `locate` and `decode`)
    return [dataset.decode(read_sample(dataset.locate, number), number, None) for number in order]
