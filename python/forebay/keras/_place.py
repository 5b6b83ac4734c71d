"""Place of a fit in its data."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from forebay.clone._errors import UndescribableError
from forebay.keras._held import HeldTensor

__all__ = ["ARRAYS", "DATASET", "ROWS", "DataPlace", "DataPosition", "fit_frame"]

ARRAYS, DATASET, ROWS = "ArrayDataAdapter", "TFDatasetAdapter", "PyDatasetAdapter"
"""Names of the classes by which Keras reads arrays, tf.data, and objects that have a batch for each index."""


def fit_frame() -> FrameType:
    """Returns the frame of the `fit` that has called this, in whatever depth.

    Raises:
        UndescribableError: there is none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
            return frame
        frame = frame.f_back
    raise UndescribableError("forebay.keras.Fork is not called by Keras' fit: give it to fit(callbacks=[...])")


class DataPosition(NamedTuple):
    """A place in the data of an epoch.

    Attributes:
        batch: batches of the epoch that were trained.
        seen: batches that were taken from the iterator, which `steps_per_epoch` keeps for several epochs.
        batches: batches of the data, if they are known.
        state: returns the iterator's state; None if the place was not asked for, or is given by the numbers.
    """

    batch: int
    seen: int
    batches: int | None
    state: Callable[[], Any] | None


class DataPlace:
    """The place of a fit in its data, which goes on from another fit's.

    Keras keeps it in a local variable of `fit`, an iterator that numbers batches. How its backends read batches, apart
    from a `forebay.keras.PyDataset`, is in subclasses.
    """

    def __init__(self, epochs: Any) -> None:  # noqa: ANN401
        """Looks at the data.

        Args:
            epochs: the iterator that numbers batches.

        Raises:
            UndescribableError: the place in such data can't be known.
        """
        self._epochs = epochs
        self._kind = type(epochs.data_adapter).__name__
        # The place that was set, until the first step.
        self._set: dict[str, Any] | None = None
        if self._kind == ROWS and _is_ours(epochs.data_adapter.py_dataset):
            if epochs.steps_per_epoch is not None:
                raise UndescribableError(
                    "data: the place in a forebay.keras.PyDataset can't be known in parts of an epoch: leave steps_per_epoch out"
                )
        elif self._kind not in (ARRAYS, DATASET):
            raise UndescribableError(
                f"data: the place in what Keras reads by {self._kind} can't be known: give fit arrays, a forebay.keras.PyDataset, or a "
                "tf.data.Dataset without from_generator"
            )

    @property
    def type(self) -> dict[str, Any]:
        """The kind of the data, in which a clone's must equal its parent's."""
        epochs = self._epochs
        return {"read by": self._kind, "steps_per_epoch": epochs.steps_per_epoch, "steps_per_execution": int(epochs.steps_per_execution)}

    @property
    def batches(self) -> int | None:
        """Batches of an epoch, if they are known."""
        return None if self._epochs.num_batches is None else int(self._epochs.num_batches)

    @property
    def resumed_batch(self) -> int:
        """Batches of the epoch that were trained before the place that was set; 0 if none was."""
        return 0 if self._set is None else int(self._set["batch"])

    def check(self) -> None:
        """Refuses data whose place can't be saved.

        Raises:
            UndescribableError: as it says.
        """
        self.position(0)

    def position(self, batch: int, *, is_whole: bool = True) -> DataPosition:
        """Returns the place before a step, or between epochs.

        Args:
            batch: batches of the epoch that were trained; 0 between epochs.
            is_whole: with the iterator's state.
        """
        epochs = self._epochs
        # Before a step its batches are numbered already.
        seen = epochs._steps_seen - (epochs.steps_per_execution if batch > 0 else 0)
        if epochs.steps_per_epoch is None:
            seen = batch
        state: Callable[[], Any] | None = None
        if self._kind == ROWS:
            loaded = epochs.data_adapter.py_dataset.state_after(batch)

            def state() -> Any:  # noqa: ANN401
                return loaded
        elif is_whole:
            state = self._state(seen)
        batches = None if epochs._num_batches is None else int(epochs._num_batches)
        return DataPosition(batch, seen, batches, state)

    def value(self, position: DataPosition) -> dict[str, Any]:
        """Returns a place as plain values and tensors; until the first step the one that was set."""
        if self._set is not None:
            return self._set
        state = None if position.state is None else position.state()
        if isinstance(state, np.ndarray):
            state = HeldTensor(state)
        return {"batch": position.batch, "seen": position.seen, "batches": position.batches, "state": state}

    def put(self, value: dict[str, Any]) -> None:
        """Has the next epoch begin at a place in such data."""
        state = value["state"]
        if isinstance(state, np.ndarray):
            state = HeldTensor(np.array(state))
        self._set = {**value, "state": state}
        self._epochs._enumerate_iterator = self._continued

    def stepped(self) -> None:
        """Notes that the place that was set is left."""
        self._set = None

    def new_iterator(self) -> Any:  # noqa: ANN401
        """Returns an iterator over the data from its beginning."""
        return iter(self._epochs._get_iterator())

    def _state(self, seen: int) -> Callable[[], Any] | None:
        """Returns a function that returns the state of the iterator over arrays or a tf.data; None if it has none.

        Args:
            seen: batches that were trained of those of the iterator.
        """
        raise NotImplementedError

    def _at(self, place: dict[str, Any]) -> Any:  # noqa: ANN401
        """Returns a new iterator over arrays or a tf.data at a place."""
        raise NotImplementedError

    def _go_to(self, iterator: Any, place: dict[str, Any]) -> None:  # noqa: ANN401
        """Sets the iterator of an epoch that has begun to a place in its middle."""
        raise NotImplementedError

    def _between(self, place: dict[str, Any]) -> None:
        """Sets what outlasts the iterators of a tf.data to a place between epochs."""
        raise NotImplementedError

    def _continued(self) -> Iterator[tuple[int, int, Any]]:
        """Yields the batches of an epoch as Keras does, from the place that was set."""
        epochs, place = self._epochs, self._set
        del epochs._enumerate_iterator
        if place is None:
            yield from epochs._enumerate_iterator()
            return
        batch, seen = place["batch"], place["seen"]
        if epochs._num_batches is None:
            epochs._num_batches = place["batches"]
        if self._kind == ROWS:
            yield from self._rest(place)
            return
        if epochs.steps_per_epoch is not None:
            epochs._current_iterator, epochs._steps_seen = self._at(place), seen - batch
        elif batch == 0:
            self._between(place)
        numbered = epochs._enumerate_iterator()
        last = None
        for _ in range(0, batch, epochs.steps_per_execution):
            # Keras numbers a batch without reading it.
            _, _, last = next(numbered)
        if epochs.steps_per_epoch is None and last is not None:
            self._go_to(last, place)
        yield from numbered

    def _rest(self, place: dict[str, Any]) -> Iterator[tuple[int, int, Any]]:
        """Yields the batches of an epoch of a `forebay.keras.PyDataset` from a place."""
        epochs, adapter = self._epochs, self._epochs.data_adapter
        adapter.py_dataset.go_on(place["state"], place["batch"])
        # Else Keras shuffles indices, which nobody reads, once more than its parent did, by Python's generator.
        shuffles, adapter.shuffle = adapter.shuffle, adapter.shuffle and place["batch"] == 0
        numbered = epochs._enumerate_iterator()
        for _ in range(0, place["batch"], epochs.steps_per_execution):
            next(numbered)
        yield from numbered
        adapter.shuffle = shuffles


def _is_ours(dataset: object) -> bool:
    """Returns whether the data is a `forebay.keras.PyDataset`, whose module is loaded then."""
    module = sys.modules.get("forebay.keras._dataset")
    return module is not None and isinstance(dataset, module.PyDataset)
