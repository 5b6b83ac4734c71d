"""Which ranks a job has: its framework's, or MPI's if the program says so."""

import secrets
import sys
from typing import Any, Protocol

from forebay.clone._errors import CloneError

__all__ = ["Ranks", "ranks_of"]

MPI = "mpi"


class Ranks(Protocol):
    """Who knows which of them this process is."""

    def rank(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""

    def shared_number(self) -> int:
        """A random number below 2^31, the same in all ranks; every rank has to ask."""


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


def ranks_of(asked: str | None, framework: Ranks) -> Ranks:
    """Who knows them.

    That MPI is there does not tell: mpi4py may have been imported for something else, and mpiexec also starts processes that train each for
    itself. Those would be ranks of one job then; and where one of them does not ask for the number, all others wait for it for ever.

    Args:
        asked: what the program has said: `mpi`, or None: the framework knows them.
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
