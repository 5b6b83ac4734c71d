"""Place of a fit in its data, where Keras reads it by iterators of Python: on JAX and PyTorch.

The order of arrays is drawn from generators of the process. So their states, as they were when the iterator was made
and when it gave its first batch, and the number of batches are a place.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from forebay.clone._errors import UndescribableError
from forebay.keras._place import ARRAYS, DATASET, DataPlace

__all__ = ["PythonPlace"]


class PythonPlace(DataPlace):
    """The place of a fit on JAX or PyTorch."""

    def __init__(self, epochs: Any, *, asks_ahead: bool) -> None:  # noqa: ANN401  (Keras has no types)
        """Looks at the data.

        Args:
            epochs: the iterator that numbers batches.
            asks_ahead: Keras takes a batch from its iterator before `on_train_batch_begin`.

        Raises:
            UndescribableError: the place in such data can't be known.
        """
        super().__init__(epochs)
        if asks_ahead and self._kind == DATASET:
            raise UndescribableError(
                "data: the place in a tf.data.Dataset can't be known on this backend, which takes a batch ahead: give fit arrays, or a "
                "forebay.keras.PyDataset"
            )
        if asks_ahead and self._kind == ARRAYS and epochs.data_adapter._shuffle == "batch":
            raise UndescribableError(
                "data: the order of arrays can't be known on this backend with fit(shuffle='batch'): say shuffle=True, or False"
            )
        self._make: Callable[[], Any] = epochs._get_iterator
        # The iterator that has given a batch last.
        self._last: _Batches | None = None
        self._dataset: _Dataset | None = None
        if self._kind == DATASET:
            self._dataset = epochs.data_adapter._dataset = _Dataset(epochs.data_adapter._dataset)
        epochs._get_iterator = lambda: _Batches(self._make, self._note)

    def new_iterator(self) -> Any:  # noqa: ANN401
        return iter(self._make())

    def _note(self, batches: "_Batches") -> None:
        self._last = batches

    def _state(self, seen: int) -> Callable[[], Any] | None:
        if self._dataset is not None:
            return self._dataset.state()
        is_between = self._epochs.steps_per_epoch is None and seen == 0
        batches: _Batches | None = self._epochs._current_iterator or self._last
        if is_between or batches is None:
            return None
        made, begun = batches.made, batches.begun
        return lambda: {"made": made, "begun": begun}

    def _at(self, place: dict[str, Any]) -> Any:  # noqa: ANN401
        if place["state"] is None:
            return None
        if self._dataset is not None:
            return self._dataset_at(self._dataset, place)
        state, here = place["state"], _generators()
        try:
            _set_generators(state["made"])
            batches = _Batches(self._make, self._note)
            if state["begun"] is not None:
                _set_generators(state["begun"])
                for _ in range(place["seen"]):
                    next(batches)
        finally:
            _set_generators(here)
        return batches

    def _dataset_at(self, dataset: "_Dataset", place: dict[str, Any]) -> "_Batches | None":
        if place["seen"] == 0:
            # Keras makes an iterator when it needs one: only the dataset's own generators go on from there.
            dataset.restore(place["state"].array)
            return None
        dataset.goes_on = place["state"].array
        return _Batches(self._make, self._note)

    def _go_to(self, iterator: Any, place: dict[str, Any]) -> None:  # noqa: ANN401
        iterator.go_on(self._at(place))

    def _between(self, place: dict[str, Any]) -> None:
        if self._dataset is not None:
            self._at(place)


class _Batches:
    """An iterator over batches.

    Attributes:
        made: states of the generators that draw orders, when it was made.
        begun: the states when its first batch was asked for; None before.
    """

    def __init__(self, make: Callable[[], Any], note: Callable[["_Batches"], None]) -> None:
        self.made = _generators()
        self.begun: dict[str, Any] | None = None
        self._batches = iter(make())
        self._note = note

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:  # noqa: ANN401  (whatever a batch is)
        if self.begun is None:
            self.begun = _generators()
            self._note(self)
        return next(self._batches)

    def go_on(self, other: "_Batches") -> None:
        """Gives the batches of another iterator from now on."""
        self.made, self.begun, self._batches = other.made, other.begun, other._batches


class _Dataset:
    """A tf.data.Dataset that keeps the iterator which was made of it last.

    Attributes:
        goes_on: place at which the next iterator begins, as `iterator_state` gives it; None: at the beginning.
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401
        self.goes_on: np.ndarray[Any, Any] | None = None
        self._dataset = dataset
        self._iterator: Any = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._dataset, name)

    def __iter__(self) -> Iterator[Any]:
        if self.goes_on is None:
            self._iterator = iter(self._dataset)
        else:
            self.restore(self.goes_on)
            self.goes_on = None
        iterator: Iterator[Any] = self._iterator
        return iterator

    def restore(self, state: np.ndarray[Any, Any]) -> None:
        """Makes an iterator at a place."""
        # TensorFlow is loaded by now.
        from forebay.keras._iterators import restore_iterator

        self._iterator = iter(self._dataset)
        restore_iterator(self._iterator, state)

    def state(self) -> Callable[[], Any] | None:
        """Returns a function that returns the place of the last iterator; None if there was none.

        Raises:
            UndescribableError: TensorFlow can't save it.
        """
        from forebay.keras._iterators import iterator_state

        return None if self._iterator is None else iterator_state(self._iterator)


def _generators() -> dict[str, Any]:
    """Returns the states of the generators that Keras draws orders from."""
    torch: Any = sys.modules.get("torch")
    return {"numpy": np.random.get_state(legacy=False), "torch": None if torch is None else torch.get_rng_state().numpy()}


def _set_generators(states: dict[str, Any]) -> None:
    np.random.set_state(states["numpy"])
    if states["torch"] is not None:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(states["torch"].copy()))
