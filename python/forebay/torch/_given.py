"""Refusals of states of which a part would be left out."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from forebay.clone._errors import MissingError, UndescribableError
from forebay.clone._values import Path, spelled

__all__ = ["check_given", "check_kind", "check_optimizer", "path_of", "type_of"]


def path_of(kind: str, name: str) -> Path:
    """Returns the path of an object of a kind; the only one may be unnamed."""
    return (kind, name) if name else (kind,)


def type_of(value: object) -> str:
    """Returns a value's type in words."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def check_given(given: Mapping[str, Mapping[str, object]]) -> None:
    """See `Adapter.check`. A scheduler leaves its mark on the optimizer's `step`."""
    held = {id(tensor) for named in given.values() for value in named.values() for tensor in _held(value)}
    for name, optimizer in given["optimizer"].items():
        groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else []
        for number, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in held:
                    where = f"{spelled(path_of('optimizer', name))} trains parameter {number}.{place}, of sizes {list(parameter.shape)}"
                    raise MissingError(f'{where}, which no given module has: pass its module, too, as model={{"net": net, "head": head}}')
    if given["scheduler"]:
        return
    for name, optimizer in given["optimizer"].items():
        if hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched"):
            raise MissingError(f"scheduler=None, but a scheduler drives {spelled(path_of('optimizer', name))}: pass it")


def _held(value: object) -> Iterator[torch.Tensor]:
    """Yields the tensors of modules and containers, as optimizers refer to them."""
    if isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _held(item)


def check_kind(kind: str, path: Path, value: object) -> None:
    """Refuses an object of another kind, which would be taken for one because it has `state_dict`."""
    if kind == "model" and not isinstance(value, nn.Module):
        raise UndescribableError(f"{spelled(path)}: a {type_of(value)} is not a module of torch")
    if kind == "optimizer" and not isinstance(value, Optimizer):
        raise UndescribableError(f"{spelled(path)}: a {type_of(value)} is not an optimizer of torch")
    if kind in ("scheduler", "scaler", "loader") and isinstance(value, nn.Module | Optimizer):
        raise UndescribableError(f"{spelled(path)}: a {type_of(value)} is not a {kind}: give it as what it is")
    # Its steps are to be met before they change anything, and what is set of an optimizer is set of all.
    if kind != "optimizer" and isinstance(value, Optimizer):
        named = 'of several each by name, as optimizer={"net": one, "head": other}'
        raise UndescribableError(f"{spelled(path)}: a {type_of(value)} is an optimizer: pass it as one; {named}")


def check_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Refuses an optimizer with more state than its groups and their parameters' state."""
    if type(optimizer).state_dict is not Optimizer.state_dict or "state_dict" in vars(optimizer):
        raise UndescribableError(f"{spelled(path)}: {type_of(optimizer)} has a state_dict of its own, of which nothing is known")
    # Such as the usual SAM: the state is the inner one's, and so are the steps.
    if inner := next((name for name, value in vars(optimizer).items() if isinstance(value, Optimizer)), None):
        raise UndescribableError(f"{spelled(path)}: {type_of(optimizer)} has another optimizer do its steps: pass that one, its `{inner}`")
