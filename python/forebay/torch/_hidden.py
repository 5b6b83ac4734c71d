"""State that a `state_dict` has beside parameters and buffers: of overridden methods, and of hooks."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from forebay.clone._adapter import Component, Watch
from forebay.clone._manifest import Placement
from forebay.clone._values import Path
from forebay.torch._modules import plain_kinds
from forebay.torch._tensors import is_dtensor

__all__ = ["of_module", "of_optimizer"]

# Methods that write a module's state down; and what has a module do more, beside them.
_METHODS = ("state_dict", "_save_to_state_dict")
_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks")
_OF_OPTIMIZERS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")


def of_module(module: nn.Module, path: Path, structure: Watch) -> Component:
    """Returns the component of what only a module's `state_dict` gives; it is empty for most modules."""

    def has_more() -> bool:
        kinds = plain_kinds(module)
        if kinds is None or any(getattr(kind, name) is not getattr(nn.Module, name) for kind in kinds for name in _METHODS):
            return True
        return any(vars(child).get(name) for child in module.modules() for name in (*_METHODS, *_HOOKS))

    def get() -> dict[str, Any]:
        return _stripped(module.state_dict(), _tensors(module), _extra(module)) if has_more() else {}

    def put(states: Mapping[str, Any]) -> None:
        if not states:
            return
        # These are there already, to the last bit, and what is loaded may be made of them.
        exact = [(tensor, tensor.detach().clone()) for tensor in _tensors(module)]
        module.load_state_dict(_merged(module.state_dict(), states))
        with torch.no_grad():
            for tensor, before in exact:
                tensor.copy_(before)

    return Component((*path, "state_dict"), Placement.PER_RANK, get, put, watches=(structure,), reads_more=has_more, draws=True)


def of_optimizer(optimizer: Optimizer, path: Path) -> Component:
    """Returns the component of what hooks add to an optimizer's `state_dict`.

    Only hooks that are there by now may draw from generators: reading those takes a fork longer than all else here.
    """

    def has_hooks() -> bool:
        return any(vars(optimizer).get(name) for name in _OF_OPTIMIZERS)

    def get() -> dict[str, Any]:
        if not has_hooks():
            return {}
        return {key: value for key, value in optimizer.state_dict().items() if key not in ("state", "param_groups")}

    def put(states: Mapping[str, Any]) -> None:
        if states:
            optimizer.load_state_dict({**optimizer.state_dict(), **states})

    return Component((*path, "state_dict"), Placement.PER_RANK, get, put, draws=has_hooks())


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _extra(module: nn.Module) -> set[str]:
    """Returns the names under which a `state_dict` has what another component carries."""
    children = ((name, child) for name, child in module.named_modules() if type(child).get_extra_state is not nn.Module.get_extra_state)
    return {f"{name}._extra_state" if name else "_extra_state" for name, _ in children}


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    local = tensor._local_tensor if is_dtensor(tensor) else tensor
    return local.data_ptr(), local.dtype, local.shape


def _stripped(state: Mapping[str, Any], tensors: Iterable[torch.Tensor], left: set[str]) -> dict[str, Any]:
    """Returns a state without the tensors and the entries that other components carry."""
    own = {_place(tensor) for tensor in tensors}

    def strip(values: Mapping[Any, Any]) -> dict[Any, Any]:
        found = {}
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and _place(value) in own:
                continue
            found[key] = strip(value) if isinstance(value, dict) and _has(value, own) else value
        return found

    return {key: value for key, value in strip(state).items() if key not in left}


def _has(values: Mapping[Any, Any], own: set[tuple[object, ...]]) -> bool:
    """Returns whether some tensor in nested values is one of `own`."""
    for value in values.values():
        if _place(value) in own if isinstance(value, torch.Tensor) else isinstance(value, dict) and _has(value, own):
            return True
    return False


def _merged(state: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state with the parent's values in place of a new module's, and the module's own tensors."""
    own = {
        key: _merged(value, states[key]) if isinstance(value, dict) and isinstance(states.get(key), dict) else value
        for key, value in state.items()
    }
    return {**own, **{key: value for key, value in states.items() if not (isinstance(value, dict) and isinstance(state.get(key), dict))}}
