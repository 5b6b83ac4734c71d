"""The interface between the inventory and a framework.

`forebay.torch._state` implements it; nothing else here knows tensors.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

from forebay.clone._errors import UndescribableError
from forebay.clone._manifest import Layout, Placement
from forebay.clone._ranks import Ranks
from forebay.clone._values import Path

__all__ = [
    "Adapter",
    "BeforeStep",
    "Changing",
    "Component",
    "Described",
    "StateAdapter",
    "TensorMemory",
    "TensorPiece",
    "TensorRecord",
    "Watch",
    "adapter_of",
    "is_keras",
]

# By the package that the model's class, or one of its bases, is from.
_ADAPTERS = {"torch": "forebay.torch._state"}


Changing = tuple[Iterable[object], Iterable[object] | None]
"""Tensors that change now, and those that do not before they are named. None for the latter: all others."""

BeforeStep = Callable[[Callable[[], Changing] | None], bool]
"""Called before tensors change, with a function that returns them, or with None if all may change.

Returns true if others are still read in place: then they have to be named before they change.
"""


@dataclass(frozen=True, eq=False)
class Watch:
    """The objects that components are read from.

    As long as they hold the very same objects, the components are unchanged.

    Attributes:
        root: gives what is looked at: containers, objects, tensors.
        of_tensors: attributes of the tensors there that are read.
        of_objects: names of the attributes, in the objects' `__dict__`, that are read.
        is_plain: called when an object was replaced; returns whether no object there reads more than that.
    """

    root: Callable[[], object]
    of_tensors: tuple[str, ...] = ()
    of_objects: tuple[str, ...] = ()
    is_plain: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Component:
    """A part of the state that is read and set as a whole.

    Attributes:
        path: where it stands.
        placement: how the ranks hold its values and tensors; a tensor that is sharded says so itself.
        get: gives nested containers of plain values and tensors. Tensors are the state's own, or throw-away copies.
        put: sets such containers. None where nothing can be set: then source and clone must have the same values and
            layouts, and tensors are written in place.
        steady: its tensors are the state's own, and are unchanged from a step boundary to the next step of an
            optimizer, unless the program does something unusual.
        portable: a state that all ranks hold alike is valid for any number of ranks.
        watches: the objects that `get` reads, apart from the addresses, types and sizes of tensors; empty if they are
            not known in advance.
        reads_more: called when an object there was replaced; returns whether `get` reads more than the watched objects.
        shapes: tensors whose type and sizes `get` reads without returning them.
        is_plain: setting the component to its present values has no effect.
        draws: reading it may draw from random-number generators; the inventory restores those afterwards.
        is_fixed: source and clone must have tensors of the same layouts, although `put` sets it.
        tells_boxes: its value is a dictionary of the parts that this rank holds of sharded tensors. A key is what the
            paths of their entries begin with, without the path of the component's object, such as
            `parameters/fc.weight`. A value is three lists of integers, by dimension: sizes of the whole tensor, index
            of the part's first element, sizes of the part.
    """

    path: Path
    placement: Placement
    get: Callable[[], object]
    put: Callable[[Any], object] | None = None
    steady: bool = False
    portable: bool = True
    watches: tuple[Watch, ...] = ()
    reads_more: Callable[[], bool] = lambda: False
    shapes: Callable[[], list[Any]] = list
    is_plain: bool = False
    draws: bool = False
    is_fixed: bool = False
    tells_boxes: bool = False


class TensorMemory(NamedTuple):
    """The bytes of a tensor, in the order of its layout.

    Attributes:
        address: of the first byte.
        length: bytes.
        owner: the object that must live as long as the address is used.
    """

    address: int
    length: int
    owner: object


class TensorPiece(NamedTuple):
    """Bytes of a tensor, or of a whole one, in the processor's memory for a while.

    Attributes:
        number: the tensor's, among those that were given.
        start: which of its bytes, in the order of its layout, is the first.
        address: of that one.
        length: bytes.
    """

    number: int
    start: int
    address: int
    length: int


class Described(NamedTuple):
    """A tensor's layout, length and address.

    Attributes:
        layout: its element type, sizes, strides and device.
        length: bytes.
        address: of the first byte, if they are in the processor's memory and in the order of the layout; else None.
        is_sharded: true if each rank holds only a part.
    """

    layout: Layout
    length: int
    address: int | None
    is_sharded: bool


class TensorRecord(Protocol):
    """A record of tensors' types, layouts and addresses, which keeps no tensor alive."""

    def again(self) -> list[Any] | None:
        """Returns all tensors if they still exist, with the types, layouts and addresses that they had; else None."""


class StateAdapter(Ranks, Protocol):
    """The part of a framework that describes a state, digests it, and changes it."""

    def framework(self) -> str:
        """Returns name and version, such as `torch 2.9.0`."""

    def describe(self, value: object, path: Path) -> "Described | None":
        """Describes a tensor (this rank's part, if it is sharded); returns None if the value is not a tensor.

        Raises:
            UndescribableError: the bytes of such a tensor do not suffice to rebuild it.
        """

    def plain(self) -> Sequence[type]:
        """Returns the types of tensors that are determined by their elements, layout and address."""

    def known(self, tensors: list[Any]) -> "TensorRecord | None":
        """Records where tensors are now; returns None if a later change could not be detected."""

    def length(self, layout: Layout) -> int:
        """Returns the bytes of a tensor of that layout.

        Raises:
            DamagedError: there can be no such tensor.
        """

    def tensor_length(self, tensor: Any) -> int:  # noqa: ANN401
        """Returns the bytes of a tensor's elements in this rank."""

    def outward(self, tensors: Sequence[Any]) -> Iterator[list[TensorPiece]]:
        """Yields the bytes of tensors that are not contiguous in the processor's memory.

        They come as pieces, which are valid until the next ones are requested; those of one tensor in their order, as
        `_core.Pieces` requires.
        """

    def on_step(self, given: Mapping[str, Mapping[str, object]], before: BeforeStep, after: Callable[[], None]) -> Callable[[], None]:
        """Registers functions that are called before and after each update by an optimizer.

        Returns a function that removes them.
        """

    def change(self, given: Mapping[str, Mapping[str, object]], name: str, value: float, rank: int) -> None:
        """Sets a number in all groups of the optimizers that have it (`lr`.

        Also where schedules begin), or with `seed` the generators.

        Each rank gets a seed of its own: ranks draw different samples, and drop out different neurons.

        Raises:
            DifferenceError: there is nothing of that name.
        """


class Adapter(StateAdapter, Protocol):
    """A framework whose tensors are read and filled where they are."""

    def components(self, kind: str, given: Mapping[str, object]) -> list[Component]:
        """Returns the components of all objects of one kind (`model`, `optimizer`, `scheduler`, ...).

        Args:
            kind: the kind.
            given: objects by the second part of their paths; `""` for none.

        Raises:
            UndescribableError: an object's type is unknown.
        """

    def process(self, generators: Mapping[str, object]) -> list[Component]:
        """Returns the components of the process: its generators, the named ones, and flags that change results."""

    def access(self, value: object) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        """Returns how the state of a generator of random numbers is read and set; None for any other object."""

    def check(self, given: Mapping[str, Mapping[str, object]]) -> None:
        """Looks for signs that a kind that was declared absent is in use.

        Raises:
            MissingError: it is.
        """

    def empty(self, layout: Layout, buffer: object = None, offset: int = 0) -> Any:  # noqa: ANN401
        """Returns a new tensor with unset elements: in a buffer, from an offset in bytes on, if it can be there."""

    def begin(self, tensor: Any) -> int:  # noqa: ANN401
        """Returns the address of the first byte of a tensor that `empty` made in the processor's memory."""

    def inward(self, tensors: Sequence[Any], layouts: Sequence[Layout]) -> Iterator[list[TensorPiece]]:
        """Yields the addresses to which the bytes of such tensors are to be written before the next request.

        A tensor that is in the processor's memory in its own layout or in the given one is a single piece. All
        tensors are complete when there are no more pieces.
        """

    def lying(self, tensor: Any) -> TensorMemory | None:  # noqa: ANN401
        """Returns the tensor's bytes in the order of its layout.

        None if they have gaps, or are not in the processor's memory.
        """

    def why_fixed(self, tensor: Any) -> str:  # noqa: ANN401
        """Returns the reason why moving the tensor would be noticed; empty if it can be moved."""

    def move(self, tensor: Any, buffer: object, offset: int) -> None:  # noqa: ANN401
        """Moves such a tensor into a buffer, to an offset in bytes; its elements are unchanged."""

    def versions(self, tensors: Sequence[Any]) -> list[int]:
        """Returns a version number for each tensor, which most operations that write to it change."""

    def is_at_rest(self) -> bool:
        """Returns true if no operation is under way that has called Python; called between two instructions.

        The version of a tensor that such an operation changes might not be counted yet.
        """

    def is_reading(self, frame: FrameType) -> bool:
        """Returns true if the operation of another thread, in this frame, leaves tensors unchanged between steps.

        Examples are a backward pass, which writes to gradients (hooks in it run as Python), and layers with large
        weights.
        """


def adapter_of(model: object) -> Adapter:
    """Returns the framework of a model.

    Raises:
        UndescribableError: no framework that is known.
    """
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _ADAPTERS and package in sys.modules:
            return cast("Adapter", importlib.import_module(_ADAPTERS[package]))
    raise UndescribableError(f"model is a {type(model).__module__}.{type(model).__qualname__}; known are models of: {', '.join(_ADAPTERS)}")


def is_keras(model: object) -> bool:
    """Returns whether a model, or each of a dictionary, is of Keras: `forebay.keras` describes it."""
    keras: Any = sys.modules.get("keras")
    models = list(model.values()) if type(model) is dict else [model]
    is_loaded = keras is not None and hasattr(keras, "Model")
    return is_loaded and len(models) > 0 and all(isinstance(one, keras.Model) for one in models)
