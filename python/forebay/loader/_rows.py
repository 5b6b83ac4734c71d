"""Batches of rows that need no decoding, put together as a whole: no Python runs for a row that the agent has."""

import time
from typing import Any, Protocol

from forebay.loader._batches import BatchPart, FetchedBatch
from forebay.loader._failures import failure
from forebay.loader.rows import FixedRows
from forebay.loader.source import Request

__all__ = ["RowBatches", "gathered"]


class RowBatches(Protocol):
    """A framework's batches of the rows of a dataset."""

    dataset: FixedRows

    def allocate(self, rows: int) -> tuple[Any, Any]:
        """Returns a batch of `rows` rows, and a writable buffer that is its memory."""

    def put(self, batch: Any, row: int, data: memoryview) -> None:  # noqa: ANN401  (the framework's)
        """Copies the bytes of a row to its place in a batch."""

    def only(self, batch: Any, rows: list[int]) -> Any:  # noqa: ANN401  (the framework's)
        """Returns a batch of some rows of a batch."""

    def finish(self, batch: Any) -> Any:  # noqa: ANN401  (the framework's)
        """Returns a batch as it is handed to training."""


def gathered(batches: RowBatches, request: Request, samples: list[int], part: BatchPart, fetched: FetchedBatch, *, skip: bool) -> list[Any]:
    """Puts a batch of rows together. Returns the batch alone; empty where no row is left.

    Args:
        batches: makes the batch.
        request: the batch's request.
        samples: indices of the samples.
        part: all of the batch; says which row is read now.
        fetched: counts time, bytes and failures.
        skip: whether a row that fails is left out, instead of failing the batch.

    Raises:
        MemoryError: there is too little memory for the batch or a row.
    """
    row_bytes, count = batches.dataset.row_bytes, len(samples)
    begun = time.perf_counter()
    batch, memory = batches.allocate(count)
    missing, waited_s = request.gather(memory, row_bytes)
    ended = copied = time.perf_counter()
    failed: set[int] = set()
    for place in missing:
        if part.is_over or (failed and not skip):
            break
        part.places = range(place, place + 1)
        try:
            batches.put(batch, place, request.read(place))
        except MemoryError:
            raise
        except Exception as error:
            failed.add(place)
            fetched.failures.append(failure(batches.dataset, samples[place], error))
        ended = time.perf_counter()
    fetched.waited_s += waited_s + ended - copied
    fetched.decoded_s += copied - begun - waited_s
    fetched.read_bytes += (count - len(failed)) * row_bytes
    if failed and skip:
        batch = batches.only(batch, [place for place in range(count) if place not in failed])
    return [batch] if len(failed) < count else []
