"""Keras' PyTorch backend, as forks see it.

Variables are written in place, as in any job of PyTorch. So a fork reads the large ones of them in the job's own memory
until the optimizer's next update, and all others are copied while training stands still.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
import torch

from forebay.clone._adapter import Adapter, BeforeStep, Component
from forebay.clone._early import EarlyTensors
from forebay.clone._errors import UndescribableError
from forebay.clone._inventory import Inventory
from forebay.clone._manifest import Placement
from forebay.clone._values import Path
from forebay.keras._backend import JobState, SnapshotT
from forebay.keras._changes import change
from forebay.keras._components import component, dtype_policy, fixed_components
from forebay.keras._held import ARRAY
from forebay.keras._python_place import PythonPlace
from forebay.torch import _state
from forebay.torch._flags import flags, set_flags

__all__ = ["TorchBackend"]


class TorchBackend:
    """Keras on PyTorch; see `forebay.keras._backend.Backend`."""

    reads_in_place = True

    def check(self, model: Any) -> None:  # noqa: ANN401  (Keras has no types)
        if _state.rank()[1] > 1:
            raise UndescribableError(
                "model: it is distributed by torch.distributed, and only models of one process and device can be forked: leave it out"
            )
        known = {id(variable._value) for variable in model.variables}
        for layer in model._flatten_layers():
            for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                if id(tensor) not in known:
                    raise UndescribableError(
                        f"model: the tensor {name} of layer {layer.name} is not a variable of Keras: use a layer of Keras, or add_weight"
                    )

    def check_step(self, train_function: object, known: Sequence[Any]) -> None:
        # The step is a function of Python: a layer that draws from torch draws from a generator that is carried.
        pass

    def flags(self) -> list[Component]:
        fixed = fixed_components("keras flags", {"dtype": dtype_policy()})
        return [*fixed, component(("flags",), flags, set_flags)]

    def readable(self, kind: str, variables: Sequence[Any]) -> list[Any]:
        for number, variable in enumerate(variables):
            if not isinstance(variable, keras.Variable):
                raise UndescribableError(f"{kind}/variables/{number}: a {type(variable).__name__} is not a variable of Keras")
        return [variable._value for variable in variables]

    def read(self, variables: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in variables]

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        with torch.no_grad():
            for tensor, array in zip(variables, arrays, strict=True):
                tensor.copy_(array)

    def held(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        # Torch takes no array of NumPy's whose type is bfloat16, or text.
        return {ARRAY: torch.from_numpy(np.array(value))} if value.dtype.kind in "iufb" else value

    def variables(
        self, path: tuple[str, ...], get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], object], *, is_steady: bool
    ) -> Component:
        # They are written in place.
        return Component(path, Placement.PER_RANK, get, steady=is_steady)

    def sync(self, model: Any) -> None:  # noqa: ANN401
        pass

    def update_mark(self, optimizer: Any) -> object:  # noqa: ANN401
        return object()

    def train_once(self, model: Any, batches: Any) -> None:  # noqa: ANN401
        model.train()
        model.train_function([next(iter(batches))])

    def place(self, epochs: Any) -> PythonPlace:  # noqa: ANN401
        return PythonPlace(epochs, asks_ahead=True)

    def marks(self, model: Any, variables: Callable[[], Mapping[Path, Any]]) -> EarlyTensors:  # noqa: ANN401
        raise UndescribableError("PyTorch's clones read variables in place")

    def inventory(self, objects: Mapping[str, Mapping[str, object]], state: JobState[SnapshotT], absent: tuple[str, ...]) -> Inventory:
        adapter = cast("Adapter", _TorchAdapter(objects["optimizer"].values()))
        return Inventory(adapter, adapter, objects, state.components(state.live()), absent)


class _TorchAdapter:
    """The framework torch, whose steps are those of optimizers of Keras."""

    def __init__(self, optimizers: Any) -> None:  # noqa: ANN401
        self._hooks = _StepHooks()
        for optimizer in optimizers:
            self._hooks.watch(optimizer)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(_state, name)

    def framework(self) -> str:
        return f"{_state.framework()}, keras {keras.__version__}"

    def on_step(self, given: Mapping[str, Mapping[str, object]], before: BeforeStep, after: Callable[[], None]) -> Callable[[], None]:
        self._hooks.before, self._hooks.after = (lambda: before(None)), after

        def remove() -> None:
            self._hooks.before = self._hooks.after = _nothing
            self._hooks.unwatch()

        return remove

    def change(self, given: Mapping[str, Mapping[str, object]], name: str, value: float, rank: int) -> None:
        change(given, name, value, rank)


def _nothing() -> object:
    pass


class _StepHooks:
    """Functions that are called before and after each update by an optimizer of Keras.

    Attributes:
        before: called before anything is written.
        after: called after all was written.
    """

    def __init__(self) -> None:
        self.before: Callable[[], object] = _nothing
        self.after: Callable[[], object] = _nothing
        self._watched: list[tuple[Any, Callable[..., Any]]] = []

    def watch(self, optimizer: Any) -> None:  # noqa: ANN401
        """Has the functions called around `apply`, which all ways to update variables go through."""
        apply = optimizer.apply
        # Compiled code leaves off for them.
        before, after = (torch.compiler.disable(one) for one in (lambda: self.before(), lambda: self.after()))

        def stepped(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            before()
            result = apply(*args, **named)
            after()
            return result

        optimizer.apply = stepped
        self._watched.append((optimizer, stepped))

    def unwatch(self) -> None:
        """Gives the optimizers their own `apply` back, unless the program has set another one since."""
        for optimizer, stepped in self._watched:
            if vars(optimizer).get("apply") is stepped:
                del vars(optimizer)["apply"]
        self._watched = []
