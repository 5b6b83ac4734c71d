"""Samples in torch's worker processes, for datasets that draw from global generators or have only `__getitem__`."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from forebay import _core
from forebay.loader._agent_source import AgentBatch, Loan
from forebay.loader._batches import FAILED, BatchPart, FetchedBatch, SampleBatch, decoded
from forebay.loader._failures import failure
from forebay.loader._nodes import stay
from forebay.loader._threads import READ_AHEAD
from forebay.loader._workers import RingShare, WorkerSeat, WorkerServing
from forebay.loader.source import Request, Source, connect
from forebay.torch._keyed import generators, globals_kept, is_training, located, on_one_thread, reseed, tell_epoch

__all__ = ["Collate", "Processes", "WorkOptions"]

PREFETCH = 2
"""Batches ahead, as torch has it for each worker."""
TORCHS_OPTIONS = ("pin_memory", "timeout", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers")
"""Options of torch's loader that are its own business."""
NO_SAMPLE = 2**32 - 1
"""Stands for a sample's index: no dataset is as long."""


@dataclass(frozen=True)
class WorkOptions:
    """The arguments of a loader that say how batches are made; see `forebay.torch.DataLoader`.

    They are looked at when an epoch begins.
    """

    collate_fn: Callable[[Any], Any]
    num_workers: int
    worker_init_fn: Callable[[int], None] | None
    pin_memory: bool
    timeout: float
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool

    @property
    def ahead(self) -> int:
        """Batches ahead: of each worker process, or of all threads together."""
        return PREFETCH if self.prefetch_factor is None else self.prefetch_factor


@dataclass(frozen=True)
class Collate:
    """Makes a batch of samples, with generators that are seeded by the batch's first sample and the epoch.

    Attributes:
        function: the user's function, which may draw from the global generators, or torch's.
        is_users: whether the function is the user's.
        is_copying: whether the function copies the samples' bytes, instead of referring to them.
    """

    function: Callable[[list[Any]], Any]
    is_users: bool
    is_copying: bool

    def __call__(self, samples: list[Any], batch: SampleBatch) -> Any:  # noqa: ANN401  (what the function gives)
        """Makes a batch. A caller that needs the global generators keeps them: see `globals_kept`."""
        if self.is_users and batch.samples and is_training():
            reseed(_core.sample_key(batch.key(batch.samples[0]), batch.epoch, NO_SAMPLE))
        return self.function(samples)


@dataclass(frozen=True)
class _Task:
    """A message to a worker.

    Attributes:
        epoch: number of the epoch, counted by the sending process; a new number begins an epoch.
        batch: the batch to make now.
        ahead: samples of the worker's next batch, if that is known.
        share: the batch's part of the rank's ring; None if the worker is to read by itself.
    """

    epoch: int
    batch: SampleBatch
    ahead: list[int]
    share: RingShare | None


@dataclass
class _Fetched(FetchedBatch):
    """The result of a batch, with the method that torch's thread for pinned memory calls.

    Attributes:
        lost: the reason why the worker reads by itself; None if the agent serves it, or it was sent no share.
    """

    lost: str | None = None

    def pin_memory(self) -> "_Fetched":
        self.value = pin_memory(self.value)
        return self


class _Fetcher(Dataset[Any]):
    """The dataset of torch's loader: its indices are tasks, its samples are batches."""

    def __init__(self, dataset: Any, collate: Collate, *, skip: bool, processes: int) -> None:  # noqa: ANN401  (by what it has)
        self.dataset = dataset
        self._located = located(dataset)
        self._collate = collate
        self._skip = skip
        self._processes = processes
        # Made by the process that uses it.
        self._source: Source | None = None
        self._seated = WorkerSeat()
        self._epoch = self._told = -1
        # Of the task that is worked on, and of the one that is to come, with its samples.
        self._request: Request | None = None
        self._ahead: tuple[list[int], Request] | None = None

    def __getitems__(self, task: _Task) -> _Fetched:
        """Makes a batch. Torch's loader calls this name for a whole batch."""
        # Workers have generators of their own, training's thread has not.
        is_worker = get_worker_info() is not None
        if task.batch.epoch != self._told:
            tell_epoch(self.dataset, task.batch.epoch)
            self._told = task.batch.epoch
        with globals_kept() if is_training() and not is_worker else contextlib.nullcontext(), on_one_thread():
            fetched = _Fetched()
            samples = self._read(task, fetched) if self._located is not None else self._get(task.batch, fetched)
            fetched.settle(samples, skip=self._skip)
            if not fetched.failed:
                begun = time.perf_counter()
                fetched.value = self._collate(samples, task.batch)
                fetched.decoded_s += time.perf_counter() - begun
        if self._request is not None:
            self._request.release()
            self._request = None
        return fetched

    def close(self) -> None:
        """Ends this process's reading."""
        if self._source is not None:
            self._source.close()
            self._source = self._request = self._ahead = None

    def _get(self, batch: SampleBatch, fetched: FetchedBatch) -> list[Any]:
        """Returns samples of a dataset that reads by itself. Time on no processor counts as reading."""
        samples = []
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        is_borrowing = is_training()
        for index in batch.samples[:1] if batch.is_one_call else batch.samples:
            if is_borrowing:
                reseed(batch.key(index))
            try:
                samples.append(self.dataset[batch.samples if batch.is_one_call else index])
            except MemoryError:
                raise
            except Exception as error:
                fetched.failures.append(failure(self.dataset, index, error))
                if not self._skip:
                    break
        fetched.decoded_s = time.thread_time() - begun_cpu
        fetched.waited_s = max(0.0, time.perf_counter() - begun - fetched.decoded_s)
        return samples

    def _read(self, task: _Task, fetched: _Fetched) -> list[Any]:
        """Returns samples of a dataset with `locate` and `decode`."""
        dataset, batch, generator = self._located, task.batch, generators()
        source = self._begun(task)
        assert dataset is not None
        shared = None if task.share is None else self._seated.request(batch, task.share, source)
        request = self._request = shared or self._requested(source, task)

        is_borrowing = is_training()

        def rng(key: int) -> torch.Generator:
            # A dataset that is not keyed draws from the global ones.
            if is_borrowing:
                reseed(key)
            return generator(key)

        # The agent's are another's as soon as the batch is put together.
        is_lasting = source.is_lasting and shared is None
        part, are_bytes_kept = BatchPart(range(len(batch.samples))), is_lasting or self._collate.is_copying
        decoded(dataset, request, batch, part, rng, fetched, are_bytes_kept=are_bytes_kept, skip=self._skip)
        if task.share is not None:
            fetched.lost = self._seated.lost
        return [sample for sample in part.samples if sample is not FAILED]

    def _begun(self, task: _Task) -> Source:
        """Returns the source, in the task's epoch."""
        assert self._located is not None
        if self._source is None:
            self._source = connect(self._processes)
        if task.epoch != self._epoch:
            # A worker knows no more of its batches than it is sent.
            self._source.register(None, self._located.locate)
            self._epoch, self._ahead = task.epoch, None
        return self._source

    def _requested(self, source: Source, task: _Task) -> Request:
        """Requests the samples of the task and of the next one; returns the request of the task."""
        batch, known = task.batch, self._ahead
        if known is not None and known[0] == batch.samples:
            request = known[1]
        else:
            # Another worker has died, or nothing was known.
            if known is not None:
                known[1].release()
            request = source.request(batch.samples, batch.iteration)
        self._ahead = (task.ahead, source.request(task.ahead, batch.iteration + 1)) if task.ahead else None
        return request


class _Sending:
    """The tasks of an epoch, as torch's loader asks for them, and their results.

    Torch's iterator refers to this as long as its workers live, and persistent workers until they have heard of the
    next epoch. As long their part of the agent's memory stays.

    """

    def __init__(self, epoch: int, batches: Iterator[SampleBatch], workers: int, serving: WorkerServing | None, *, is_known: bool) -> None:
        self._epoch = epoch
        self._batches = batches
        self._serving = serving
        # Torch deals batches to its workers in turn. A sampler of the user's own is not asked before its batch is due:
        # it may draw from generators that training draws from, too.
        self._next = max(1, workers) if is_known else 0
        self._ahead = self._next if serving is None or not is_known else max(self._next, READ_AHEAD)
        self._coming: deque[tuple[SampleBatch, AgentBatch | None]] = deque()
        self._sent: deque[tuple[SampleBatch, Loan | None]] = deque()

    def __iter__(self) -> "_Sending":
        return self

    def __next__(self) -> _Task:
        coming, serving = self._coming, self._serving
        while len(coming) <= self._ahead and (batch := next(self._batches, None)):
            coming.append((batch, None if serving is None else serving.request(batch)))
        if not coming:
            raise StopIteration
        batch, requested = coming.popleft()
        share, loan = (None, None) if serving is None else serving.lend(requested)
        self._sent.append((batch, loan))
        ahead = coming[self._next - 1][0].samples if 0 < self._next <= len(coming) else []
        return _Task(self._epoch, batch, ahead, share)

    def back(self, fetched: _Fetched) -> SampleBatch:
        """Takes back the next batch; returns which one it is."""
        batch, loan = self._sent.popleft()
        if self._serving is not None:
            self._serving.back(loan, fetched.lost)
        return batch


class _Tasks:
    """The batch sampler of torch's loader: gives the tasks of the epoch that was begun last."""

    def __init__(self) -> None:
        self.sending: Iterator[_Task] = iter(())

    def __iter__(self) -> Iterator[_Task]:
        return self.sending


def _end_with_parent() -> None:
    """Ends this worker process when training's has died, also within a read that hangs."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), name="forebay-watch", daemon=True).start()


def _begin(users: Callable[[int], None] | None, worker: int) -> None:
    """Begins a worker process."""
    stay(worker)
    _end_with_parent()
    info = get_worker_info()
    # A user who asks there for the dataset means his own.
    object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[union-attr]
    if users is not None:
        users(worker)


def _as_it_is(fetched: Any) -> Any:  # noqa: ANN401  (a batch)
    return fetched


class Processes:
    """Makes batches in torch's worker processes, or with none of them in training's own thread, in order.

    With `skip` a sample that fails is left out, instead of failing its batch.
    """

    def __init__(self, dataset: object, collate: Collate, options: WorkOptions, *, skip: bool) -> None:
        self._workers = workers = options.num_workers
        self._fetcher = _Fetcher(dataset, collate, skip=skip, processes=max(1, workers))
        self._is_persistent = options.persistent_workers
        self._epochs = 0
        self._tasks = _Tasks()
        # Tasks take the place of lists of indices.
        tasks: Any = self._tasks
        self._loader: DataLoader[Any] = DataLoader(
            self._fetcher,
            batch_sampler=tasks,
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=partial(_begin, options.worker_init_fn),
            **{name: getattr(options, name) for name in TORCHS_OPTIONS},
        )

    def batches(
        self, batches: Iterator[SampleBatch], serving: WorkerServing | None, *, is_known: bool
    ) -> Iterator[tuple[SampleBatch, FetchedBatch]]:
        """Begins an epoch, and yields its batches and their results in order.

        `serving` is the agent's part of it; with `is_known` batches may be asked for early.
        """
        self._epochs += 1
        before = self._tasks.sending
        sending = self._tasks.sending = _Sending(self._epochs, batches, self._workers, serving, is_known=is_known)
        results = iter(self._loader)
        # Workers that stay have heard of the new epoch only now.
        del before
        return ((sending.back(fetched), fetched) for fetched in results)

    def close(self) -> None:
        """Ends the reading of training's own thread.

        Worker processes end with torch's iterator, or stay for the next epoch.
        """
        if not self._is_persistent:
            self._tasks.sending = iter(())
        self._fetcher.close()
