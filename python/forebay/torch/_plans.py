"""The order of samples that a loader's arguments ask for."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DistributedSampler, RandomSampler

from forebay.torch._arguments import blocks_of
from forebay.torch._draws import Draws
from forebay.torch._order import ComputedOrder, OrderPlan, SamplerOrder

__all__ = ["Ordering"]


@dataclass(frozen=True)
class Ordering:
    """The arguments of a loader that say in which order samples come; see `forebay.torch.DataLoader`."""

    batch_size: int | None
    shuffle: bool | Literal["blocks"] | None
    seed: int | None
    blocks_at_once: int | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool
    rank: int
    world: int

    def has_stale_length(self, plan: OrderPlan, dataset: Any) -> bool:  # noqa: ANN401  (by what it has)
        """Returns True if the dataset's length is another one than the plan's, and torch's samplers would go by it.

        They look at it when an epoch begins, but for `DistributedSampler`, which does when it is made.
        """
        return type(self.sampler) is not DistributedSampler and plan.samples != len(dataset)

    def plan(self, dataset: Any, located: object, generator: torch.Generator | None, *, may_be_empty: bool = False) -> OrderPlan:  # noqa: ANN401
        """Returns the order over the dataset as long as it is now; raises `ValueError` if arguments are invalid.

        A dataset that is empty when the loader is made is a mistake; later an epoch may be empty, as torch's may.
        """
        blocks = blocks_of(located if hasattr(located, "blocks") else dataset, self.shuffle, self.blocks_at_once)
        samples, sampler, seed, shuffle = len(dataset), self.sampler, self.seed, bool(self.shuffle)
        if self.batch_sampler is not None:
            if self.batch_size != 1 or shuffle or sampler is not None or self.drop_last:
                raise ValueError("batch_sampler= makes the batches: leave out batch_size, shuffle, sampler and drop_last")
            return SamplerOrder(self.batch_sampler, samples, 0, self.rank, self.world, seed=seed, drop_last=False)
        batch = self._samples_of_a_batch()
        if sampler is not None and shuffle:
            raise ValueError("sampler= makes the order: leave out shuffle")
        if samples == 0 and not may_be_empty:
            raise ValueError("the dataset is empty")
        if type(sampler) is DistributedSampler:
            return self._of_distributed(sampler, samples, batch, generator)
        if sampler is None and shuffle and blocks is None and generator is not None and seed is None:
            if self.world > 1:
                raise ValueError("each rank would draw an order of its own from generator=: give seed= instead")
            drawn = RandomSampler(dataset, generator=generator)
            draws = Draws(generator)
            return SamplerOrder(drawn, samples, batch, self.rank, self.world, seed=seed, drop_last=self.drop_last, generator=draws)
        if sampler is not None:
            is_batching = self.batch_size is not None
            return SamplerOrder(
                sampler, samples, batch, self.rank, self.world, seed=seed, drop_last=self.drop_last, is_batching=is_batching
            )
        return ComputedOrder(
            samples,
            batch,
            self.rank,
            self.world,
            shuffle=shuffle,
            seed=0 if seed is None and self.world > 1 else seed,
            draws=Draws(generator),
            drop_last=(self.drop_last, self.drop_last),
            blocks=blocks,
            may_be_empty=may_be_empty,
        )

    def _samples_of_a_batch(self) -> int:
        batch_size = self.batch_size
        if batch_size is None:
            if self.drop_last:
                raise ValueError("drop_last=True is about batches, and batch_size=None gives single samples: leave one of them out")
            return 1
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r}: a batch has a whole number of samples, at least 1")
        return batch_size

    def _of_distributed(self, sampler: "DistributedSampler[Any]", samples: int, batch: int, generator: torch.Generator | None) -> OrderPlan:
        if len(sampler.dataset) != samples:  # type: ignore[arg-type]
            raise ValueError("sampler= is of a dataset of another length: make it of the one that is given here")
        if self.seed not in (None, sampler.seed):
            raise ValueError(f"seed={self.seed}, and the sampler's is {sampler.seed}: leave one out")
        return ComputedOrder(
            samples,
            batch,
            sampler.rank,
            sampler.num_replicas,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            draws=Draws(generator),
            drop_last=(sampler.drop_last, self.drop_last),
        )
