"""PyTorch Lightning: the data loader for its `Trainer`.

It imports neither `lightning` nor `pytorch_lightning`, and works with both.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from forebay import torch
from forebay.loader import StateError
from forebay.torch._keyed import check_dataset

__all__ = ["DataLoader"]


class DataLoader:
    """`forebay.torch.DataLoader`, as a `Trainer` goes through it.

    Lightning puts a `DistributedSampler` into loaders of torch's own; this one deals its samples to the ranks by
    itself, once. Its epoch is the trainer's, and the trainer's checkpoints hold its state: training that ended in the
    middle of an epoch goes on with the next batch.

    It may be made before the trainer has started its ranks: the loader itself is made when something is first asked of
    it.

    Args:
        dataset: the dataset of the loader.
        batch_size: samples of a batch of one rank.
        options: the loader's other arguments, by name.

    Attributes:
        dataset: as given.
        sampler: to which Lightning tells the epoch.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, **options: Any) -> None:  # noqa: ANN401  (by what it has)
        self.dataset = dataset
        self.sampler = _Epochs(self)
        self._make = partial(torch.DataLoader, dataset, batch_size, **options)
        self._loader: torch.DataLoader | None = None
        # The epoch that is gone through.
        self._batches: Iterator[Any] | None = None

    @property
    def loader(self) -> torch.DataLoader:
        """The loader itself.

        Raises:
            ValueError, TypeError: its arguments are wrong; when it is asked for first.
        """
        if self._loader is None:
            check_dataset(self.dataset)
            self._loader = self._make()
        return self._loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # As a generator it begins with the first batch that is asked for: Lightning asks for iterators to see whether
        # it can have one, and loads states and tells the epoch when it has one already.
        self._end()
        batches = self._batches = iter(self.loader)
        try:
            yield from batches
        finally:
            if self._batches is batches:
                self._end()

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch is gone through next. Lightning does, by `sampler`."""
        self._end()
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of training: see `forebay.torch.DataLoader.state_dict`.

        Lightning keeps it in its checkpoints.
        """
        return {**self.loader.state_dict(), "left": self.loader.left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. Lightning does, from its checkpoints.

        Raises:
            StateError: it is of another dataset or order; or of another number of ranks or batches, which Lightning has
                counted.
        """
        self._batches = None
        loader = self.loader
        loader.load_state_dict(state)
        if loader.left == 0:
            # Lightning ends such an epoch without asking for its batches.
            loader.set_epoch(loader.epoch + 1)
        elif loader.left != (left := state.get("left", loader.left)):
            raise StateError(
                f"{left} batches were left of epoch {state['epoch']}, and now it would be {loader.left}: Lightning counts batches, so a "
                "checkpoint from the middle of an epoch goes on on as many ranks, and in batches of the same size"
            )

    def _end(self) -> None:
        """Ends the epoch whose last batch was handed out: Lightning counts batches, and does not ask for one more."""
        batches, self._batches = self._batches, None
        if batches is not None and self.loader.left == 0:
            next(batches, None)


class _Epochs:
    """Stands in for a sampler: Lightning tells the epoch to samplers only."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)
