"""An epoch's batches being made: in threads, or in worker processes."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from forebay.loader._batches import Batch, Fetched
from forebay.loader._threads import Threads
from forebay.loader._workers import WorkerServing
from forebay.torch._keyed import globals_kept, is_training, on_one_thread
from forebay.torch._order import Begun
from forebay.torch._processes import Collate, Processes

__all__ = ["InProcesses", "InThreads", "Work", "pinning_device", "to_pinned"]


class Work(Protocol):
    """An epoch's batches being made."""

    results: Iterator[tuple[Batch, Fetched]]

    def close(self) -> None:
        """Ends it."""


class InProcesses:
    """In worker processes.

    Args:
        processes: these.
        begun: the epoch.
        serving: what of it the loader agent gives; None where there is none.
        is_known: its batches may be asked for before they are due.
    """

    def __init__(self, processes: Processes, begun: Begun, serving: WorkerServing | None, *, is_known: bool) -> None:
        self._processes = processes
        self._serving = serving
        self.results: Iterator[tuple[Batch, Fetched]] = iter(())
        try:
            self.results = processes.batches(begun.batches(), serving, is_known=is_known)
        except BaseException:
            # Such as a sampler that does not give what it gave before.
            self.close()
            raise

    def close(self) -> None:
        """See `Work.close`."""
        # Torch's iterator ends its workers when nobody refers to it.
        self.results = iter(())
        self._processes.close()
        if self._serving is not None:
            self._serving.close()


class InThreads:
    """In threads.

    Args:
        threads: these.
        begun: the epoch.
        collate: puts batches together, if it is the user's.
        device: the GPU for which memory is pinned; None for none.
    """

    def __init__(self, threads: Threads, begun: Begun, collate: Collate, device: int | None) -> None:
        self._threads = threads
        self._collate = collate
        self._device = device
        try:
            results = threads.batches(begun.batches())
        except BaseException:
            # Such as a sampler that does not give what it gave before.
            threads.close()
            raise
        self.results: Iterator[tuple[Batch, Fetched]] = map(self._collated, results) if collate.is_users else results

    def close(self) -> None:
        """See `Work.close`."""
        self._threads.close()

    def _collated(self, result: tuple[Batch, Fetched]) -> tuple[Batch, Fetched]:
        """Puts a batch together by the user's function, in the thread that iterates over the loader.

        It may draw from the global generators, of which a process has one set. They are borrowed in the main thread only.
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
    """A batch in memory that is pinned for a GPU."""
    # In another thread the first GPU would be meant.
    torch.cuda.set_device(device)
    return pinned(batch)


def pinning_device() -> int | None:
    """Returns the number of the GPU for which memory is pinned, or None with a warning if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.current_device()
    warnings.warn("pin_memory=True, but there is no GPU: memory is not pinned", stacklevel=4)
    return None
