"""Keras: the data loader as a `PyDataset`, for any of its backends."""

import atexit
import gc
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import torch

from forebay.loader import LoaderError
from forebay.torch import DataLoader

__all__ = ["PyDataset"]

LOOKED_AT = 2
"""Batches that Keras may take before it trains, to see their shapes."""


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """A loader's batches for `fit`, `evaluate` and `predict`, as NumPy arrays, in the loader's order.

    The loader shuffles, and `fit(shuffle=...)` changes nothing. Each time that Keras goes through its data it has the
    loader's next epoch: to train from epoch 7 on, `loader.set_epoch(7)` and `fit(initial_epoch=7)`. An epoch that Keras
    leaves in the middle is begun again. Validation needs one of its own.

    Args:
        loader: a loader of what Keras takes for a batch: inputs, or a pair of inputs and targets, or these with weights
            of samples. Do not go through it beside this.

    Attributes:
        loader: as given.

    Raises:
        TypeError: it is not a `forebay.torch.DataLoader`, or does not know how many batches it has.
    """

    def __init__(self, loader: DataLoader) -> None:
        if not isinstance(loader, DataLoader):
            raise TypeError(f"PyDataset takes a forebay.torch.DataLoader, and this is a {type(loader).__name__}")
        try:
            len(loader)
        except TypeError:
            raise TypeError("Keras must know how many batches there are: give the loader's sampler a __len__") from None
        super().__init__(workers=1, use_multiprocessing=False)
        self.loader = loader
        # TensorFlow asks from a thread of its own.
        self._lock = threading.Lock()
        self._batches: Iterator[Any] | None = None
        # The loader's, after the batch that was had last: another one if somebody told it where to go on.
        self._place: object = None
        # Number of batches of the loader's epoch that were had. The first ones are kept, and given again if Keras only
        # looked at them.
        self._had = 0
        self._kept: list[Any] = []
        self._again: list[Any] = []
        # True if Keras begins to go through its batches, and the number that it has asked for since.
        self._is_new = True
        self._asked = 0
        self._is_within = False
        # The loader's places after the batches that were had of its epoch, since Keras asks ahead.
        self._places: list[Any] = []
        # Batches of an epoch that goes on from a place; None if it is whole.
        self._rest: int | None = None

    @property
    def workers(self) -> int:
        """Threads of Keras that ask for batches: always 1, for reading ahead is the loader's."""
        return 1

    @workers.setter
    def workers(self, value: int) -> None:
        raise ValueError(f"workers={value}: the loader reads ahead by itself; give forebay.torch.DataLoader num_workers= instead")

    @property
    def use_multiprocessing(self) -> bool:
        """True if processes of Keras ask for batches: always False, for reading ahead is the loader's."""
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        raise ValueError(f"use_multiprocessing={value}: give forebay.torch.DataLoader num_workers= instead")

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.loader)

    @property
    def num_batches(self) -> int:
        """The number of batches, for Keras, which asks for it before each pass over them, and gives no other sign.

        For the number alone use `len`.
        """
        self._is_new = True
        return len(self) if self._rest is None else self._rest

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  (whatever a batch is)
        """Returns the next batch, whatever the index: `fit` asks in random order unless told otherwise.

        Raises:
            LoaderError: the loader has none; or all batches of the epoch were asked for already.
        """
        del index
        with self._lock:
            if self._is_new:
                self._is_new, self._asked = False, 0
                if self._batches is not None and self._had <= LOOKED_AT and self._place is self.loader._cursor.place:
                    self._again = list(self._kept)
                else:
                    self._begin_again()
            elif self._asked >= (len(self) if self._rest is None else self._rest):
                # Keras asks for no more: somebody else has taken what is missing now.
                raise LoaderError(
                    f"all {len(self)} batches of an epoch were asked for already: somebody else takes them, too, such as a fit that was "
                    "stopped and still asks ahead; make a PyDataset for each use, and go through one by hand with `for batch in data`"
                )
            self._asked += 1
            if self._again:
                return self._again.pop(0)
            return self._next()

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the loader's epoch, for a loop without Keras."""
        return map(_arrays, iter(self.loader))

    def state_after(self, batches: int) -> dict[str, Any]:
        """Returns the loader's place after N batches of the epoch, or before the next epoch if N is 0.

        Keras asks ahead, so the loader's own `state_dict` is that of a later batch.
        """
        with self._lock:
            if batches == 0:
                return self.loader.state_dict()
            # Of an epoch that goes on from a place the batches before it were another process's.
            skipped = 0 if self._rest is None else len(self) - self._rest
            return self.loader._cursor.state_of(self._places[batches - 1 - skipped], self.loader.generator)

    def go_on(self, state: Mapping[str, Any], batches: int) -> None:
        """Goes on from a place that `state_after` returned.

        Args:
            state: the place.
            batches: batches that Keras counts before it; the epoch that begins next has as many fewer.
        """
        with self._lock:
            self.loader.load_state_dict(state)
            self._batches, self._again, self._is_new = None, [], True
            self._rest = len(self) - batches if batches > 0 else None

    def on_epoch_begin(self) -> None:
        """Notes the beginning of an epoch of Keras."""
        self._is_within = True

    def on_epoch_end(self) -> None:
        """Notes the end of an epoch of Keras, or that it begins again after a look at some batches."""
        with self._lock:
            if self._is_within and self._batches is not None and not self._again and self.loader.left == 0:
                # Keras counts batches, and asks for none after the last.
                next(self._batches, None)
                self._batches = None
            if self._is_within:
                self._rest = None
            self._is_within = False

    def _begin_again(self) -> None:
        if self._batches is not None and self._place is self.loader._cursor.place:
            # What was left comes again as a whole, however much of it was asked for ahead.
            self.loader.set_epoch(self.loader.epoch)
        self._begin()

    def _begin(self) -> Iterator[Any]:
        # Whoever began this epoch has drawn for it already.
        with torch.random.fork_rng(devices=[], enabled=self._rest is not None):
            batches = self._batches = iter(self.loader)
        self._had, self._kept, self._again, self._places = 0, [], [], []
        return batches

    def _next(self) -> Any:  # noqa: ANN401  (whatever a batch is)
        try:
            batch = next(self._batches or self._begin(), _END)
            if batch is _END:
                # An epoch that goes on from a state has fewer batches than Keras knows.
                batch = next(self._begin())
        except BaseException:
            self._batches = None
            raise
        self._had, self._place = self._had + 1, self.loader._cursor.place
        self._places.append(self._place)
        batch = _arrays(batch)
        self._kept = [*self._kept, batch] if self._had <= LOOKED_AT else []
        return batch


_END = object()


def _arrays(batch: Any) -> Any:  # noqa: ANN401  (whatever a batch is)
    """Returns a batch's tensors as NumPy's arrays of the same memory, which every backend takes."""
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    if isinstance(batch, Mapping):
        return {name: _arrays(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_arrays(value) for value in batch)
    return batch


if keras.backend.backend() == "tensorflow":
    # A fit that was stopped in the middle of an epoch leaves an iterator of TensorFlow's in a cycle. Freed when the
    # interpreter is already ending, it waits for its thread, and that for the interpreter, forever: so it is freed
    # before.
    atexit.register(gc.collect)
