"""The objects from which the state of modules is read: while none was exchanged, the state need not be read."""

from torch import nn

from forebay.clone._adapter import Watch

__all__ = ["plain_kinds", "watch"]

# Ways through a module that a class may have changed, and attributes of an object that was given its own.
_WALKS = ("named_parameters", "named_buffers", "named_modules", "_named_members")
_PARTS = ("_modules", "_parameters", *_WALKS)


def watch(module: nn.Module) -> Watch:
    """Returns a watch over a module's names, parameters, buffers, and children that evaluate."""
    of_objects = (*_PARTS, "_buffers", "training")
    return Watch(lambda: module, ("requires_grad",), of_objects, lambda: plain_kinds(module) is not None)


def plain_kinds(module: nn.Module) -> set[type[nn.Module]] | None:
    """Returns the classes of a module and of all in it; None if one of them names its parts in a way of its own.

    Not by `modules`, which takes several times as long.
    """
    found, left = {module}, [module]
    while left:
        inner = {child for child in left.pop()._modules.values() if child is not None} - found
        found |= inner
        left.extend(inner)
    kinds = {type(child) for child in found}
    return kinds if all(getattr(kind, walk) is getattr(nn.Module, walk) for kind in kinds for walk in _WALKS) else None
