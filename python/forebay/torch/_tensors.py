"""Properties of torch's tensors: their part of the whole, and the layout of their elements."""

import functools
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["PLAIN", "RecordedTensors", "boxes", "is_dense", "is_dtensor", "is_plain", "is_sharded", "local_part"]

# All but those of subclasses, of which each has its own meaning.
PLAIN = frozenset((torch.Tensor, nn.Parameter))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor, without its history."""
    tensor = tensor.detach()
    return tensor.to_local() if is_dtensor(tensor) else tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's elements are plain bytes in the processor's memory."""
    known = type(tensor) in PLAIN and tensor.layout == torch.strided and tensor.device.type == "cpu"
    return known and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Returns whether a value is a distributed tensor.

    If there is one, its module has been imported; importing it here would take half a second.
    """
    if type(value) in PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_sharded(tensor: "DTensor") -> bool:
    """Returns whether each rank holds only a part."""
    return any(not placement.is_replicate() for placement in tensor.placements)


def boxes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[list[int]]]:
    """Returns this rank's parts of the sharded tensors among these, by name, as `Component.tells_boxes` has them.

    A tensor of which torch can't say so is left out: partial sums, a rank outside of the tensor's mesh, and versions of
    torch without the function.
    """
    utils = sys.modules.get("torch.distributed.tensor._utils")
    of_rank = getattr(utils, "compute_local_shape_and_global_offset", None)
    found = {}
    for name, tensor in tensors.items():
        if of_rank is None or not is_dtensor(tensor) or not is_sharded(tensor) or any(one.is_partial() for one in tensor.placements):
            continue
        shape, start = of_rank(tensor.shape, tensor.device_mesh, tensor.placements)
        # What lies there is what counts.
        if len(start) == tensor.dim() and tuple(shape) == tuple(local_part(tensor).shape):
            # A rank that holds nothing begins behind the end.
            begin = (min(at, size) for at, size in zip(start, tensor.shape, strict=True))
            found[name] = [list(tensor.shape), list(begin), list(shape)]
    return found


@functools.lru_cache(maxsize=4096)
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether the elements fill their memory without gaps and without sharing it."""
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class RecordedTensors:
    """Memory of tensors as it was located, as in `_core.Known`, but with Python calls for each tensor."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._alive = [weakref.ref(tensor) for tensor in tensors]
        self._facts = [_facts(tensor) for tensor in tensors]

    def again(self) -> list[torch.Tensor] | None:
        """See `_core.Known.again`."""
        tensors = [tensor for alive in self._alive if (tensor := alive()) is not None]
        return tensors if [_facts(tensor) for tensor in tensors] == self._facts else None


def _facts(tensor: torch.Tensor) -> object:
    return type(tensor), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
