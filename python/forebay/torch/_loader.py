"""The data loader."""

import inspect
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, cast

import torch
from torch.utils.data import IterableDataset, default_collate, default_convert

# Which torch itself needs.
from typing_extensions import TypeVar

from forebay._say import say
from forebay.loader import _told
from forebay.loader._agent import AgentRank, cached_share
from forebay.loader._batches import FetchedBatch, SampleBatch
from forebay.loader._errors import LoaderError
from forebay.loader._failures import sample_error
from forebay.loader._given import check_map_style, check_whole
from forebay.loader._launcher import processors
from forebay.loader._report import EpochReport, Meter
from forebay.loader._settings import cache_words, chosen_settings
from forebay.loader._threads import Decoding, Threads
from forebay.loader._workers import WorkerServing
from forebay.loader.dataset import Located
from forebay.loader.rows import FixedRows
from forebay.loader.source import Helper, connect
from forebay.torch._arguments import (
    check_flags,
    check_numbers,
    check_objects,
    check_order,
    check_threads,
    ranks_of,
    tell_amplification,
)
from forebay.torch._cache import RankLookahead, agent_of
from forebay.torch._collate import collated, single
from forebay.torch._cursor import EpochCursor
from forebay.torch._draws import Draws
from forebay.torch._group import of_group
from forebay.torch._keyed import generators, globals_kept, is_training, located, stay_on_one_thread, tell_epoch
from forebay.torch._order import BegunEpoch, EpochPlace
from forebay.torch._plans import Ordering
from forebay.torch._processes import Collate, Processes
from forebay.torch._rows import TensorRows, is_undecoded
from forebay.torch._streams import IterableLoader
from forebay.torch._work import EpochWork, InProcesses, InThreads, pinning_device, to_pinned

__all__ = ["DataLoader"]

PREFETCH = 2
"""Batches ahead, as torch has it for each worker."""

# Loaders are numbered as they are made, alike in all ranks.
_names = itertools.count()


T_co = TypeVar("T_co", covariant=True, default=Any)
"""The type of a batch; it need not be given."""

READ_ONLY = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})
"""Attributes that torch's loader makes read-only, too."""


class DataLoader(Generic[T_co]):
    """Batches of a map-style dataset: the samples, order and bytes of torch's own loader, read ahead.

    For an `IterableDataset` this returns torch's own loader instead (`forebay.torch._streams.IterableLoader`).

    The order is that of `DistributedSampler(dataset, world_size, rank, shuffle, seed, drop_last)` with the epoch set,
    and each rank gets its part. It begins with epoch 0 and goes on by itself when an epoch has ended;
    `set_epoch` says which one the next is. Samples draw their random numbers from generators that are seeded by (seed,
    epoch, index), so nothing depends on workers or time.

    A dataset that has `locate` and `decode` (`ImageFolder`; see `forebay.loader.Located`) is read ahead. If its
    `decode` is keyed it runs in threads, otherwise, as any plain `__getitem__`, in torch's worker processes.

    Args:
        dataset: with `__len__` and `__getitem__`, or `locate` and `decode`.
        batch_size: samples of a batch of this rank. None: single samples, converted by torch's `default_convert` or by
            `collate_fn`; a `sampler` that gives lists of indices has the dataset asked for each list in one call.
        shuffle: permutes the dataset. `"blocks"`: a block shuffle, for datasets that say where runs of samples end that
            lie together (`TarShards`); these come in random order, `blocks_at_once` of them mixed at a time. That is
            not torch's order.
        sampler: gives indices in its place; knows by itself which rank it is of. A `DistributedSampler` of torch's is
            understood: the order is still known, and its epoch is the loader's.
        batch_sampler: gives lists of indices; then without batch_size, shuffle, sampler and drop_last.
        num_workers: threads, or processes. None: as many as this rank has processors where the dataset says where its
            samples lie, else 0. 0: all is done in training's own thread.
        collate_fn: makes a batch of samples; torch's `default_collate` unless given. One that draws from the global
            generators finds them seeded by the batch.
        pin_memory: batches come in pinned memory, if there is a GPU.
        drop_last: leaves out what does not fill a batch of every rank, so no sample comes twice. False: the first
            samples of the epoch are repeated until all ranks have as many, and last batches may be smaller.
        timeout: seconds for a batch; 0 for none.
        worker_init_fn: called in each worker process.
        multiprocessing_context: how worker processes are started.
        generator: of torch, from which the order is drawn, on one rank, if there is no seed.
        prefetch_factor: batches ahead; of each worker process, or in all for threads. 2 unless given.
        persistent_workers: worker processes stay from one epoch to the next.
        pin_memory_device: only `""`: memory is pinned for the current GPU.
        in_order: only True: batches come in their order.
        seed: of order and samples. None: on one rank drawn from torch's global generator in each epoch, as torch's
            loader does it; on several 0, as `DistributedSampler` has it.
        rank: this one's number. None: as torch.distributed or the launcher (torchrun, srun, mpirun) says.
        world_size: how many ranks there are; given together with `rank`. With 1, this rank gets the whole dataset.
        on_error: `"raise"`, or `"skip"`: samples that can't be read or decoded are left out of their batch and counted.
        report: at the end of an epoch, rank 0 says in a line what bounded it.
        blocks_at_once: of a block shuffle.
        cache: where this node's ranks together keep samples from one epoch to the next, and from one job to the next:
            `"DIR=SIZE"` on a local disk, `"ram=SIZE"` in memory, or several of these. One process of this node, the
            loader agent, then reads for all of its ranks, their threads and worker processes. For datasets that have
            `locate` and `decode`. Files must not change while the job runs.
        policy: which samples stay in the cache, by its name in `forebay plan`. None: `forebay`. Those that look ahead
            (`nopfs`, `lobster`, `lobster_as_written`, `belady`) need an order that is known: a seed, and no sampler.
        schedule: which read comes next, likewise. None: `earliest_deadline`.
        hedge_budget: share of reads that may be made a second time where the first takes long; 0 for none. None: 0.01.
        background_fill: what is needed later is read, too, as long as the cache's memory has room for it and nothing
            else is to be done.

    Attributes:
        skipped: samples that were left out in this epoch.
        padding: samples at the end of the last batch that are repeated, since another rank had one more.
        last_report: of the last epoch that was gone through; None before.

    Raises:
        LoaderError: an epoch begins, and torch.distributed was initialised since with other ranks.
        ValueError: arguments that can't be, or don't go together.
        TypeError: a dataset whose order can't be known.
    """

    # As every loader begins.
    skipped = 0
    padding = 0
    last_report: EpochReport | None = None
    _processes: Processes | None = None
    _processes_settings: tuple[Any, ...] = ()
    _has_drawn = False
    _is_made = False

    def __new__(cls, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (as `__init__`)
        """Returns torch's own loader for an `IterableDataset`, and otherwise a new loader of this class."""
        dataset = args[0] if args else options.get("dataset")
        if not isinstance(dataset, IterableDataset):
            return super().__new__(cls)
        if cls is not DataLoader:
            raise TypeError(f"{cls.__name__} takes no IterableDataset: make forebay.torch.DataLoader itself of it")
        given = inspect.signature(cls.__init__).bind(None, *args, **options).arguments
        return IterableLoader(dataset, {name: value for name, value in given.items() if name not in ("self", "dataset")})

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  (by what it has)
        batch_size: int | None = 1,
        shuffle: bool | Literal["blocks"] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,  # noqa: ANN401  (a name or a context)
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        report: bool = True,
        blocks_at_once: int | None = None,
        cache: str | Sequence[str] = (),
        policy: str | None = None,
        schedule: str | None = None,
        hedge_budget: float | None = None,
        background_fill: bool = False,
    ) -> None:
        check_map_style(dataset)
        check_order(in_order, pin_memory_device)
        # False is the default of background_fill, and no choice.
        fill = None if background_fill is False else background_fill
        choices = chosen_settings(policy=policy, schedule=schedule, hedge_budget=hedge_budget, background_fill=fill)
        check_numbers(num_workers, timeout, prefetch_factor, seed, on_error)
        check_objects(sampler, batch_sampler, collate_fn, worker_init_fn, generator)
        check_flags(pin_memory=pin_memory, drop_last=drop_last, persistent_workers=persistent_workers, report=report)
        self.dataset = dataset
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._is_batching = batch_size is not None
        self.collate_fn: Callable[[Any], Any] = collate_fn or (default_collate if self._is_batching else default_convert)
        self.pin_memory, self.timeout, self.generator, self.persistent_workers = pin_memory, timeout, generator, persistent_workers
        self.worker_init_fn, self.multiprocessing_context, self.prefetch_factor = worker_init_fn, multiprocessing_context, prefetch_factor
        self.drop_last, self.batch_size = bool(drop_last), batch_size if batch_sampler is None else None
        self._is_rank_found = rank is None and sampler is None and batch_sampler is None
        self._located: Located | None = located(dataset)
        self._processors = processors()
        self.num_workers = (self._processors if self._located is not None else 0) if num_workers is None else num_workers
        ordering = Ordering(batch_size, shuffle, seed, blocks_at_once, sampler, batch_sampler, self.drop_last, *ranks_of(rank, world_size))
        self._cursor = EpochCursor(ordering, dataset, self._located, generator)
        plan = self._cursor.plan
        self.rank, self.world_size = plan.rank, plan.world
        self._is_skipping = on_error == "skip"
        self._name = str(next(_names))
        self._is_reporting = report and self.rank == 0
        tell_amplification(self._located or dataset, is_read_all_over=self._is_reporting and shuffle is True)
        if self._is_in_threads():
            check_threads(worker_init_fn, multiprocessing_context)
        else:
            self._processes_now()
        self._agent: AgentRank | None = self._made_agent(cache_words(cache), choices)
        self._cursor.is_length_fixed = self._agent is not None
        self._is_made = True

    def __setattr__(self, name: str, value: object) -> None:
        if name in READ_ONLY and self._is_made:
            raise ValueError(f"{name} of a {type(self).__name__} can't be set after it was made: make another one")
        super().__setattr__(name, value)

    @property
    def epoch(self) -> int:
        """The number of the epoch that goes on, or comes next."""
        return self._cursor.place.epoch

    @property
    def left(self) -> int:
        """Batches of this rank that are left in the epoch after the one handed out last, or batches of the next epoch.

        Raises:
            TypeError: a sampler of the user's own does not know.
        """
        return self._cursor.left(self.generator)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that comes next.

        After `load_state_dict` the one of the state goes on where it was, any other begins at its beginning.

        Raises:
            ValueError: no epoch has that number.
        """
        self._cursor.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Skips batches of every rank at the beginning of the next epoch, without reading them.

        It is for programs that count batches; programs that keep states have `load_state_dict`.

        Raises:
            ValueError: there are not as many, or a sampler of the user's own makes the order.
        """
        self._cursor.skip(check_whole("batches", batches, 0), self.generator)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of training after the batch handed out last, as plain values.

        All ranks return the same, unless the loader has a custom sampler.

        Its `length` is the dataset's when the epoch began, or the dataset's now if none has begun. Nothing is drawn
        from any generator.
        """
        return self._cursor.state(self.generator)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the next epoch is the rest of the state's, after the last sample that was handed out.

        It may come from more ranks or fewer, and from batches of another size: what is left is dealt again.

        Raises:
            StateError: it is of another dataset or order. Nothing has changed.
        """
        self._cursor.load(state, self.generator)

    def __len__(self) -> int:
        """Returns the batches of a whole epoch of this rank. An epoch that goes on from a state has fewer."""
        return len(self._cursor.plan_now(self.generator))

    def __iter__(self) -> Iterator[Any]:
        if self._is_rank_found and (group := of_group()) and group != (self.rank, self.world_size):
            raise LoaderError(
                f"the loader was made as rank {self.rank} of {self.world_size}, and torch.distributed says rank {group[0]} of "
                f"{group[1]} now: make it once torch.distributed is initialised, or give rank= and world_size="
            )
        cursor = self._cursor
        place, is_resumed = cursor.go_on(self.generator)
        self.skipped = self.padding = 0
        if cursor.plan.is_empty:
            # Torch's loader draws for its workers all the same.
            Draws(self.generator).draw()
            cursor.place = EpochPlace(place.epoch + 1)
            return iter(())
        begun = cursor.plan.begin(place, Draws(self.generator).peek())
        # What an epoch draws when it begins was drawn by whoever began it; generator= itself is set back to that time,
        # if it was used.
        is_kept = is_resumed and is_training()
        with globals_kept(None if place.generator else self.generator) if is_kept else nullcontext():
            epoch = _Epoch(self, begun, place)
        cursor.has_begun(place, begun)
        return epoch

    def _made_agent(self, cache: tuple[str, ...], choices: Mapping[str, Any]) -> AgentRank | None:
        if not cache:
            for name in choices:
                raise ValueError(f"{name}= is about what cache= keeps: give cache=, or leave it out")
            return None
        if self._located is None or self.num_workers == 0:
            raise ValueError(
                "cache= is for datasets that say where their samples lie, with locate and decode, and for num_workers above 0; "
                "or leave it out, and start the program with `forebay run`"
            )
        batches = self._ahead * (1 if self._is_in_threads() else self.num_workers)
        batch_size = self.batch_size if self._is_batching else 1
        return agent_of(self.dataset, self._cursor.plan, batch_size, RankLookahead(batches, self.rank, self.world_size), cache, choices)

    def _is_in_threads(self) -> bool:
        return self._located is not None and self.num_workers > 0 and getattr(self._located, "keyed", True)

    @property
    def _ahead(self) -> int:
        return PREFETCH if self.prefetch_factor is None else self.prefetch_factor

    def _processes_now(self) -> Processes:
        """Returns the worker processes for the current settings, which torch looks at when an epoch begins."""
        options: dict[str, Any] = {
            "pin_memory": self.pin_memory,
            "timeout": self.timeout,
            "multiprocessing_context": self.multiprocessing_context,
            "generator": self.generator,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": self.persistent_workers,
        }
        settings = (self.collate_fn, self.num_workers, self.worker_init_fn, *options.values())
        # Workers that stay go on as they began.
        if self._processes is None or (settings != self._processes_settings and not self.persistent_workers):
            collate, workers, begin = self._collate(), self.num_workers, self.worker_init_fn
            made = Processes(self.dataset, collate, skip=self._is_skipping, workers=workers, worker_init_fn=begin, options=options)
            self._processes, self._processes_settings = made, settings
        return self._processes

    def _collate(self) -> Collate:
        if not self._is_batching:
            return Collate(partial(single, self.collate_fn), is_users=self.collate_fn is not default_convert, is_copying=False)
        if self.collate_fn is not default_collate:
            return Collate(self.collate_fn, is_users=True, is_copying=False)
        # Bytes that are read ahead are only to be read, and samples may be views of them.
        return Collate(collated if self._located is not None else default_collate, is_users=False, is_copying=True)

    def _begin(self, begun: BegunEpoch) -> EpochWork:
        if not self._is_in_threads():
            serving = None
            if self._agent is not None and self._located is not None:
                tell_epoch(self.dataset, self.epoch)
                serving = WorkerServing(self._agent, begun.order, self._located.locate)
            return InProcesses(self._processes_now(), begun, serving, is_known=self._cursor.plan.is_known)
        if not (self._has_drawn and self.persistent_workers):
            # Torch's loader does, each time that it starts workers.
            Draws(self.generator).draw()
            self._has_drawn = True
        assert self._located is not None
        tell_epoch(self.dataset, self.epoch)
        collate, device = self._collate(), pinning_device() if self.pin_memory else None

        def finish(batch: Any) -> Any:  # noqa: ANN401  (a batch)
            return batch if device is None or collate.is_users else to_pinned(batch, device)

        def assemble(samples: list[Any]) -> Any:  # noqa: ANN401  (a batch)
            return finish(samples if collate.is_users else collate.function(samples))

        decoding = Decoding(self._located, _generators, assemble, is_copying=collate.is_copying, skip=self._is_skipping)
        if collate.is_copying and is_undecoded(self._located):
            rows = TensorRows(cast(FixedRows, self._located), finish)
            decoding = replace(decoding, assemble=lambda made: rows.finish(made[0]), rows=rows)
        source = connect() if self._agent is None else self._agent.source(connect())
        try:
            source.register(begun.order, self._located.locate)
        except BaseException:
            source.close()
            raise
        threads = Threads(decoding, source, threads=self.num_workers, ahead=self._ahead, timeout_s=self.timeout)
        return InThreads(threads, begun, collate, device)


class _Epoch:
    """An iterator over an epoch, or the rest of one."""

    def __init__(self, loader: DataLoader, begun: BegunEpoch, place: EpochPlace) -> None:
        self._loader = loader
        self._begun = begun
        self._number = place.epoch
        self._batches = 0
        self._is_over = False
        self._meter = Meter(place.epoch, workers=loader.num_workers, processors=loader._processors, is_located=loader._located is not None)
        self._work = loader._begin(begun)
        # Also when the program ends, or forgets it halfway.
        self._close = weakref.finalize(self, _close_in, os.getpid(), self._work)

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:  # noqa: ANN401  (whatever a batch is)
        while True:
            batch, fetched = self._next()
            loader = self._loader
            self._batches += 1
            loader.padding = self._begun.padding_of(batch.iteration)
            # Counted before it is handed out, so that a state that is taken while it is trained with has it.
            loader._cursor.place = self._begun.place_after(self._batches)
            if not fetched.failed:
                return fetched.value

    def _next(self) -> tuple[SampleBatch, FetchedBatch]:
        """Returns the next batch. A failed one is returned only if single samples that fail are left out."""
        if self._is_over:
            raise StopIteration
        asked = time.perf_counter()
        try:
            batch, fetched = next(self._work.results)
        except StopIteration:
            self._end()
            raise
        except BaseException:
            self._stop()
            raise
        loader, samples = self._loader, len(batch.samples)
        self._meter.had(samples, fetched, time.perf_counter() - asked)
        loader.skipped = self._meter.skipped
        if loader._agent is not None and samples:
            loader._agent.decodes(fetched.decoded_s / samples / loader.num_workers)
        if fetched.failed and (loader._is_batching or not loader._is_skipping):
            self._stop()
            raise sample_error(fetched.failures, samples, skip=loader._is_skipping)
        return batch, fetched

    def _stop(self) -> None:
        self._is_over = True
        self._close()

    def _end(self) -> None:
        self._stop()
        loader = self._loader
        loader._cursor.place = EpochPlace(self._number + 1)
        loader.padding = 0
        loader.last_report = report = self._meter.report()
        agent, is_asked = loader._agent, _told.is_asked()
        since = agent.since() if agent is not None and (is_asked or loader._is_reporting) else {}
        if is_asked:
            _told.tell(report, loader._name, loader.rank, loader.world_size, since)
        if loader._is_reporting:
            say(f"{report}{cached_share(since)}")


def _close_in(pid: int, work: EpochWork) -> None:
    # In a process that was forked none of its threads are left, and locks may be as they were just then.
    if os.getpid() != pid:
        return
    if isinstance(threading.current_thread(), Helper):
        # Garbage is collected by whichever thread comes to it: one that was to end itself here perhaps, in the middle
        # of what it does.
        threading.Thread(target=work.close, name="forebay-close").start()
    else:
        work.close()


def _generators() -> Callable[[int], torch.Generator]:
    """Returns the generators of a thread that decodes."""
    stay_on_one_thread()
    return generators()
