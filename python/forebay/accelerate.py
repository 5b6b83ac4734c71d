"""Hugging Face Accelerate: the data loader for its `Accelerator`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import Dataset

from forebay.torch import DataLoader
from forebay.torch._streams import IterableLoader

__all__ = ["prepare", "prepared"]


def prepare(accelerator: Accelerator, loader: DataLoader | IterableLoader) -> DataLoaderShard:
    """Prepares a loader as `accelerator.prepare` does torch's own, but the loader itself deals samples to ranks.

    Batches come on the accelerator's device, gradients that are accumulated are applied at the end of an epoch,
    `skip_first_batches` reads nothing of what it skips. `save_state` keeps where training is and `load_state` goes on
    from there, also on more ranks or fewer; then `iteration` of what is given back is the epoch.

    Args:
        accelerator: the accelerator that learns of the loader and its state.
        loader: a loader made after the accelerator, so that it knows its rank. Do not go through it beside this. One
            over an `IterableDataset` is torch's own, and is prepared by Accelerate as any of torch's.

    Returns:
        A loader of Accelerate's. To `accelerator.prepare` it may be given, and stays what it is.
    """
    if isinstance(loader, IterableLoader):
        return accelerator.prepare_data_loader(loader)
    shard = prepared(accelerator, loader)
    accelerator.register_for_checkpointing(shard.dataset)
    return shard


def prepared(accelerator: Accelerator, loader: DataLoader) -> DataLoaderShard:
    """Prepares a loader without registering its state, for callers that keep the state or count batches themselves."""
    batches = _Batches(loader)
    shard = DataLoaderShard(
        batches,
        device=accelerator.device if accelerator.device_placement else None,
        # Accelerate would take repeated samples from the end of all ranks' together, where only its own loaders have
        # them.
        _drop_last=True,
        _non_blocking=accelerator.non_blocking,
        batch_sampler=_Numbers(batches),
        collate_fn=_only,
        # Torch's loader draws a number when it begins, and so does ours.
        generator=torch.Generator(),
    )
    batches.shard = shard
    # Accelerate does not replace loaders with this mark.
    shard._is_accelerate_prepared = True
    return accelerator.prepare_data_loader(shard)


class _Batches(Dataset[Any]):
    """A loader's batches by number, from the place on where an epoch begins; torch's loader takes them for samples.

    Accelerate asks for a batch before it hands out the one before, so that it knows the last one. States are of the
    batch that training has.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.shard: Any = None
        self._epoch: Iterator[Any] | None = None
        # Before the batch that was asked for last.
        self._place = loader._cursor.coming()

    def __len__(self) -> int:
        """Returns the number of samples, not batches: it is asked for as the dataset's size."""
        return len(self.loader.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch. Accelerate calls this before each epoch."""
        self.loader.set_epoch(epoch)

    def begin(self) -> int:
        """Begins an epoch; returns its number of batches."""
        self._epoch = None
        self._place = self.loader._cursor.coming()
        return self.loader._cursor.plan.left(self._place)

    def __getitem__(self, number: int) -> Any:  # noqa: ANN401  (whatever a batch is)
        if self._epoch is None:
            if number:
                self.loader.skip(number)
            self._epoch = iter(self.loader)
        self._place = self.loader._cursor.place
        return next(self._epoch)

    def end(self) -> None:
        """Ends the epoch, after the last batch."""
        self._place = self.loader._cursor.place
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            next(epoch, None)

    def state_dict(self) -> dict[str, Any]:
        return self.loader._cursor.state_of(self._place, self.loader.generator)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        loader = self.loader
        loader.load_state_dict(state)
        if loader.left == 0:
            # Accelerate does not count an epoch that has no batch.
            loader.set_epoch(loader.epoch + 1)
        self._epoch, self._place = None, loader._cursor.coming()
        self.shard.set_epoch(loader.epoch)


class _Numbers:
    """The numbers of an epoch's batches; torch's loader takes this for its batch sampler."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches
        self.batch_size = batches.loader.batch_size

    def __len__(self) -> int:
        return len(self._batches.loader)

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._batches.begin()):
            yield [number]
        self._batches.end()


def _only(batches: list[Any]) -> Any:  # noqa: ANN401  (whatever a batch is)
    return batches[0]
