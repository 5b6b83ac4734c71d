"""Keras' TensorFlow backend, as forks see it.

TensorFlow copies a variable's buffer before it writes to it if somebody else holds it. So the result of reading a
variable keeps its value, and shares the variable's memory until then.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import config, op_def_registry

from forebay.clone._adapter import Component
from forebay.clone._errors import UndescribableError
from forebay.clone._frozen import FreezingInventory
from forebay.clone._values import Path
from forebay.keras._backend import JobState, SnapshotT
from forebay.keras._components import component, dtype_policy, fixed_components
from forebay.keras._held import ArrayAdapter, HeldTensor
from forebay.keras._tensorflow_marks import TensorFlowMarks
from forebay.keras._tensorflow_place import TensorFlowPlace

__all__ = ["TensorFlowBackend", "VariableReader"]

DEFAULT_STRATEGY = "_DefaultDistributionStrategy"
SHARED_FROM_BYTES = 1 << 12
"""Smallest variable that takes over captured memory without a copy: below that a copy is faster."""


class VariableReader:
    """Reads many variables by one operation, in the calling thread."""

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._handles: list[Any] = []
        self._attributes: tuple[Any, ...] = ()

    def __call__(self, variables: Sequence[Any]) -> list[HeldTensor]:
        """Returns the values of variables."""
        if len(variables) != len(self._variables) or any(a is not b for a, b in zip(variables, self._variables, strict=True)):
            self._variables, self._handles = list(variables), [one.handle for one in variables]
            self._attributes = ("N", len(variables), "dtypes", [one.dtype.as_datatype_enum for one in variables])
        if not self._handles:
            return []
        # A tf.function runs each read as an operation of its own, at first in other threads, which may wait.
        values = execute.execute(b"_ReadVariablesOp", len(self._handles), self._handles, self._attributes, context.context())
        return [HeldTensor(value) for value in values]


class TensorFlowBackend:
    """Keras on TensorFlow; see `forebay.keras._backend.Backend`."""

    reads_in_place = False

    def __init__(self) -> None:
        framework = f"tensorflow {tf.__version__}, keras {keras.__version__}"
        self._adapter = ArrayAdapter(framework, lambda name: tf.as_dtype(name).as_numpy_dtype)
        self._read = VariableReader()

    def check(self, model: Any) -> None:  # noqa: ANN401  (Keras has no types)
        strategy = type(model.distribute_strategy).__name__
        if strategy != DEFAULT_STRATEGY:
            raise UndescribableError(
                f"model: it is distributed by {strategy}, and only models of one process and device can be forked: leave it out"
            )

    def check_step(self, train_function: object, known: Sequence[Any]) -> None:
        _check_step(train_function, known)

    def flags(self) -> list[Component]:
        flags = {
            "dtype": dtype_policy(),
            "seed": context.global_seed(),
            "deterministic": bool(config.is_op_determinism_enabled()),
            "threads": [tf.config.threading.get_intra_op_parallelism_threads(), tf.config.threading.get_inter_op_parallelism_threads()],
        }
        return fixed_components("flags", flags)

    def readable(self, kind: str, variables: Sequence[Any]) -> list[Any]:
        return _readable(kind, variables)

    def read(self, variables: Sequence[Any]) -> list[HeldTensor]:
        return self._read(variables)

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        _assign(variables, [one.array if isinstance(one, HeldTensor) else one for one in arrays])

    def held(self, value: Any) -> HeldTensor:  # noqa: ANN401
        return HeldTensor(value)

    def variables(
        self, path: tuple[str, ...], get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], object], *, is_steady: bool
    ) -> Component:
        return component(path, get, put, is_fixed=True)

    def sync(self, model: Any) -> None:  # noqa: ANN401
        pass

    def update_mark(self, optimizer: Any) -> object:  # noqa: ANN401
        return object()

    def train_once(self, model: Any, batches: Any) -> None:  # noqa: ANN401
        model.train_function(batches)

    def place(self, epochs: Any) -> TensorFlowPlace:  # noqa: ANN401
        return TensorFlowPlace(epochs)

    def marks(self, model: Any, variables: Callable[[], Mapping[Path, Any]]) -> TensorFlowMarks:  # noqa: ANN401
        return TensorFlowMarks(model, variables)

    def inventory(
        self, objects: Mapping[str, Mapping[str, object]], state: JobState[SnapshotT], absent: tuple[str, ...]
    ) -> FreezingInventory[SnapshotT]:
        return FreezingInventory(
            self._adapter, objects, lambda: state.snapshot(is_whole=False), state.snapshot, state.components, absent, freezes=True
        )


def _readable(kind: str, variables: Sequence[Any]) -> list[Any]:
    """Returns TensorFlow's variables of those of Keras, or of TensorFlow.

    Raises:
        UndescribableError: the value of one can't be read.
    """
    found = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    for number, variable in enumerate(found):
        if not isinstance(variable, tf.Variable):
            raise UndescribableError(
                f"{kind}/variables/{number}: the value of a {type(variable).__name__} can't be read: leave quantization out"
            )
    return found


def _assign(variables: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Sets variables to arrays. Large ones read an array's memory until their first update, which moves them."""
    for variable, array in zip(variables, arrays, strict=True):
        # Memory that is not aligned to 64 bytes would end the process, and NumPy exports no bfloat16.
        is_shared = array.nbytes >= SHARED_FROM_BYTES and array.dtype.kind in "iuf" and array.ctypes.data % 64 == 0
        value = tf.experimental.dlpack.from_dlpack(array.__dlpack__()) if is_shared else tf.constant(array)
        variable.assign(value, read_value=False)


def _check_step(train_function: object, known: Sequence[Any]) -> None:
    """Looks for state in a train function that can't be carried.

    Args:
        train_function: a model's.
        known: variables that are carried.

    Raises:
        UndescribableError: there is some.
    """
    handles = {id(variable.handle) for variable in known}
    for function in _functions(train_function):
        graph = function.graph.as_graph_def()
        names = {node.op for node in graph.node} | {node.op for part in graph.library.function for node in part.node_def}
        for name in sorted(names):
            op = op_def_registry.get(name)
            if op is not None and op.is_stateful and any(one.name == "seed" for one in op.attr):
                raise UndescribableError(
                    f"train step: the operation {name} keeps its random numbers where they can't be read: use keras.random, or a "
                    "layer of Keras, in place of tf.random"
                )
        for variable in function.graph.variables:
            if id(variable.handle) not in handles:
                raise UndescribableError(
                    f"train step: the variable {variable.name} belongs neither to the model nor to its optimizer or metrics: make it "
                    "by add_weight, or keep it as an attribute of a layer"
                )


def _functions(train_function: object) -> list[Any]:
    """Returns the graphs that a model's train function has been traced to; none where it runs eagerly."""
    if not inspect.isfunction(train_function):
        return []
    inside = inspect.getclosurevars(train_function).nonlocals.values()
    return [one for part in inside if hasattr(part, "_list_all_concrete_functions") for one in part._list_all_concrete_functions()]
