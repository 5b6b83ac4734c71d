"""Objects that are known by their `state_dict` alone, and dictionaries."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from forebay.clone._adapter import Component
from forebay.clone._errors import DifferenceError, UndescribableError
from forebay.clone._loaders import generators_of
from forebay.clone._manifest import Placement
from forebay.clone._values import Path, spelled
from forebay.torch._generators import access
from forebay.torch._given import type_of

__all__ = ["fixed_type", "is_drawing", "state_of"]

# Their `state_dict` methods draw no random numbers.
_KNOWN = ("torch.", "forebay.")


def fixed_type(value: object, path: Path) -> Component:
    """Returns the component that compares the class of an object here with that of its parent's."""
    return Component((*path, "type"), Placement.REPLICATED, lambda: type_of(value))


def is_drawing(function: object) -> bool:
    """Returns whether a method may draw random numbers: True unless it is one of torch's or of ours."""
    return not str(getattr(function, "__module__", "")).startswith(_KNOWN)


def state_of(value: Any, path: Path, placement: Placement, *, portable: bool) -> list[Component]:  # noqa: ANN401  (any object)
    """Returns the components of an object with `state_dict` and `load_state_dict`, or of a dictionary.

    Raises `UndescribableError` if the object has no such methods.
    """
    if type(value) is dict:

        def update(values: dict[object, object]) -> None:
            value.clear()
            value.update(values)

        return [Component(path, placement, lambda: value, update, portable=portable)]
    if not callable(getattr(value, "state_dict", None)) or not callable(getattr(value, "load_state_dict", None)):
        raise UndescribableError(
            f"{spelled(path)}: a {type_of(value)} has no state_dict and load_state_dict: give it both, or declare it absent "
            f"({path[0]}=None) and restore it from the counters"
        )
    get, put = _stateful_loader(value) if _is_stateful_loader(value) else (value.state_dict, value.load_state_dict)
    state = Component((*path, "state"), placement, get, put, portable=portable, draws=is_drawing(value.state_dict))
    return [fixed_type(value, path), state]


def _is_stateful_loader(value: object) -> bool:
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and isinstance(value, module.StatefulDataLoader)


def _stateful_loader(loader: Any) -> tuple[Callable[[], object], Callable[[Any], object]]:  # noqa: ANN401  (torchdata has no types)
    """Returns the functions that read and set the state of torchdata's `StatefulDataLoader`.

    Before an epoch its `state_dict` makes the next one's iterator, which draws from generators and starts workers. So
    the parent's is called only once an epoch has begun; a clone makes the iterator when the state is set, before its
    generators are. Its generators are carried beside: `load_state_dict` does not draw all that a beginning epoch draws.
    """

    def get() -> Mapping[str, object]:
        generators = {path: read() for path, (read, _) in generators_of(loader, access).items()}
        return {"generators": generators, "state": {} if loader._iterator is None else loader.state_dict()}

    def put(states: Mapping[str, Any]) -> None:
        found = generators_of(loader, access)
        if lacking := [path for path in states["generators"] if path not in found]:
            raise DifferenceError(
                f"{lacking[0]} is a generator where the state was captured, and none here: make the loader as the parent's"
            )
        loader.load_state_dict(states["state"])
        if states["state"]:
            loader.state_dict()
        for path, state in states["generators"].items():
            found[path][1](state)

    return get, put
