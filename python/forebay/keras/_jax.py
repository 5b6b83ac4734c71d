"""Keras' JAX backend, as forks see it.

A step of `fit` takes the variables' arrays as its own and deletes them (donation). An array that somebody holds is not
deleted, but then each input of the step is copied to fresh memory. So a state is copied while training stands still.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from forebay.clone._adapter import Component
from forebay.clone._early import EarlyTensors
from forebay.clone._errors import UndescribableError
from forebay.clone._frozen import FreezingInventory
from forebay.clone._values import Path
from forebay.keras._backend import JobState, SnapshotT
from forebay.keras._components import component, dtype_policy, fixed_components
from forebay.keras._held import ArrayAdapter, HeldTensor
from forebay.keras._python_place import PythonPlace

__all__ = ["JaxBackend"]

FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
"""Settings of JAX that change results."""
GROUPS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
"""Names of the parts of a step's state, in their order."""


class JaxBackend:
    """Keras on JAX; see `forebay.keras._backend.Backend`."""

    reads_in_place = False

    def __init__(self) -> None:
        # The types that NumPy lacks, such as bfloat16, are registered with it by name.
        self._adapter = ArrayAdapter(f"jax {jax.__version__}, keras {keras.__version__}", np.dtype)

    def check(self, model: Any) -> None:  # noqa: ANN401  (Keras has no types)
        if keras.distribution.distribution() is not None or jax.process_count() > 1:
            raise UndescribableError(
                "model: it is distributed by keras.distribution, and only models of one process and device can be forked: leave it out"
            )

    def check_step(self, train_function: object, known: Sequence[Any]) -> None:
        # A compiled step has no state but its arguments.
        pass

    def flags(self) -> list[Component]:
        flags = {name.removeprefix("jax_"): str(getattr(jax.config, name, None)) for name in FLAGS}
        devices = [one.device_kind for one in jax.local_devices()]
        return fixed_components("flags", {"dtype": dtype_policy(), "devices": devices, **flags})

    def readable(self, kind: str, variables: Sequence[Any]) -> list[Any]:
        for number, variable in enumerate(variables):
            if not isinstance(variable, keras.Variable):
                raise UndescribableError(f"{kind}/variables/{number}: a {type(variable).__name__} is not a variable of Keras")
        return list(variables)

    def read(self, variables: Sequence[Any]) -> list[HeldTensor]:
        return [HeldTensor(variable._value) for variable in variables]

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        for variable, array in zip(variables, arrays, strict=True):
            # By a copy: a step writes to the memory of its inputs, and a capture can't be written to.
            variable.assign(jnp.array(array.array if isinstance(array, HeldTensor) else array, copy=True))

    def held(self, value: Any) -> HeldTensor:  # noqa: ANN401
        return HeldTensor(value)

    def variables(
        self, path: tuple[str, ...], get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], object], *, is_steady: bool
    ) -> Component:
        return component(path, get, put, is_fixed=True)

    def sync(self, model: Any) -> None:  # noqa: ANN401
        model.jax_state_sync()

    def update_mark(self, optimizer: Any) -> object:  # noqa: ANN401
        return optimizer.iterations._value

    def train_once(self, model: Any, batches: Any) -> None:  # noqa: ANN401
        state = model._get_jax_state(**dict.fromkeys(GROUPS, True), purge_model_variables=True)
        model._jax_state_synced = False
        _, state = model.train_function(state, batches)
        model._jax_state = dict(zip(GROUPS, state, strict=True))
        model.jax_state_sync()

    def place(self, epochs: Any) -> PythonPlace:  # noqa: ANN401
        return PythonPlace(epochs, asks_ahead=jax.default_backend() != "cpu")

    def marks(self, model: Any, variables: Callable[[], Mapping[Path, Any]]) -> EarlyTensors:  # noqa: ANN401
        raise UndescribableError("a compiled step of JAX gives its results at its end")

    def inventory(
        self, objects: Mapping[str, Mapping[str, object]], state: JobState[SnapshotT], absent: tuple[str, ...]
    ) -> FreezingInventory[SnapshotT]:
        return FreezingInventory(
            self._adapter, objects, lambda: state.snapshot(is_whole=False), state.snapshot, state.components, absent, freezes=False
        )
