"""The making of an epoch's batches: in threads, or in worker processes."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from forebay.loader._batches import FetchedBatch, SampleBatch
from forebay.loader._threads import Threads
from forebay.loader._workers import WorkerServing
from forebay.torch._keyed import globals_kept, is_training, on_one_thread
from forebay.torch._order import BegunEpoch
from forebay.torch._processes import Collate, Processes

__all__ = ["EpochWork", "InProcesses", "InThreads", "pinning_device", "to_pinned"]


class EpochWork(Protocol):
    """The making of an epoch's batches."""

    results: Iterator[tuple[SampleBatch, FetchedBatch]]

    def close(self) -> None:
        """Ends the making of batches."""


class InProcesses:
    """The making of batches in worker processes, which an agent may serve: see `Processes.batches`."""

    def __init__(self, processes: Processes, begun: BegunEpoch, serving: WorkerServing | None, *, is_known: bool) -> None:
        self._processes = processes
        self._serving = serving
        self.results: Iterator[tuple[SampleBatch, FetchedBatch]] = iter(())
        try:
            self.results = processes.batches(begun.batches(), serving, is_known=is_known)
        except BaseException:
            # For example a sampler that does not repeat its order.
            self.close()
            raise

    def close(self) -> None:
        # Torch's iterator ends its workers when nobody refers to it.
        self.results = iter(())
        self._processes.close()
        if self._serving is not None:
            self._serving.close()


class InThreads:
    """The making of batches in threads, and by the user's `collate`, in memory that is pinned for a device or not."""

    def __init__(self, threads: Threads, begun: BegunEpoch, collate: Collate, device: int | None) -> None:
        self._threads = threads
        self._collate = collate
        self._device = device
        try:
            results = threads.batches(begun.batches())
        except BaseException:
            # For example a sampler that does not repeat its order.
            threads.close()
            raise
        self.results: Iterator[tuple[SampleBatch, FetchedBatch]] = map(self._collated, results) if collate.is_users else results

    def close(self) -> None:
        self._threads.close()

    def _collated(self, result: tuple[SampleBatch, FetchedBatch]) -> tuple[SampleBatch, FetchedBatch]:
        """Puts a batch together by the user's function, in the thread that iterates over the loader.

        It may draw from the global generators, which a process has once: they are borrowed in the main thread only.
        """
        batch, fetched = result
        if not fetched.failed:
            begun = time.perf_counter()
            with globals_kept() if is_training() else contextlib.nullcontext(), on_one_thread():
                fetched.value = self._collate(fetched.value, batch)
            if self._device is not None:
                fetched.value = to_pinned(fetched.value, self._device)
            fetched.decoded_s += time.perf_counter() - begun
        return batch, fetched


def to_pinned(batch: Any, device: int) -> Any:  # noqa: ANN401  (whatever a batch is)
    """Returns a batch in memory that is pinned for a GPU."""
    # Without this, another thread would use the first GPU.
    torch.cuda.set_device(device)
    return pinned(batch)


def pinning_device() -> int | None:
    """Returns the number of the GPU for which memory is pinned, or None with a warning if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.current_device()
    warnings.warn("pin_memory=True, but there is no GPU: memory is not pinned", stacklevel=5)
    return None
