"""Marks in a train function of TensorFlow: operations that tell when a variable is final.

At its end a train step reads each large variable and marks it. TensorFlow orders the operations on a variable as the
program does, and these two behind no others. So a mark runs once the last write to its variable is done, which for
most variables is in the middle of the backward pass.

The model has two train functions: one with marks for the step before a fork, and its own for all others, to which the
marks cost nothing. The first step is trained by the one with marks, so that both are compiled before a fork comes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from forebay import _core
from forebay._say import say
from forebay.clone._errors import CloneError, UndescribableError
from forebay.clone._values import Path, spelled

__all__ = ["TensorFlowMarks"]

LIBRARY = "libtensorflow_framework.so.2"
"""The library with TensorFlow's C interface, as it is loaded by its Python package."""
MARKED_FROM_BYTES = 1 << 16
"""Smallest variable that is marked: a mark takes microseconds, as much as the copy of a smaller one."""


class TensorFlowMarks:
    """Marks in the train function of one model; see `forebay.keras._backend.Marks`."""

    def __init__(self, model: Any, variables: Callable[[], Mapping[Path, Any]]) -> None:  # noqa: ANN401  (Keras has no types)
        if model.run_eagerly:
            raise UndescribableError("with run_eagerly=True there is no graph")
        if model.jit_compile:
            raise UndescribableError("with jit_compile=True XLA compiles the step to one operation")
        if not type(model).make_train_function.__module__.startswith("keras."):
            raise UndescribableError(f"{type(model).__name__} makes its train function in its own way")
        if tf.config.list_logical_devices("GPU"):
            raise UndescribableError("variables on a GPU are copied at the step's end")
        try:
            self._op = _core.register_final_op(LIBRARY)
        except RuntimeError as error:
            raise UndescribableError(str(error)) from error
        self._model, self._variables = model, variables
        self._watch = _core.FinalWatch()
        # Marked variables by their numbers; in a dictionary, as a function may be traced several times.
        self._numbers: dict[int, int] = {}
        self._marked: list[Any] = []
        self._plain = model.train_function
        self._marking = self._made(model)
        # For those who ask whether it is another function of the model.
        self._marking.__wrapped__ = self._plain
        model.train_function = self._marking

    def arm(self) -> tuple[_core.EarlyCopy, Sequence[str]] | None:
        """See `forebay.clone._early.EarlyTensors.arm`."""
        if not self._marked:
            return None
        self._model.train_function = self._marking
        paths = {id(variable): spelled(path) for path, variable in self._variables().items()}
        copy = self._watch.arm(len(self._marked), int(self._model.steps_per_execution))
        return copy, [paths.get(id(variable), "") for variable in self._marked]

    def disarm(self) -> None:
        """See `forebay.clone._early.EarlyTensors.disarm`."""
        self._watch.disarm()
        if self._model.train_function is self._marking:
            self._model.train_function = self._plain

    def _made(self, model: Any) -> Any:  # noqa: ANN401
        """Returns a train function that marks, made by the model itself."""
        step, is_own = model.train_step, "train_step" in vars(model)

        def marked(data: Any) -> Any:  # noqa: ANN401
            outputs = step(data)
            self._mark()
            return outputs

        model.train_step = marked
        try:
            model.make_train_function(force=True)
            return model.train_function
        finally:
            if is_own:
                model.train_step = step
            else:
                del model.train_step

    def _mark(self) -> None:
        """Marks all large variables, in the graph that is being made."""
        try:
            variables = self._variables().values()
        except CloneError as error:
            say(f"the copy of a fork's state begins at the step's end: {error}", "fallback")
            return
        for variable in variables:
            dtype = variable.dtype
            if not (dtype.is_floating or dtype.is_integer) or math.prod(variable.shape) * dtype.size < MARKED_FROM_BYTES:
                continue
            number = self._numbers.setdefault(id(variable), len(self._marked))
            if number == len(self._marked):
                self._marked.append(variable)
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=dtype)
            op_def_library.apply_op(self._op, handle=variable.handle, value=value, token=self._watch.token(number))
