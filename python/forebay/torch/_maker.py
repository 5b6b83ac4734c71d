"""The choice between threads and worker processes, and what either needs to make an epoch's batches."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import default_collate, default_convert

from forebay._launcher import processors
from forebay.loader._agent import AgentRank
from forebay.loader._threads import Decoding, Threads
from forebay.loader._workers import WorkerServing
from forebay.loader.dataset import Located
from forebay.loader.rows import FixedRows
from forebay.loader.source import connect
from forebay.torch._arguments import check_threads
from forebay.torch._collate import collated, single
from forebay.torch._draws import Draws
from forebay.torch._keyed import generators, located, stay_on_one_thread, tell_epoch
from forebay.torch._order import BegunEpoch
from forebay.torch._processes import Collate, Processes, WorkOptions
from forebay.torch._rows import TensorRows, is_undecoded
from forebay.torch._work import EpochWork, InProcesses, InThreads, pinning_device, to_pinned

__all__ = ["BatchMaker"]


class BatchMaker:
    """Makes the batches of a loader's epochs.

    Attributes:
        dataset: the dataset as given to the loader.
        located: the dataset with `locate` and `decode`; None if it has not.
        processors: processors that this rank may use.
        is_batching: whether samples are put together; False for single samples.
        is_skipping: whether samples that fail are left out.
        agent: the rank as the node's agent serves it; None without an agent.
    """

    def __init__(self, dataset: Any, *, is_batching: bool, is_skipping: bool) -> None:  # noqa: ANN401  (by what it has)
        self.dataset = dataset
        self.located: Located | None = located(dataset)
        self.processors = processors()
        self.is_batching, self.is_skipping = is_batching, is_skipping
        self.agent: AgentRank | None = None
        self._processes: Processes | None = None
        self._processes_options: WorkOptions | None = None
        self._has_drawn = False

    def check(self, options: WorkOptions) -> None:
        """Refuses options that do not go together, or that torch refuses (`ValueError`)."""
        if self._is_in_threads(options):
            check_threads(options.worker_init_fn, options.multiprocessing_context)
        else:
            self._processes_of(options)

    def batches_ahead(self, options: WorkOptions) -> int:
        """Returns the batches that are decoded ahead by all threads or worker processes."""
        return options.ahead * (1 if self._is_in_threads(options) else options.num_workers)

    def begin(self, options: WorkOptions, begun: BegunEpoch, epoch: int, *, is_known: bool) -> EpochWork:
        """Begins to make the batches of an epoch; `is_known` is whether they may be asked for early."""
        if self._is_in_threads(options):
            return self._begin_threads(options, begun, epoch)
        serving = None
        if self.agent is not None and self.located is not None:
            tell_epoch(self.dataset, epoch)
            serving = WorkerServing(self.agent, begun.order, self.located.locate)
        return InProcesses(self._processes_of(options), begun, serving, is_known=is_known)

    def _is_in_threads(self, options: WorkOptions) -> bool:
        return self.located is not None and options.num_workers > 0 and getattr(self.located, "keyed", True)

    def _processes_of(self, options: WorkOptions) -> Processes:
        # Workers that stay go on as they began.
        if self._processes is None or (options != self._processes_options and not options.persistent_workers):
            self._processes = Processes(self.dataset, self._collate(options), options, skip=self.is_skipping)
            self._processes_options = options
        return self._processes

    def _collate(self, options: WorkOptions) -> Collate:
        function = options.collate_fn
        if not self.is_batching:
            return Collate(partial(single, function), is_users=function is not default_convert, is_copying=False)
        if function is not default_collate:
            return Collate(function, is_users=True, is_copying=False)
        # Bytes that are read ahead are only to be read, and samples may be views of them.
        return Collate(collated if self.located is not None else default_collate, is_users=False, is_copying=True)

    def _begin_threads(self, options: WorkOptions, begun: BegunEpoch, epoch: int) -> InThreads:
        if not (self._has_drawn and options.persistent_workers):
            # Torch's loader does, each time that it starts workers.
            Draws(options.generator).draw()
            self._has_drawn = True
        dataset = self.located
        assert dataset is not None
        tell_epoch(self.dataset, epoch)
        collate, device = self._collate(options), pinning_device() if options.pin_memory else None

        def finish(batch: Any) -> Any:  # noqa: ANN401  (a batch)
            return batch if device is None or collate.is_users else to_pinned(batch, device)

        def assemble(samples: list[Any]) -> Any:  # noqa: ANN401  (a batch)
            return finish(samples if collate.is_users else collate.function(samples))

        decoding = Decoding(dataset, _generators, assemble, is_copying=collate.is_copying, skip=self.is_skipping)
        if collate.is_copying and is_undecoded(dataset):
            rows = TensorRows(cast(FixedRows, dataset), finish)
            decoding = replace(decoding, assemble=lambda made: rows.finish(made[0]), rows=rows)
        source = connect() if self.agent is None else self.agent.source(connect())
        try:
            source.register(begun.order, dataset.locate)
        except BaseException:
            source.close()
            raise
        threads = Threads(decoding, source, threads=options.num_workers, ahead=options.ahead, timeout_s=options.timeout, agent=self.agent)
        return InThreads(threads, begun, collate, device)


def _generators() -> Callable[[int], torch.Generator]:
    """Returns the generators of a thread that decodes."""
    stay_on_one_thread()
    return generators()
