"""State of Keras' callbacks."""

import copy
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from forebay.clone._errors import UndescribableError
from forebay.keras._backend import Backend
from forebay.keras._held import ARRAY, HeldTensor

__all__ = ["held_state", "set_held_state", "stateful_callbacks"]

ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", "_current_epoch", "_last_batch_seen", "_batches_seen_since_last_saving"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
"""Attributes of Keras' callbacks that change while a job trains. Others are set again, and some would be wrong then."""
WITHOUT_STATE = frozenset(("CSVLogger", "LearningRateScheduler", "ProgbarLogger", "RemoteMonitor", "TensorBoard", "TerminateOnNaN"))
"""Keras' callbacks on which no result depends."""
OF_KERAS = frozenset(vars(keras.callbacks.Callback()))
"""Attributes that every callback has."""


def stateful_callbacks(callbacks: Iterable[Any], stateless: Iterable[type] = ()) -> dict[str, Any]:
    """Returns the callbacks that have state, by name.

    Args:
        callbacks: all callbacks of a fit.
        stateless: types that the program declares to be without state.

    Raises:
        UndescribableError: the state of one is unknown.
    """
    found: dict[str, Any] = {}
    for callback in callbacks:
        name = type(callback).__name__
        is_keras = type(callback).__module__.partition(".")[0] == "keras"
        if type(callback) in stateless or (is_keras and name in WITHOUT_STATE):
            continue
        has_dict = hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")
        if not has_dict and not (is_keras and name in ATTRIBUTES):
            if is_keras and name == "BackupAndRestore":
                raise UndescribableError("callback BackupAndRestore: it sets the state when fit begins, as a clone does: leave one out")
            if vars(callback).keys() <= OF_KERAS and not is_keras:
                continue
            raise UndescribableError(
                f"callback {name}: its state is unknown: give it state_dict() and load_state_dict(), or, if none of its attributes matters "
                f"to results, write Fork(stateless=[{name}])"
            )
        number = sum(one.partition(" ")[0] == name for one in found)
        found[f"{name} {number + 1}" if number else name] = callback
    return found


def held_state(callback: Any, backend: Backend) -> Any:  # noqa: ANN401
    """Returns the state of a callback, or of an object with `state_dict`, which its later changes leave as it is."""
    if hasattr(callback, "state_dict"):
        return _held(callback.state_dict(), backend, is_copied=True)
    names = ATTRIBUTES[type(callback).__name__]
    # Keras' callbacks replace arrays, and never write to them.
    return {name: _held(getattr(callback, name), backend, is_copied=False) for name in names if hasattr(callback, name)}


def set_held_state(callback: Any, state: Any) -> None:  # noqa: ANN401
    """Sets a callback, or an object with `load_state_dict`, to a state that was captured."""
    state = _own(state)
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(state)
        return
    for name, value in state.items():
        setattr(callback, name, value)


def _held(value: Any, backend: Backend, *, is_copied: bool) -> Any:  # noqa: ANN401
    if type(value) in (list, tuple):
        return type(value)(_held(item, backend, is_copied=is_copied) for item in value)
    if type(value) is dict:
        return {key: _held(item, backend, is_copied=is_copied) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return backend.held(value.copy() if is_copied else value)
    if isinstance(value, keras.Variable):
        return backend.held(keras.ops.convert_to_numpy(value))
    if keras.ops.is_tensor(value):
        return backend.held(value)
    return copy.copy(value)


def _own(value: Any) -> Any:  # noqa: ANN401
    """Returns a value whose arrays are its own, and no longer those of a capture."""
    if type(value) in (list, tuple):
        return type(value)(_own(item) for item in value)
    if type(value) is dict and value.keys() == {ARRAY}:
        return np.array(value[ARRAY])
    if type(value) is dict:
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, HeldTensor):
        return value.array.copy()
    if keras.ops.is_tensor(value):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value
