"""The interface between a Keras job's state and the backend that Keras runs on."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import keras

from forebay.clone._adapter import Component
from forebay.clone._early import EarlyTensors
from forebay.clone._errors import UndescribableError
from forebay.clone._inventory import Inventory
from forebay.clone._values import Path
from forebay.keras._place import DataPlace

__all__ = ["Backend", "JobState", "backend"]

BACKENDS = {
    "jax": ("forebay.keras._jax", "JaxBackend"),
    "tensorflow": ("forebay.keras._tensorflow", "TensorFlowBackend"),
    "torch": ("forebay.keras._torch", "TorchBackend"),
}
"""By Keras' name of it the module and the class of a backend."""

SnapshotT = TypeVar("SnapshotT")


class JobState(Protocol[SnapshotT]):
    """Reads and sets the state of a job."""

    def snapshot(self, *, is_whole: bool = True) -> SnapshotT:
        """Returns the state as it is now, which later steps leave as it is.

        Args:
            is_whole: with the states of iterators, which no other process can compare with its own.
        """

    def live(self) -> SnapshotT:
        """Returns the state as it is whenever it is read, with the tensors themselves."""

    def components(self, of: SnapshotT) -> list[Component]:
        """Returns the components of a state. Setting one sets the job."""


class Backend(Protocol):
    """Keras on one framework, in one process.

    Attributes:
        reads_in_place: true if clones read large variables in the job's own memory, until the optimizer's next update.
    """

    reads_in_place: bool

    def check(self, model: Any) -> None:  # noqa: ANN401  (Keras has no types)
        """Refuses a model that is distributed, or that holds state which Keras does not know.

        Raises:
            UndescribableError: as it says.
        """

    def check_step(self, train_function: object, known: Sequence[Any]) -> None:
        """Looks for state in a train function that can't be carried.

        Args:
            train_function: a model's.
            known: variables that are carried, as `readable` returns them.

        Raises:
            UndescribableError: there is some.
        """

    def flags(self) -> list[Component]:
        """Returns the components of the process's settings that change results, as they are in this thread."""

    def readable(self, kind: str, variables: Sequence[Any]) -> list[Any]:
        """Returns the objects that are read in place of variables of Keras.

        Raises:
            UndescribableError: the value of one can't be read.
        """

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Returns the values of variables, as `readable` returns these, which later steps leave as they are."""

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Sets variables, as `readable` returns these, to results of `read`, or to tensors of a captured state."""

    def held(self, value: Any) -> Any:  # noqa: ANN401
        """Returns an array of NumPy's, or a tensor, as the inventory can describe it."""

    def variables(
        self, path: tuple[str, ...], get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], object], *, is_steady: bool
    ) -> Component:
        """Returns the component of variables.

        Args:
            path: where it stands.
            get: returns their values.
            put: sets them.
            is_steady: nothing but the optimizer writes to them.
        """

    def sync(self, model: Any) -> None:  # noqa: ANN401
        """Has a model's variables hold the state of its last step."""

    def update_mark(self, optimizer: Any) -> object:  # noqa: ANN401
        """Returns an object that is another one after each update by an optimizer."""

    def train_once(self, model: Any, batches: Any) -> None:  # noqa: ANN401
        """Trains a step of `fit` with the first batches of an iterator of Keras."""

    def place(self, epochs: Any) -> DataPlace:  # noqa: ANN401
        """Returns the place of a `fit` in its data.

        Args:
            epochs: Keras' iterator that numbers batches.

        Raises:
            UndescribableError: the place in such data can't be known.
        """

    def marks(self, model: Any, variables: Callable[[], Mapping[Path, Any]]) -> EarlyTensors:  # noqa: ANN401
        """Gives a model a second train function, which tells when variables are final.

        It trains the model's first step, and those before forks.

        Args:
            model: the model.
            variables: returns the variables, as `readable` returns these, by path.

        Raises:
            UndescribableError: the backend or the way in which the model trains does not tell.
        """

    def inventory(self, objects: Mapping[str, Mapping[str, object]], state: JobState[SnapshotT], absent: tuple[str, ...]) -> Inventory:
        """Returns the inventory of a job's state.

        Args:
            objects: objects by kind and name.
            state: the state.
            absent: kinds that the job does not have.
        """


def backend() -> Backend:
    """Returns the backend that Keras runs on.

    Raises:
        UndescribableError: it is not known.
    """
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise UndescribableError(f"Keras' backend is {name}, and only models on {', '.join(BACKENDS)} can be forked: set KERAS_BACKEND")
    module, kind = BACKENDS[name]
    return cast("Backend", getattr(importlib.import_module(module), kind)())
