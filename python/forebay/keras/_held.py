"""Tensors of Keras' backends as NumPy arrays, and the part of the inventory's interface that needs no more."""

import ctypes
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from forebay.clone._adapter import BeforeStep, Described, TensorMemory, TensorPiece, TensorRecord
from forebay.clone._errors import DamagedError, UndescribableError
from forebay.clone._manifest import Layout
from forebay.clone._values import Path, spelled
from forebay.keras._changes import change

__all__ = ["ARRAY", "ArrayAdapter", "HeldTensor"]

ARRAY = "forebay array"
"""Only key of a dictionary that stands for an array of NumPy's, where the backend's own tensors are carried as such."""


class HeldTensor:
    """A tensor whose bytes stay as they are for as long as it is used."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401  (an eager tensor of TensorFlow, an array of JAX or NumPy)
        self._value = value

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The tensor's elements, in its own memory if it has more than one."""
        value = self._value._numpy() if hasattr(self._value, "_numpy") else np.asarray(self._value)
        self._value = found = np.ascontiguousarray(value).reshape(np.shape(value))
        return found


class ArrayAdapter:
    """Keras on a backend whose tensors can be read as arrays, in one process; see `FreezingAdapter`."""

    def __init__(self, framework: str, dtype: Callable[[str], Any]) -> None:
        """Names the framework.

        Args:
            framework: name and version of the backend and of Keras.
            dtype: returns NumPy's type by its name; raises `TypeError` if there is none.
        """
        self._framework, self._dtype_of = framework, dtype

    def rank(self) -> tuple[int, int]:
        return 0, 1

    def shared_number(self) -> int:
        return random.SystemRandom().randrange(2**31)

    def framework(self) -> str:
        return self._framework

    def describe(self, value: object, path: Path) -> Described | None:
        if not isinstance(value, HeldTensor):
            return None
        array = value.array
        if array.dtype.hasobject:
            raise UndescribableError(f"{spelled(path)}: a tensor of {array.dtype} can't be carried: keep text in a layer's configuration")
        return Described(Layout.in_order(array.dtype.name, array.shape, "cpu"), array.nbytes, array.ctypes.data, is_sharded=False)

    def plain(self) -> Sequence[type]:
        return ()

    def known(self, tensors: list[Any]) -> TensorRecord | None:
        return None

    def length(self, layout: Layout) -> int:
        return math.prod(layout.shape) * self._dtype(layout).itemsize

    def tensor_length(self, tensor: HeldTensor) -> int:
        return tensor.array.nbytes

    def outward(self, tensors: Sequence[Any]) -> Iterator[list[TensorPiece]]:
        # All have an address.
        return iter(())

    def tensor_at(self, memory: TensorMemory, layout: Layout) -> np.ndarray[Any, Any]:
        if memory.length == 0:
            return np.empty(layout.shape, self._dtype(layout))
        # No backend writes to it, and NumPy exports only arrays that could be written to.
        buffer: Any = (ctypes.c_char * memory.length).from_address(memory.address)
        buffer.owner = memory.owner
        found: np.ndarray[Any, Any] = np.frombuffer(buffer, self._dtype(layout)).reshape(layout.shape)
        return found

    def on_step(self, given: Mapping[str, Mapping[str, object]], before: BeforeStep, after: Callable[[], None]) -> Callable[[], None]:
        # Nothing is read in place, so nothing has to be done before a step; and accumulated gradients are variables.
        return lambda: None

    def change(self, given: Mapping[str, Mapping[str, object]], name: str, value: float, rank: int) -> None:
        change(given, name, value, rank)

    def _dtype(self, layout: Layout) -> np.dtype[Any]:
        try:
            found: np.dtype[Any] = np.dtype(self._dtype_of(layout.dtype))
            return found
        except TypeError as error:
            raise DamagedError(f"no tensor has the type {layout.dtype}") from error
