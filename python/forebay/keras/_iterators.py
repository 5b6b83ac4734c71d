"""Places of iterators of tf.data."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from forebay.clone._errors import DamagedError, UndescribableError

__all__ = ["iterator_state", "restore_iterator"]


def iterator_state(iterator: Any) -> Callable[[], np.ndarray[Any, Any]]:  # noqa: ANN401
    """Saves the place of an iterator of tf.data now; returns a function that writes it as bytes, at any time.

    Raises:
        UndescribableError: TensorFlow can't save it.
    """
    try:
        (state,) = iterator._serialize_to_tensors().values()
    except (tf.errors.OpError, AttributeError, ValueError) as error:
        why = re.sub(r"\{\{.*?\}\} ?|\[Op:.*", "", getattr(error, "message", None) or str(error)).strip()
        raise UndescribableError(
            f"data: the place in this tf.data can't be saved: {why} Use neither Python (from_generator, py_function) nor tf.random in it: "
            "Dataset.random and tf.random.stateless_* keep their state where it can be read"
        ) from error
    return lambda: np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)


def restore_iterator(iterator: Any, state: np.ndarray[Any, Any]) -> None:  # noqa: ANN401
    """Sets an iterator of tf.data to a saved place.

    Raises:
        DamagedError: it is that of another pipeline.
    """
    (name,) = iterator._serialize_to_tensors()
    try:
        iterator._restore_from_tensors({name: tf.io.parse_tensor(state.tobytes(), tf.variant)})
    except tf.errors.OpError as error:
        raise DamagedError(f"data: the place in tf.data can't be set: does this program make the same pipeline? {error}") from error
