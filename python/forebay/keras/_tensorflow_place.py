"""Place of a fit in its data, where Keras reads all data by tf.data."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from forebay.clone._errors import UndescribableError
from forebay.keras._iterators import iterator_state, restore_iterator
from forebay.keras._place import ARRAYS, DATASET, DataPlace, fit_frame

__all__ = ["TensorFlowPlace"]


class TensorFlowPlace(DataPlace):
    """The place of a fit on TensorFlow."""

    def __init__(self, epochs: Any) -> None:  # noqa: ANN401  (Keras has no types)
        super().__init__(epochs)
        if self._kind == ARRAYS and epochs.data_adapter._shuffle and context.global_seed() is None:
            raise UndescribableError(
                "data: the order of arrays differs in each process: call keras.utils.set_random_seed(SEED) before, or say "
                "fit(shuffle=False)"
            )

    def _state(self, seen: int) -> Callable[[], Any] | None:
        if self._kind != DATASET:
            return None
        kept = self._epochs._current_iterator
        return iterator_state(fit_frame().f_locals["iterator"] if kept is None else kept)

    def _at(self, place: dict[str, Any]) -> Any:  # noqa: ANN401
        if self._kind == ARRAYS:
            dataset: tf.data.Dataset = self._epochs._get_iterator()
            return iter(dataset.skip(place["seen"]))
        iterator = self.new_iterator()
        restore_iterator(iterator, place["state"].array)
        return iterator

    def _go_to(self, iterator: Any, place: dict[str, Any]) -> None:  # noqa: ANN401
        if self._kind == ARRAYS:
            self._epochs._current_iterator = self._at(place)
        else:
            restore_iterator(iterator, place["state"].array)

    def _between(self, place: dict[str, Any]) -> None:
        # Only the dataset's own generators go on from there.
        self._at(place)
