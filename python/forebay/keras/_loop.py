"""The state of a training loop of one's own, for models of Keras: see `forebay.clone.session`."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from forebay.clone._adapter import Component
from forebay.clone._errors import MissingError, UndescribableError
from forebay.clone._inventory import Inventory
from forebay.keras._backend import Backend, backend
from forebay.keras._callbacks import held_state, set_held_state
from forebay.keras._components import component, fixed_components, process_generators, set_process_generators
from forebay.keras._held import HeldTensor
from forebay.keras._seeds import global_generator

__all__ = ["LoopState", "loop_inventory"]

GIVEN = ("model", "optimizer", "scheduler", "scaler", "ema", "loader")
GENERATORS, METRICS = "generators", "metrics"
VARIABLES, STATISTICS = "variables", "statistics"
Key = tuple[str, str]
"""Kind and name of an object."""
Part = tuple[str, str, str]
"""Kind and name of an object, and which of its variables: all of them, or those of a model that are trained or not."""
KERAS_GENERATOR: Part = (GENERATORS, "keras", VARIABLES)


class LoopState(Protocol):
    """The state between two steps.

    Attributes:
        tensors: values of variables, by the object that has them.
        states: states of objects that have no variables.
        counters: counters of the program.
        process: states of the generators of the process.
    """

    @property
    def tensors(self) -> Mapping[Part, Sequence[Any]]: ...
    @property
    def states(self) -> Mapping[Key, Any]: ...
    @property
    def counters(self) -> Mapping[str, Any]: ...
    @property
    def process(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class _Snapshot:
    """A state that later steps leave as it is; see `LoopState`."""

    tensors: Mapping[Part, Sequence[Any]]
    states: Mapping[Key, Any]
    counters: Mapping[str, Any]
    process: Mapping[str, Any]


def loop_inventory(given: Mapping[str, object], generators: Mapping[str, object], ranks: str | None) -> Inventory:
    """Returns the inventory of a job's state; see `forebay.clone.inventory`.

    Args:
        given: objects, or dictionaries of objects, by kind.
        generators: generators of random numbers of the program's own, by name.
        ranks: as the program has given it.

    Raises:
        MissingError: an optimizer was declared absent, and the model is compiled with one.
        UndescribableError: an object's state is unknown, or a model or an optimizer is not built yet.
    """
    if ranks is not None:
        raise UndescribableError(f"ranks={ranks!r}: only models of one process and device can be forked with Keras: leave it out")
    objects = {kind: _by_name(given[kind]) for kind in GIVEN} | {"others": _by_name(given["others"]), GENERATORS: dict(generators)}
    here = backend()
    for name, model in objects["model"].items():
        _check_model(here, name, model, objects["optimizer"].values())
    for name, optimizer in objects["optimizer"].items():
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise UndescribableError(f"{_spelled('optimizer', name)}: a {type(optimizer).__name__} is not an optimizer of Keras")
        if not optimizer.built:
            raise UndescribableError(
                f"{_spelled('optimizer', name)}: it has no variables yet: call optimizer.build(model.trainable_variables) before session()"
            )
    absent = tuple(kind for kind in GIVEN if not objects[kind])
    return here.inventory(objects, _Loop(here, objects, given["counters"]), absent)


def _check_model(here: Backend, name: str, model: Any, optimizers: Any) -> None:  # noqa: ANN401
    where = _spelled("model", name)
    if not isinstance(model, keras.Model):
        raise UndescribableError(f"{where}: a {type(model).__name__} is not a model of Keras")
    here.check(model)
    if not model.built:
        raise UndescribableError(f"{where}: it has no variables yet: call model.build(shape), or the model once, before session()")
    own = model.optimizer
    if own is not None and all(own is not one for one in optimizers):
        raise MissingError(f"{where} is compiled with an optimizer that is not given: pass optimizer=model.optimizer")


class _Loop:
    """Reads and sets the objects of a loop; see `forebay.keras._backend.JobState`."""

    def __init__(self, here: Backend, objects: Mapping[str, Mapping[str, Any]], counters: Any) -> None:  # noqa: ANN401
        self.counters: dict[str, Any] = counters
        self._backend = here
        self._models: Sequence[Any] = list(objects["model"].values())
        self._optimizers: Sequence[Any] = list(objects["optimizer"].values())
        self._first = self._marks()
        self._by_key = {(kind, name): one for kind, named in objects.items() for name, one in named.items()}
        self._plain = {key: _access(key, one, here) for key, one in self._by_key.items() if _variables_of(one) is None}
        # The places of iterators that were set, and the counters at that time: until the first step both are equal.
        self._set: dict[Key, Any] = {}
        self._set_at: dict[str, Any] = {}
        self._fixed = here.flags()
        for key, one in self._by_key.items():
            if key[0] in ("model", "optimizer"):
                self._fixed += fixed_components("/".join(part for part in key if part), _type_of(one))

    def snapshot(self, *, is_whole: bool = True) -> LoopState:
        for model in self._models:
            self._backend.sync(model)
        if is_whole:
            self._check_trained()
        groups = {part: self.group(part) for part in self.parts()}
        values = iter(self._backend.read([variable for group in groups.values() for variable in group]))
        tensors = {part: [next(values) for _ in group] for part, group in groups.items()}
        return _Snapshot(tensors, self.states(is_whole=is_whole), dict(self.counters), process_generators())

    def _check_trained(self) -> None:
        """Refuses variables that hold no step of the program, which keeps its state elsewhere.

        Raises:
            UndescribableError: as it says.
        """
        if self._optimizers and all(mark is first for mark, first in zip(self._marks(), self._first, strict=True)):
            raise UndescribableError(
                "optimizer: no step has changed its variables since session(): assign the state to the variables of model and optimizer "
                "before point(), or train by model.train_on_batch"
            )

    def _marks(self) -> list[object]:
        return [self._backend.update_mark(optimizer) for optimizer in self._optimizers]

    def live(self) -> LoopState:
        return _LiveState(self)

    def components(self, of: LoopState) -> list[Component]:
        return [
            *self._fixed,
            component(("counters",), lambda: dict(of.counters), self.counters.update),
            *(self._of_variables(part, of) for part in self.parts()),
            *(self._of_object(key, of) for key in self._plain),
            component((GENERATORS, "process"), lambda: dict(of.process), set_process_generators),
        ]

    def states(self, *, is_whole: bool) -> dict[Key, Any]:
        """Returns the states of objects without variables."""
        counters = dict(self.counters)
        if counters != self._set_at:
            self._set = {}
        states = {}
        for key, (get, _) in self._plain.items():
            if key in self._set:
                states[key] = self._set[key]
            else:
                states[key] = get() if is_whole or not _is_iterator(self._by_key[key]) else None
        return states

    def parts(self) -> Iterator[Part]:
        """Yields the parts of all objects that have variables."""
        for key, one in self._by_key.items():
            if _variables_of(one) is not None:
                yield (*key, VARIABLES)
                if key[0] == "model":
                    yield (*key, STATISTICS)
        for number in range(len(self._models)):
            yield METRICS, str(number), VARIABLES
        yield KERAS_GENERATOR

    def group(self, part: Part) -> list[Any]:
        """Returns the variables of a part, as `Backend.readable` does."""
        kind, name, which = part
        if part == KERAS_GENERATOR:
            last = global_generator()
            return self._backend.readable(GENERATORS, [] if last is None else [last.state])
        if kind == METRICS:
            return self._backend.readable(METRICS, self._models[int(name)].metrics_variables)
        one = self._by_key[kind, name]
        variables = _variables_of(one) or ()
        if kind == "model":
            trained = {id(variable) for variable in one.trainable_variables}
            variables = [variable for variable in variables if (id(variable) in trained) == (which == VARIABLES)]
        return self._backend.readable(_spelled(kind, name), variables)

    def _of_variables(self, part: Part, of: LoopState) -> Component:
        def put(values: Sequence[Any]) -> None:
            if is_global and len(values) > 0:
                global_generator(make=True)
            self._backend.assign(self.group(part)[: len(values)], values)

        # The generator of the process is made when it is first used.
        is_global = part == KERAS_GENERATOR
        path = tuple(name for name in part if name)
        if is_global:
            return component(path, lambda: list(of.tensors[part]), put)
        is_steady = part[0] == "optimizer" or (part[0] == "model" and part[2] == VARIABLES)
        return self._backend.variables(path, lambda: list(of.tensors[part]), put, is_steady=is_steady)

    def _of_object(self, key: Key, of: LoopState) -> Component:
        def put(state: Any) -> None:  # noqa: ANN401
            if _is_iterator(self._by_key[key]):
                # The captured memory ends with the load.
                state = np.array(state[0])
                self._set[key], self._set_at = (lambda: state), dict(self.counters)
            self._plain[key][1](state)

        return component((*_path(key), "state"), lambda: _called(of.states[key]), put)


class _LiveState:
    """The state of a loop as it is whenever it is read; see `LoopState`."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    @property
    def tensors(self) -> Mapping[Part, Sequence[Any]]:
        return _LiveTensors(self._loop)

    @property
    def states(self) -> Mapping[Key, Any]:
        return self._loop.states(is_whole=True)

    @property
    def counters(self) -> Mapping[str, Any]:
        return self._loop.counters

    @property
    def process(self) -> Mapping[str, Any]:
        return process_generators()


class _LiveTensors(Mapping[Part, Sequence[Any]]):
    """The tensors of variables, looked up when they are asked for."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    def __getitem__(self, part: Part) -> Sequence[Any]:
        return self._loop.group(part)

    def __iter__(self) -> Iterator[Part]:
        return self._loop.parts()

    def __len__(self) -> int:
        return len(list(self._loop.parts()))


def _by_name(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if value is None:
        return {}
    return dict(value) if type(value) is dict else {"": value}


def _path(key: Key) -> tuple[str, ...]:
    return tuple(part for part in key if part)


def _spelled(kind: str, name: str) -> str:
    return "/".join(_path((kind, name)))


def _type_of(one: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(one, keras.Model):
        trained = [number for number, variable in enumerate(one.variables) if variable.trainable]
        return {"class": type(one).__name__, "trained": trained}
    inner = getattr(one, "inner_optimizer", None)
    return {"class": [type(each).__name__ for each in (one, inner) if each is not None]}


def _variables_of(one: Any) -> Sequence[Any] | None:  # noqa: ANN401
    """Returns the variables that are an object's state; None if they are not."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if isinstance(one, keras.Variable) or (tensorflow is not None and isinstance(one, tensorflow.Variable)):
        return [one]
    if isinstance(one, keras.Layer | keras.optimizers.Optimizer | keras.Metric):
        found: Sequence[Any] = one.variables
        return found
    if isinstance(one, keras.random.SeedGenerator) or (tensorflow is not None and isinstance(one, tensorflow.random.Generator)):
        return [one.state]
    return None


def _is_iterator(one: object) -> bool:
    tensorflow: Any = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(one, tensorflow.data.Iterator)


def _access(key: Key, one: Any, here: Backend) -> tuple[Callable[[], Any], Callable[[Any], object]]:  # noqa: ANN401
    """Returns how the state of an object without variables is read and set.

    Raises:
        UndescribableError: it is unknown.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.Generator):
        return lambda: {"state": one.get_state().numpy()}, lambda state: one.set_state(torch.from_numpy(state["state"].copy()))
    if _is_iterator(one) and here.reads_in_place:
        raise UndescribableError(
            f"{_spelled(*key)}: the place in a tf.data can't be carried with models on {keras.backend.backend()}: give a loader with "
            "state_dict and load_state_dict"
        )
    if _is_iterator(one):
        # TensorFlow is loaded by now.
        from forebay.keras._iterators import iterator_state, restore_iterator

        return lambda: iterator_state(one), lambda state: restore_iterator(one, state)
    if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
        return lambda: held_state(one, here), lambda state: set_held_state(one, state)
    if isinstance(one, random.Random):
        return one.getstate, one.setstate
    if isinstance(one, np.random.Generator):
        bits = one.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    raise UndescribableError(
        f"{_spelled(*key)}: the state of a {type(one).__name__} is unknown: give a layer, metric or variable, an iterator of tf.data, or "
        "an object with state_dict and load_state_dict"
    )


def _called(state: Any) -> Any:  # noqa: ANN401
    """Returns a state; that of an iterator is written as bytes only now, beside training."""
    return [HeldTensor(state())] if callable(state) else state
