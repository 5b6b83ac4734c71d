"""The state of a Keras job: everything on which the results of `fit` depend, found from the model."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay.clone._adapter import Component
from forebay.clone._errors import UndescribableError
from forebay.clone._inventory import Inventory
from forebay.clone._values import Path
from forebay.keras._backend import Backend
from forebay.keras._callbacks import held_state, set_held_state
from forebay.keras._components import component, fixed_components, process_generators, set_process_generators
from forebay.keras._place import DataPlace, DataPosition
from forebay.keras._seeds import global_generator

__all__ = ["KerasJob", "KerasState"]

ABSENT = ("scheduler", "scaler", "ema", "loader")
"""Kinds that Keras has as parts of the optimizer, of callbacks and of the data."""
SEEDS = "seeds"
PATHS = {
    "model": ("model", "variables"),
    "statistics": ("model", "statistics"),
    "optimizer": ("optimizer", "variables"),
    "metrics": ("metrics", "variables"),
}
"""By the kind of variables the path of their component."""
STEADY = ("model", "optimizer")
"""Kinds of variables to which only the optimizer writes."""


class KerasState(Protocol):
    """The state between two steps.

    Attributes:
        tensors: values of all variables, by their kind and in their order.
        counters: epoch and step.
        callbacks: states by name.
        generators: states of the generators of the process, by name.
        place: place in the data.
    """

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def counters(self) -> Mapping[str, int]: ...
    @property
    def callbacks(self) -> Mapping[str, Any]: ...
    @property
    def generators(self) -> Mapping[str, Any]: ...
    @property
    def place(self) -> DataPosition: ...


@dataclass(frozen=True)
class _Snapshot:
    """A state that later steps leave as it is; see `KerasState`."""

    tensors: Mapping[str, Sequence[Any]]
    counters: Mapping[str, int]
    callbacks: Mapping[str, Any]
    generators: Mapping[str, Any]
    place: DataPosition


class KerasJob:
    """The state of one `fit`."""

    def __init__(self, backend: Backend, model: Any, callbacks: Mapping[str, Any], place: DataPlace) -> None:  # noqa: ANN401
        """Looks at a model that is compiled, and may not be built yet.

        Args:
            backend: the backend of Keras.
            model: the model.
            callbacks: callbacks with state, by name.
            place: place in the data.

        Raises:
            UndescribableError: the model trains under a strategy that is not known.
        """
        backend.check(model)
        if model.optimizer is None:
            raise UndescribableError("model: it was compiled without an optimizer, so it does not train: give compile(optimizer=...)")
        self.model, self.callbacks, self.place = model, callbacks, place
        self.counters: dict[str, int] = {}
        self.batch = 0
        self._backend = backend
        # Read here, since Keras keeps some for each thread.
        self._flags = backend.flags()
        self._fixed: list[Component] = []
        self._found: dict[str, list[Any]] = {}
        self._made_for: tuple[Any, ...] = ()

    def inventory(self) -> Inventory:
        """Returns the inventory of the state; the model must be built."""
        objects = {"model": {"": self.model}, "optimizer": {"": self.model.optimizer}}
        return self._backend.inventory(objects, self, ABSENT)

    def check(self) -> None:
        """Refuses a job with state that can't be carried, once it has trained a step.

        Raises:
            UndescribableError: as it says.
        """
        self._backend.check_step(self.model.train_function, [variable for group in self.variables().values() for variable in group])
        self.place.check()

    def snapshot(self, *, is_whole: bool = True) -> KerasState:
        """See `forebay.keras._backend.JobState.snapshot`."""
        self._backend.sync(self.model)
        variables = self.variables()
        values = iter(self._backend.read([variable for group in variables.values() for variable in group]))
        return _Snapshot(
            {kind: [next(values) for _ in group] for kind, group in variables.items()},
            dict(self.counters),
            self.callback_states(),
            process_generators(),
            self.place.position(self.batch, is_whole=is_whole),
        )

    def live(self) -> KerasState:
        """See `forebay.keras._backend.JobState.live`."""
        return _LiveState(self)

    def components(self, of: KerasState) -> list[Component]:
        """See `forebay.keras._backend.JobState.components`."""
        if not self._fixed:
            self._fixed = [*fixed_components("model", self._type()), *self._flags, *fixed_components("data", self.place.type)]
        return [
            *self._fixed,
            *(self._of_variables(kind, of) for kind in PATHS),
            component(("counters",), lambda: dict(of.counters), self.counters.update),
            *(self._of_callback(name, of) for name in self.callbacks),
            component(("data", "place"), lambda: self.place.value(of.place), self.place.put),
            component(("generators", "keras"), lambda: list(of.tensors[SEEDS]), lambda values: self._assign(SEEDS, values)),
            component(("generators", "process"), lambda: dict(of.generators), set_process_generators),
        ]

    def _of_variables(self, kind: str, of: KerasState) -> Component:
        return self._backend.variables(
            PATHS[kind], lambda: list(of.tensors[kind]), lambda values: self._assign(kind, values), is_steady=kind in STEADY
        )

    def _of_callback(self, name: str, of: KerasState) -> Component:
        callback = self.callbacks[name]
        return component(("callbacks", name), lambda: of.callbacks[name], lambda state: set_held_state(callback, state))

    def put_back(self, before: KerasState) -> None:
        """Sets variables, callbacks and generators to a snapshot, and leaves the place in the data as it is."""
        for kind, held in before.tensors.items():
            self._assign(kind, held)
        for name, state in before.callbacks.items():
            set_held_state(self.callbacks[name], state)
        set_process_generators(dict(before.generators))

    def build(self) -> None:
        """Trains one step that is thrown away.

        It builds the model, the optimizer and the metrics, and compiles the step.
        """
        self._backend.train_once(self.model, self.place.new_iterator())

    def callback_states(self) -> dict[str, Any]:
        """Returns the states of the callbacks, by name."""
        return {name: held_state(callback, self._backend) for name, callback in self.callbacks.items()}

    def variables(self) -> dict[str, list[Any]]:
        """Returns all variables by kind; the same objects until the model has another train function."""
        model = self.model
        last = global_generator()
        made_for = (inspect.unwrap(model.train_function), model.optimizer, last, model.optimizer.built, model.built)
        if made_for != self._made_for:
            self._found, self._made_for = self._find_variables(last), made_for
        return self._found

    def by_path(self) -> dict[Path, Any]:
        """Returns the variables that have an entry of their own, by its path."""
        groups = [(PATHS[kind], group) for kind, group in self.variables().items() if kind in PATHS]
        return {(*path, str(number)): one for path, group in groups for number, one in enumerate(group)}

    def _find_variables(self, last: Any) -> dict[str, list[Any]]:  # noqa: ANN401
        model = self.model
        trained = {id(variable) for variable in model.trainable_variables}
        groups = {
            "model": model.trainable_variables,
            "statistics": [variable for variable in model.variables if id(variable) not in trained],
            "optimizer": model.optimizer.variables,
            "metrics": model.metrics_variables,
            SEEDS: [] if last is None else [last.state],
        }
        return {kind: self._backend.readable(kind, group) for kind, group in groups.items()}

    def _assign(self, kind: str, values: Sequence[Any]) -> None:
        if kind == SEEDS and len(values) > 0:
            global_generator(make=True)
        group = self.variables()[kind]
        self._backend.assign(group[: len(values)], values)

    def _type(self) -> dict[str, Any]:
        model = self.model
        optimizers = (model.optimizer, getattr(model.optimizer, "inner_optimizer", None))
        return {
            "class": type(model).__name__,
            "optimizer": [type(one).__name__ for one in optimizers if one is not None],
            "trained": [number for number, variable in enumerate(model.variables) if variable.trainable],
            "jit_compile": bool(model.jit_compile),
            "run_eagerly": bool(model.run_eagerly),
        }


class _LiveState:
    """The state of a job as it is whenever it is read; see `KerasState`."""

    def __init__(self, job: KerasJob) -> None:
        self._job = job

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]:
        return self._job.variables()

    @property
    def counters(self) -> Mapping[str, int]:
        return self._job.counters

    @property
    def callbacks(self) -> Mapping[str, Any]:
        return self._job.callback_states()

    @property
    def generators(self) -> Mapping[str, Any]:
        return process_generators()

    @property
    def place(self) -> DataPosition:
        return self._job.place.position(self._job.batch)
