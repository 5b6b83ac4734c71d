"""What the inventory asks of a framework. `forebay.torch._state` answers; nothing else in this package knows what a tensor is."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

from forebay.clone._errors import UndescribableError
from forebay.clone._manifest import Layout, Placement
from forebay.clone._ranks import Ranks
from forebay.clone._values import Path

__all__ = ["Adapter", "Component", "Described", "Known", "Memory", "Piece", "Watch", "adapter_of"]

# By the package that the model's class, or one of its bases, is from.
_ADAPTERS = {"torch": "forebay.torch._state"}


@dataclass(frozen=True, eq=False)
class Watch:
    """All that components are read from: as long as the very same is reached from there, they give the same.

    Attributes:
        root: gives what is looked at: containers, objects, tensors.
        of_tensors: attributes of the tensors there that are read.
        of_objects: what is read of objects, by its names in their `__dict__`.
        is_plain: asked when something was exchanged: whether no object there reads more than that.
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
        put: sets such containers. None where nothing can be set: then source and clone must have the same values and layouts, and
            tensors are written in place.
        steady: its tensors are the state's own, and stay as they are from a point to the next step of an optimizer, unless the program
            does something unusual.
        portable: where all ranks hold it alike it is good for any number of ranks.
        watches: what `get` reads, apart from where tensors lie and of what type and sizes they are; none where that can't be told before.
        reads_more: asked when something was exchanged there: whether it reads more than that.
        shapes: tensors of which it reads type and sizes, though it does not give them.
        is_plain: to set it to the values that it has does nothing.
        draws: to read it may draw from random-number generators; the inventory sets those back afterwards.
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


class Memory(NamedTuple):
    """The bytes of a tensor, in the order of its layout.

    Attributes:
        address: of the first byte.
        length: bytes.
        owner: what must live as long as the address is used.
    """

    address: int
    length: int
    owner: object


class Piece(NamedTuple):
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
    """What there is to say of a tensor.

    Attributes:
        layout: see there.
        length: bytes.
        address: where they lie, if that is in the processor's memory and in the order of the layout; else None.
        is_sharded: whether each rank holds only a part.
    """

    layout: Layout
    length: int
    address: int | None
    is_sharded: bool


class Known(Protocol):
    """Tensors as they lay, of which none is kept."""

    def again(self) -> list[Any] | None:
        """All of them, if they are still there, and their types, layouts and addresses are what they were."""


class Adapter(Ranks, Protocol):
    """A framework."""

    def framework(self) -> str:
        """Name and version, such as `torch 2.9.0`."""

    def components(self, kind: str, given: Mapping[str, object]) -> list[Component]:
        """The parts of all objects given as one kind (`model`, `optimizer`, `scheduler`, ...), by their paths' second part; `""` for none.

        Raises:
            UndescribableError: of such an object nothing is known.
        """

    def process(self, generators: Mapping[str, object]) -> list[Component]:
        """What belongs to the process: generators, its own and the named ones, and flags that change results."""

    def access(self, value: object) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        """Returns how the state of a generator of random numbers is read and set; None for any other object."""

    def check(self, given: Mapping[str, Mapping[str, object]]) -> None:
        """Looks for signs that something declared absent is there.

        Raises:
            MissingError: it is.
        """

    def describe(self, value: object, path: Path) -> "Described | None":
        """What a tensor is (this rank's part, if it is sharded); None if the value is no tensor.

        Raises:
            UndescribableError: it is a tensor of a sort whose bytes alone don't say what it is.
        """

    def plain(self) -> Sequence[type]:
        """The types of tensors that are what they are by their elements, layout and place."""

    def known(self, tensors: list[Any]) -> "Known | None":
        """Tensors as they lie now; None if it can't be told whether they do so later."""

    def length(self, layout: Layout) -> int:
        """Bytes of a tensor of that layout.

        Raises:
            DamagedError: there can be no such tensor.
        """

    def empty(self, layout: Layout, buffer: object = None, offset: int = 0) -> Any:  # noqa: ANN401
        """A new tensor, its elements unset: in a buffer, from an offset in bytes on, if it can lie there."""

    def begin(self, tensor: Any) -> int:  # noqa: ANN401
        """The address of the first byte of a tensor that was made by `empty`, in the processor's memory."""

    def outward(self, tensors: Sequence[Any]) -> Iterator[list[Piece]]:
        """The bytes of tensors that don't lie in the processor's memory in order: as pieces, each there until the next ones are asked for.

        Those of one tensor come in their order, as `_core.Pieces` takes them.
        """

    def inward(self, tensors: Sequence[Any], layouts: Sequence[Layout]) -> Iterator[list[Piece]]:
        """Has the bytes of such tensors written, in these layouts: where pieces of them are to be put before the next ones are asked for.

        What lies in the processor's memory there or here is one piece. All are where they belong when there are no more pieces.
        """

    def tensor_length(self, tensor: Any) -> int:  # noqa: ANN401
        """Bytes of a tensor's elements in this rank."""

    def lying(self, tensor: Any) -> Memory | None:  # noqa: ANN401
        """The tensor's bytes, in the order of its layout, where they lie; None if they have gaps, or are not in the processor's memory."""

    def why_fixed(self, tensor: Any) -> str:  # noqa: ANN401
        """Why the tensor can't lie elsewhere without anybody noticing; empty if it can."""

    def move(self, tensor: Any, buffer: object, offset: int) -> None:  # noqa: ANN401
        """Has such a tensor lie in a buffer from now on, from an offset in bytes on; its elements stay as they are."""

    def versions(self, tensors: Sequence[Any]) -> list[int]:
        """Of each a number that most of what writes to the tensor makes another one."""

    def is_at_rest(self) -> bool:
        """Asked by the main thread between two instructions: whether no operation is under way that has called Python.

        Of what such a one changes the version might not be counted yet.
        """

    def is_reading(self, frame: FrameType) -> bool:
        """Asked by another thread of one that is in this frame: whether all that one does is an operation that writes to no steady tensor.

        Such are a backward pass, which writes to gradients (what hooks write in it, Python writes), and layers with large weights.
        """

    def on_step(
        self, given: Mapping[str, Mapping[str, object]], before: Callable[[], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        """Has functions called before and after each update by an optimizer; gives what ends that."""

    def change(self, given: Mapping[str, Mapping[str, object]], name: str, value: float, rank: int) -> None:
        """Sets a number in all groups of the optimizers that have it (`lr`: also where schedules begin), or with `seed` the generators.

        Each rank is seeded otherwise: they draw different samples, and drop out different neurons.

        Raises:
            DifferenceError: there is nothing of that name.
        """


def adapter_of(model: object) -> Adapter:
    """The framework of a model.

    Raises:
        UndescribableError: no framework that is known.
    """
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _ADAPTERS and package in sys.modules:
            return cast("Adapter", importlib.import_module(_ADAPTERS[package]))
    raise UndescribableError(f"model is a {type(model).__module__}.{type(model).__qualname__}; known are models of: {', '.join(_ADAPTERS)}")
