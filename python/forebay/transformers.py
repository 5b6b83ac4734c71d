"""Hugging Face transformers: its `Trainer`, which trains with batches of the data loader."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from forebay.accelerate import prepared
from forebay.torch import DataLoader

__all__ = ["Trainer"]


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """transformers' `Trainer`, whose training data `forebay.torch.DataLoader` reads; evaluation reads as before.

    What says how training reads is in the `TrainingArguments` as ever: `per_device_train_batch_size`,
    `dataloader_num_workers` (0: as the loader has it), `dataloader_drop_last` and so on; `data_seed`, or else `seed`,
    is that of order and samples. The order is that of `DistributedSampler`, other than transformers' and random as
    well. A checkpoint from the middle of an epoch goes on with the next batch, and what was had is not read again.

    Args:
        arguments: transformers' own.
        loader_options: arguments of the loader that `TrainingArguments` have nothing for, such as `report` and
            `on_error`.
        options: transformers' own.

    Raises:
        ValueError: training begins, and is to go through the dataset neither in random nor in sequential order.
            Training begins, `loader_options` are given, and the dataset is an `IterableDataset`, which transformers'
            own loader reads.
    """

    def __init__(self, *arguments: Any, loader_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loader_options = dict(loader_options or {})

    def get_train_dataloader(self) -> DataLoaderShard:
        """Returns the loader for training. Dataset, sampler and options are taken from transformers' own loader."""
        theirs, args = super().get_train_dataloader(), self.args
        if isinstance(theirs.dataset, IterableDataset):
            if self._loader_options:
                raise ValueError("loader_options are for map-style datasets, and transformers' own loader reads an IterableDataset")
            return theirs
        self.accelerator._dataloaders.remove(theirs)
        sampler = theirs.batch_sampler
        # Accelerate's own, which deals batches to the ranks, is around the one that makes them.
        while (inner := getattr(sampler, "batch_sampler", None)) is not None:
            sampler = inner
        order = getattr(sampler, "sampler", sampler)
        if not isinstance(order, RandomSampler | SequentialSampler):
            raise ValueError(
                f"{type(order).__name__} is an order that the loader does not have: train in random or sequential order, or with "
                "transformers' own Trainer"
            )
        options: dict[str, Any] = {
            "batch_size": self._train_batch_size,
            "shuffle": isinstance(order, RandomSampler),
            "num_workers": args.dataloader_num_workers or None,
            "collate_fn": theirs.collate_fn,
            "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
            "drop_last": args.dataloader_drop_last,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "persistent_workers": args.dataloader_persistent_workers,
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "rank": args.process_index,
            "world_size": args.world_size,
        }
        return prepared(self.accelerator, DataLoader(theirs.dataset, **(options | self._loader_options)))
