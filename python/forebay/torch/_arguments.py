"""Checks of the data loader's arguments. Each message names the mend."""

import operator
from typing import Any

import torch

from forebay._launcher import rank_and_world
from forebay._say import say
from forebay.loader._given import check_function, check_whole, is_whole, seed_of
from forebay.torch._group import of_group

__all__ = [
    "blocks_of",
    "check_flags",
    "check_numbers",
    "check_objects",
    "check_order",
    "check_threads",
    "ranks_of",
    "tell_amplification",
]

BLOCKS_AT_ONCE = 16


def blocks_of(dataset: object, shuffle: bool | str | None, at_once: int | None) -> tuple[list[int], int] | None:
    """Returns the ends of the blocks of a block shuffle, and the number that are mixed at a time.

    None for another order.
    """
    if shuffle != "blocks":
        if shuffle not in (None, False, True):
            raise ValueError(f'shuffle={shuffle!r}: give True, False or "blocks"')
        if at_once is not None:
            raise ValueError('blocks_at_once= is of a block shuffle: give shuffle="blocks", too')
        return None
    if not callable(blocks := getattr(dataset, "blocks", None)):
        raise ValueError(
            f'shuffle="blocks": {type(dataset).__name__} has no blocks(), which says where runs of samples end that lie together'
        )
    at_once = BLOCKS_AT_ONCE if at_once is None else check_whole("blocks_at_once", at_once, 1)
    return [operator.index(end) for end in blocks()], at_once


def tell_amplification(dataset: Any, *, is_read_all_over: bool) -> None:  # noqa: ANN401  (by what it has)
    """Says the cost of a global shuffle if samples share extents."""
    extents = getattr(dataset, "extents", None)
    if is_read_all_over and extents and (each := len(dataset) // extents) > 1:
        say(
            f"{each:,} samples share an extent: a global shuffle may read each extent as many times; "
            'shuffle="blocks" reads it once, in another order'
        )


def check_numbers(num_workers: int | None, timeout: float, prefetch_factor: int | None, seed: int | None, on_error: str) -> None:
    """Refuses invalid numbers (`ValueError`)."""
    for name, value, least in (("num_workers", num_workers, 0), ("prefetch_factor", prefetch_factor, 1)):
        if value is not None:
            check_whole(name, value, least)
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: give seconds, or 0 for none")
    if seed is not None:
        seed_of(seed)
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error={on_error!r}: give "raise" or "skip"')


def check_flags(**flags: object) -> None:
    """Refuses flags other than True and False (`ValueError`): any text that is not empty would count as true."""
    for name, value in flags.items():
        if value not in (False, True):
            raise ValueError(f"{name}={value!r}: give True or False")


def check_objects(sampler: object, batch_sampler: object, collate_fn: object, worker_init_fn: object, generator: object) -> None:
    """Refuses objects of the wrong kind (`ValueError`), which would fail with the first batch only.

    None stands for an argument left out.
    """
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        # Python goes through what has either.
        if value is not None and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
            raise ValueError(f"{name}={value!r}: give what can be iterated over, such as a sampler of torch.utils.data")
    for name, value in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if value is not None:
            check_function(name, value)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"generator={generator!r}: give a torch.Generator")


def check_order(in_order: bool, pin_memory_device: str) -> None:
    """Refuses two options of torch's loader that this one does not support (`ValueError`)."""
    if in_order is not True:
        raise ValueError(f"in_order={in_order!r}: batches come in their order, whichever is ready first: leave it out")
    if pin_memory_device != "":
        raise ValueError(f"pin_memory_device={pin_memory_device!r}: memory is pinned for the current GPU: leave it out, and set the device")


def check_threads(worker_init_fn: object, multiprocessing_context: object) -> None:
    """Refuses options for worker processes if samples are decoded in threads (`ValueError`)."""
    for name, value in (("worker_init_fn", worker_init_fn), ("multiprocessing_context", multiprocessing_context)):
        if value is not None:
            raise ValueError(f"{name} is for worker processes, and this dataset is decoded in threads: leave it out")


def ranks_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns this rank's number and the number of ranks: as given, else as torch.distributed or the launcher says."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank= and world_size= go together: give both, or neither")
    if rank is not None and world_size is not None:
        if not (is_whole(rank) and is_whole(world_size) and 0 <= operator.index(rank) < operator.index(world_size)):
            raise ValueError(f"rank={rank!r}, world_size={world_size!r}: ranks are numbered from 0 to world_size - 1; give whole numbers")
        return operator.index(rank), operator.index(world_size)
    return of_group() or rank_and_world()
