"""The data loader."""

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, Generic, Literal

import torch
from torch.utils.data import IterableDataset, default_collate, default_convert

# Which torch itself needs.
from typing_extensions import TypeVar

from forebay.loader._agent import AgentRank
from forebay.loader._errors import LoaderError
from forebay.loader._given import check_map_style, check_whole
from forebay.loader._plan import NO_PLAN, LoaderPlan, plan_of
from forebay.loader._report import EpochReport
from forebay.loader._reporter import LoaderReporter
from forebay.loader._settings import cache_words, chosen_settings
from forebay.torch._arguments import check_flags, check_numbers, check_objects, check_order, ranks_of, tell_amplification
from forebay.torch._cache import agent_of
from forebay.torch._cursor import EpochCursor
from forebay.torch._draws import Draws
from forebay.torch._epoch import EpochBatches
from forebay.torch._group import of_group
from forebay.torch._keyed import globals_kept, is_training
from forebay.torch._maker import BatchMaker
from forebay.torch._order import EpochPlace
from forebay.torch._plans import Ordering
from forebay.torch._processes import WorkOptions
from forebay.torch._streams import IterableLoader

__all__ = ["DataLoader"]

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
        shuffle: permutes the dataset. `"blocks"`: a block shuffle, for datasets with runs of samples that are stored
            together (`TarShards`); these come in random order, `blocks_at_once` of them mixed at a time. That is not
            torch's order.
        sampler: sampler of indices, instead of `shuffle`, which knows its rank by itself. A `DistributedSampler` of
            torch's is understood: the order is still known, and its epoch is the loader's.
        batch_sampler: sampler of lists of indices, instead of batch_size, shuffle, sampler and drop_last.
        num_workers: threads, or processes. None: as many as this rank has processors if the dataset locates samples,
            else 0. 0: all is done in training's own thread.
        collate_fn: makes a batch of samples; torch's `default_collate` unless given. One that draws from the global
            generators finds them seeded by the batch.
        pin_memory: batches come in pinned memory, if there is a GPU.
        drop_last: leaves out what does not fill a batch of every rank, so no sample comes twice. False: the first
            samples of the epoch are repeated until all ranks have as many, and last batches may be smaller.
        timeout: seconds for a batch; 0 for none.
        worker_init_fn: called in each worker process.
        multiprocessing_context: name or context of a way to start worker processes.
        generator: torch's generator from which the order is drawn, on one rank, if there is no seed.
        prefetch_factor: batches ahead; of each worker process, or in all for threads. 2 unless given.
        persistent_workers: worker processes stay from one epoch to the next.
        pin_memory_device: only `""`: memory is pinned for the current GPU.
        in_order: only True: batches come in their order.
        seed: seed of order and samples. None: on one rank drawn from torch's global generator in each epoch, as torch's
            loader does it; on several 0, as `DistributedSampler` has it.
        rank: number of this rank. None: as torch.distributed or the launcher (torchrun, srun, mpirun) says.
        world_size: number of ranks; given together with `rank`. With 1, this rank gets the whole dataset.
        on_error: `"raise"`, or `"skip"`: samples that can't be read or decoded are left out of their batch and counted.
        report: at the end of an epoch, rank 0 says in a line what bounded it.
        blocks_at_once: number of blocks that a block shuffle mixes at a time.
        cache: places where this node's ranks together keep samples from one epoch, and from one job, to the next:
            `"DIR=SIZE"` on a local disk, `"ram=SIZE"` in memory, or several of these. One process of this node, the
            loader agent, then reads for all of its ranks, their threads and worker processes. For datasets that have
            `locate` and `decode`. Files must not change while the job runs.
        policy: policy by which samples stay in the cache, by its name in `forebay plan`. None: `forebay`. Those that
            look ahead (`nopfs`, `lobster`, `lobster_as_written`, `belady`) need an order that is known: a seed, and no
            sampler; on several nodes also consecutive ranks on each.
        schedule: schedule by which the next read is chosen, and the threads with which each rank of the node decodes,
            likewise. None: `earliest_deadline`, with which each rank keeps its own threads.
        hedge_budget: share of reads that may be made a second time where the first takes long; 0 for none. None: 0.01.
        thread_tau: share of a training step by which a rank may be late before threads move to it, and share of the
            longest decoding that moving threads must gain. None: 0.05.
        thread_steps: steps between two decisions on threads. None: 1.
        background_fill: whether samples that are needed later are read while the cache's memory has room and nothing
            else is to be done.
        plan: plan file whose table `[run]` has cache, reads, policy, schedule and their settings; `forebay plan` prints
            it. Arguments that are given here come first.

    Raises:
        LoaderError: an epoch begins, and torch.distributed was initialised since with other ranks.
        ValueError: arguments that can't be, or don't go together.
        TypeError: a dataset whose order can't be known.
    """

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
        thread_tau: float | None = None,
        thread_steps: int | None = None,
        background_fill: bool = False,
        plan: str | os.PathLike[str] | None = None,
    ) -> None:
        check_map_style(dataset)
        check_order(in_order, pin_memory_device)
        fill = None if background_fill is False else background_fill  # False is the default, and no choice.
        choices = chosen_settings(
            policy=policy,
            schedule=schedule,
            hedge_budget=hedge_budget,
            thread_tau=thread_tau,
            thread_steps=thread_steps,
            background_fill=fill,
        )
        check_numbers(num_workers, timeout, prefetch_factor, seed, on_error)
        check_objects(sampler, batch_sampler, collate_fn, worker_init_fn, generator)
        check_flags(pin_memory=pin_memory, drop_last=drop_last, persistent_workers=persistent_workers, report=report)
        self.dataset, self.generator, self.persistent_workers = dataset, generator, persistent_workers
        self.collate_fn: Callable[[Any], Any] = collate_fn or (default_convert if batch_size is None else default_collate)
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.pin_memory, self.timeout, self.prefetch_factor = pin_memory, timeout, prefetch_factor
        self._maker = BatchMaker(dataset, is_batching=batch_size is not None, is_skipping=on_error == "skip")
        located = self._maker.located
        self.num_workers = (self._maker.processors if located is not None else 0) if num_workers is None else num_workers
        is_rank_found = rank is None and sampler is None and batch_sampler is None
        rank, world = ranks_of(rank, world_size)
        ordering = Ordering(batch_size, shuffle, seed, blocks_at_once, sampler, batch_sampler, bool(drop_last), rank, world)
        self._cursor = EpochCursor(ordering, dataset, located, generator)
        order = self._cursor.plan
        is_saying = report and order.rank == 0
        tell_amplification(located or dataset, is_read_all_over=is_saying and shuffle is True)
        options = self._options()
        self._maker.check(options)
        planned = NO_PLAN if plan is None else plan_of(plan, len(dataset))
        agent = self._maker.agent = self._agent_of(options, cache_words(cache) or planned.cache, choices, planned)
        self._cursor.is_length_fixed = agent is not None
        self._reporter = LoaderReporter(str(next(_names)), order.rank, order.world, agent, is_saying=is_saying)
        self._is_rank_found, self._is_made = is_rank_found, True

    def __setattr__(self, name: str, value: object) -> None:
        if name in READ_ONLY and self._is_made:
            raise ValueError(f"{name} of a {type(self).__name__} can't be set after it was made: make another one")
        super().__setattr__(name, value)

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None for single samples, and where a batch sampler makes the batches."""
        return self._cursor.ordering.batch_size if self.batch_sampler is None else None

    @property
    def sampler(self) -> Iterable[Any] | None:
        """The sampler as given."""
        return self._cursor.ordering.sampler

    @property
    def batch_sampler(self) -> Iterable[Any] | None:
        """The sampler of batches as given."""
        return self._cursor.ordering.batch_sampler

    @property
    def drop_last(self) -> bool:
        """True if samples that do not fill a batch of every rank are left out."""
        return self._cursor.ordering.drop_last

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._reporter.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._reporter.world

    @property
    def skipped(self) -> int:
        """Samples that were left out in this epoch."""
        return self._reporter.skipped

    @property
    def padding(self) -> int:
        """Samples at the end of the last batch that are repeated, since another rank had one more."""
        return self._reporter.padding

    @property
    def last_report(self) -> EpochReport | None:
        """The report of the last epoch that was gone through; None before."""
        return self._reporter.last

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
        cursor, reporter = self._cursor, self._reporter
        place, is_resumed = cursor.go_on(self.generator)
        reporter.skipped = reporter.padding = 0
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
            batches = EpochBatches(self._maker, self._options(), cursor, reporter, begun, place.epoch)
        cursor.has_begun(place, begun)
        return batches

    @property
    def _agent(self) -> AgentRank | None:
        return self._maker.agent

    def _options(self) -> WorkOptions:
        return WorkOptions(**{one.name: getattr(self, one.name) for one in fields(WorkOptions)})

    def _agent_of(self, options: WorkOptions, cache: tuple[str, ...], choices: Mapping[str, Any], planned: LoaderPlan) -> AgentRank | None:
        if not cache:
            if planned.name:
                raise ValueError(f"plan={planned.name!r}: [run] has no cache; write one there, or give cache=")
            for name in choices:
                raise ValueError(f"{name}= is about what cache= keeps: give cache=, or leave it out")
            return None
        maker, plan = self._maker, self._cursor.plan
        if maker.located is None or options.num_workers == 0:
            raise ValueError(
                "cache= is for datasets that say where their samples lie, with locate and decode, and for num_workers above 0; "
                "or leave it out, and start the program with `forebay run`"
            )
        batch_size = self.batch_size if maker.is_batching else 1
        return agent_of(self.dataset, plan, batch_size, maker.batches_ahead(options), cache, choices, planned)
