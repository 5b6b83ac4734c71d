"""The ranks of torch.distributed."""

from torch import distributed

__all__ = ["of_group"]


def of_group() -> tuple[int, int] | None:
    """Returns this process's rank and the number of ranks of torch.distributed; None if it was not initialised."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
