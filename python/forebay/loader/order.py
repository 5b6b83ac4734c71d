"""What a rank uses in an epoch, and when."""

from dataclasses import dataclass

from forebay import _core

__all__ = ["Order"]


@dataclass(frozen=True)
class Order:
    """An epoch of one rank, from a place in it on. All ranks of a job have the same but for `rank`, so each knows what the others use when.

    Attributes:
        world: ranks.
        rank: this one, from 0.
        batch_size: samples of a batch.
        number: the epoch's.
        is_drawn: the permutation's seed is this epoch's alone. Else later epochs have the same, and their own numbers.
        used: samples of the permutation that were used before the place.
        epoch: the epoch itself, as the native part has it: any rank's samples in any iteration. Iterations count from 0 at the place.
    """

    world: int
    rank: int
    batch_size: int
    number: int
    is_drawn: bool
    used: int
    epoch: _core.Epoch

    def __len__(self) -> int:
        return self.epoch.iterations

    def batch(self, iteration: int) -> list[int]:
        """This rank's samples in an iteration, in the order of the batch; empty past the end."""
        return self.epoch.batch(self.rank, iteration)
