"""Batches of rows as tensors."""

from collections.abc import Callable
from typing import Any

import torch

from forebay.loader.rows import FixedRows

__all__ = ["TensorRows", "is_undecoded"]


class TensorRows:
    """Batches of rows as tensors: see `forebay.loader._rows.RowBatches`."""

    def __init__(self, dataset: FixedRows, finish: Callable[[torch.Tensor], Any]) -> None:
        self.dataset, self.finish = dataset, finish

    def allocate(self, rows: int) -> tuple[torch.Tensor, Any]:
        batch = torch.empty((rows, self.dataset.row_bytes), dtype=torch.uint8, device="cpu")
        return batch, batch.numpy()

    def put(self, batch: torch.Tensor, row: int, data: memoryview) -> None:
        # Torch takes only writable memory without a warning.
        batch[row] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def only(self, batch: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return batch[rows]


def is_undecoded(dataset: object) -> bool:
    """Returns true for rows whose batches are their bytes; false for a class with a `decode` of its own."""
    return isinstance(dataset, FixedRows) and type(dataset).decode is FixedRows.decode
