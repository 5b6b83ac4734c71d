"""Components of a Keras job's state that do not depend on how it trains."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from forebay.clone._adapter import Component
from forebay.clone._manifest import Placement
from forebay.keras._seeds import tensorflow_generator

__all__ = [
    "component",
    "dtype_policy",
    "fixed_components",
    "process_generators",
    "set_process_generators",
]


def component(
    path: tuple[str, ...], get: Callable[[], object], put: Callable[[Any], object] | None = None, *, is_fixed: bool = False
) -> Component:
    """Returns a component of this process; see `Component`."""
    return Component(path, Placement.PER_RANK, get, put, is_fixed=is_fixed)


def fixed_components(kind: str, values: Mapping[str, object]) -> list[Component]:
    """Returns components in which source and clone must be equal, each with a path of its own for the message."""
    return [component((kind, name), lambda value=value: value) for name, value in values.items()]  # type: ignore[misc]


def process_generators() -> dict[str, Any]:
    """Returns the states of the generators of the process, by name."""
    own = tensorflow_generator()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "tensorflow": None if own is None else own.getstate(),
        # A loader draws its orders from it.
        "torch": sys.modules["torch"].get_rng_state().numpy() if "torch" in sys.modules else None,
    }


def set_process_generators(states: Mapping[str, Any]) -> None:
    """Sets the generators of the process to states that `process_generators` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if "torch" in sys.modules and states["torch"] is not None:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(states["torch"].copy()))
    own = tensorflow_generator()
    if own is not None and states["tensorflow"] is not None:
        own.setstate(states["tensorflow"])


def dtype_policy() -> str:
    """Returns the name of Keras' type of numbers, which it keeps for each thread."""
    return str(keras.config.dtype_policy().name)
