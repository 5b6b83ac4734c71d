"""Batches of rows as tensors."""

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

__all__ = ["RowTensors"]


class RowTensors:
    """Makes batches of rows: see `forebay.loader._rows.Making`.

    Args:
        row_bytes: of a row.
        device: the GPU for which memory is pinned; None for none.
    """

    def __init__(self, row_bytes: int, device: int | None) -> None:
        self._row_bytes = row_bytes
        self._device = device

    def allocate(self, rows: int) -> tuple[torch.Tensor, int]:
        """See `Making.allocate`."""
        batch = torch.empty((rows, self._row_bytes), dtype=torch.uint8, device="cpu")
        return batch, batch.data_ptr()

    def only(self, batch: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """See `Making.only`."""
        return batch[rows]

    def finish(self, batch: torch.Tensor) -> torch.Tensor:
        """See `Making.finish`."""
        if self._device is None:
            return batch
        # In another thread the first GPU would be meant.
        torch.cuda.set_device(self._device)
        given: torch.Tensor = pinned(batch)
        return given
