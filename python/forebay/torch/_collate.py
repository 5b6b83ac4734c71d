"""Torch's `default_collate` for samples that are views of memory which is only to be read."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

try:
    import numpy
    from torch.utils.data._utils.collate import collate_numpy_array_fn
except ImportError:
    numpy = None  # type: ignore[assignment]

__all__ = ["collated", "single"]

NUMBERS = "biufc"
"""Kinds of NumPy's types that torch may have, too."""

_Map = dict[type | tuple[type, ...], Callable[..., Any]]


def collated(samples: list[Any]) -> Any:  # noqa: ANN401  (a batch)
    """Returns the batch that `default_collate` would, bit by bit, without its warning for read-only arrays."""
    # A user's own function for arrays is called.
    if numpy is None or default_collate_fn_map.get(numpy.ndarray) is not collate_numpy_array_fn:
        return default_collate(samples)
    return collate(samples, collate_fn_map=default_collate_fn_map | {numpy.ndarray: _arrays})


def _arrays(batch: Sequence[Any], *, collate_fn_map: _Map) -> Any:  # noqa: ANN401  (a batch)
    """Collates arrays, in place of torch's own function."""
    if not all(isinstance(one, numpy.ndarray) for one in batch) or all(one.flags.writeable for one in batch):
        return collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
    if collate_fn_map.get(torch.Tensor) is collate_tensor_fn and _are_alike(batch):
        # Copied once, as torch does it; out of a worker process, once more.
        return torch.from_numpy(numpy.stack(batch))
    copies = [one if one.flags.writeable else one.copy("K") for one in batch]
    return collate_numpy_array_fn(copies, collate_fn_map=collate_fn_map)


def _are_alike(batch: Sequence[Any]) -> bool:
    """Returns true if NumPy stacks these arrays as torch does, with the same layout in memory."""
    first = batch[0]
    if first.dtype.kind not in NUMBERS or not first.dtype.isnative or first.size == 0:
        return False
    return all(one.dtype == first.dtype and one.shape == first.shape and one.flags.c_contiguous for one in batch)


def single(convert: Callable[[Any], Any], samples: list[Any]) -> Any:  # noqa: ANN401  (whatever a sample is)
    """Returns the only sample, converted."""
    if len(samples) != 1:
        raise TypeError(
            "batch_size=None asks the dataset for each list of indices in one call, and a dataset with locate and decode gives single "
            "samples: pass that sampler as batch_sampler= instead"
        )
    return convert(samples[0])
