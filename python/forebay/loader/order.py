"""The order in which a rank uses the samples of an epoch."""

from dataclasses import dataclass

from forebay import _core

__all__ = ["Order"]


@dataclass(frozen=True)
class Order:
    """An epoch of one rank, from a place in it on.

    It is equal in all ranks of a job but for `rank`, so each rank knows the others' order.

    Attributes:
        world: number of ranks.
        rank: number of this rank, from 0.
        batch_size: samples of a batch.
        number: the epoch's.
        is_drawn: whether the permutation's seed is drawn for this epoch alone. Otherwise all epochs share a seed and
            differ by number.
        used: samples of the permutation that were used before the place.
        epoch: the native epoch, which gives any rank's samples in any iteration. Iterations count from 0 at the place.
    """

    world: int
    rank: int
    batch_size: int
    number: int
    is_drawn: bool
    used: int
    epoch: _core.RestOfEpoch

    def __len__(self) -> int:
        return self.epoch.iterations

    def batch(self, iteration: int) -> list[int]:
        """Returns this rank's samples in an iteration, in the order of the batch; empty past the end."""
        return self.epoch.batch(self.rank, iteration)
