"""Random-number generators: those of the process, and those that a program made for itself."""

import importlib
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from forebay.clone._adapter import Component
from forebay.clone._errors import UndescribableError
from forebay.clone._manifest import Placement
from forebay.clone._values import Path, spelled
from forebay.torch._flags import DEVICES
from forebay.torch._given import type_of

__all__ = ["access", "generator", "process_generators", "set_process_generators"]

Access = tuple[Callable[[], Any], Callable[[Any], object]]
"""Reads a generator's state, and sets it."""


def process_generators() -> dict[str, object]:
    """Returns the states of the global generators of torch (processor and devices in use), NumPy and Python."""
    numpy = sys.modules.get("numpy")
    devices = {name: getattr(torch, name).get_rng_state_all() for name in DEVICES if getattr(torch, name).is_initialized()}
    return {
        "torch": {"cpu": torch.get_rng_state()} | devices,
        "numpy": numpy.random.get_state(legacy=False) if numpy else None,
        "python": random.getstate(),
    }


def set_process_generators(states: dict[str, Any]) -> None:
    """Sets the process's generators to states that `process_generators` returned."""
    devices = dict(states["torch"])
    torch.set_rng_state(devices.pop("cpu"))
    for name, state in devices.items():
        getattr(torch, name).set_rng_state_all(state)
    if states["numpy"] is not None:
        importlib.import_module("numpy").random.set_state(states["numpy"])
    random.setstate(states["python"])


def access(generator: Any) -> Access | None:  # noqa: ANN401  (any object)
    """Returns the functions that read and set a generator's state; None unless it is one of torch, NumPy or Python."""
    numpy = sys.modules.get("numpy")
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if numpy and isinstance(generator, numpy.random.RandomState):
        return lambda: generator.get_state(legacy=False), generator.set_state
    if numpy and isinstance(generator, numpy.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def generator(value: object, path: Path) -> Component:
    """Returns the component of a generator that the program named; raises `UndescribableError` for any other object."""
    found = access(value)
    if found is None:
        raise UndescribableError(f"{spelled(path)}: a {type_of(value)} is not a generator of torch, NumPy or Python")
    get, put = found
    return Component(path, Placement.PER_RANK, lambda: {"state": get()}, lambda states: put(states["state"]))
