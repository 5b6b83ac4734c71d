"""The ranks of a job: its framework's, or MPI's if the program says so."""

import secrets
import sys
from typing import Any, Protocol

from forebay._launcher import local_rank_and_ranks
from forebay.clone._errors import CloneError

__all__ = ["Ranks", "ranks_here", "ranks_of"]

MPI = "mpi"


class Ranks(Protocol):
    """Source of this process's rank and the number of ranks."""

    def rank(self) -> tuple[int, int]:
        """Returns this process's rank, and the number of ranks."""

    def shared_number(self) -> int:
        """Returns a random number below 2^31, the same in all ranks; every rank has to call this."""


class _World:
    """`MPI.COMM_WORLD`, as mpi4py has it."""

    def __init__(self, mpi: Any) -> None:  # noqa: ANN401  (a module without types)
        self._world = mpi.COMM_WORLD
        # Asked once: other threads want to know it, too, and MPI may have been started for one alone.
        self._rank: tuple[int, int] = (self._world.Get_rank(), self._world.Get_size())

    def rank(self) -> tuple[int, int]:
        return self._rank

    def shared_number(self) -> int:
        return int(self._world.bcast(secrets.randbelow(2**31), root=0))


def ranks_here(ranks: int) -> int:
    """Returns how many of a job's `ranks` are on this host, as the launcher says; all if it does not."""
    local = local_rank_and_ranks()
    return min(local[1], ranks) if local else ranks


def ranks_of(asked: str | None, framework: Ranks) -> Ranks:
    """Returns the source of ranks.

    MPI is not detected automatically: mpi4py may have been imported for something else, and mpiexec also starts
    independent trainings. Those would become ranks of one job; and if one of them did not ask for the shared number,
    all others would wait for it for ever.

    Args:
        asked: the program's argument: `mpi`, or None for the framework's ranks.
        framework: the framework.

    Raises:
        ValueError: it is something else.
        CloneError: the program does not use MPI.
    """
    if asked is None:
        return framework
    if asked != MPI:
        raise ValueError(f"ranks={asked!r}: write {MPI!r}, or leave it out: then they are those of torch.distributed")
    # To import it here would start MPI.
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        raise CloneError(f"ranks={MPI!r}: this program does not use MPI: import mpi4py.MPI before, or leave ranks out")
    return _World(mpi)
