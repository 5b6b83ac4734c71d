"""Rank and number of ranks, and the processors of a rank, as the launcher says."""

import itertools
import os
from collections.abc import Iterator, Mapping

from forebay import _core

__all__ = ["job_environment", "local_rank_and_ranks", "processors", "rank_and_world"]

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # What srun sets. SLURM_NTASKS is there in a batch script, too, which runs once.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of rank and number of ranks: torchrun, Open MPI, MPICH and its kin, Slurm."""
LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Variables of rank and number of ranks on a node. Slurm's are counted by `_locals`."""


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns this process's rank and the number of ranks, as the launcher says; 0 of 1 without a launcher.

    Raises `ValueError` if the launcher's variables are invalid.
    """
    for of_rank, of_world in LAUNCHERS:
        if of_rank not in environment and environment.get(of_world, "1") != "1":
            # Lightning's own launcher does that. Each rank would read all of the dataset.
            raise ValueError(
                f"{of_world}={environment[of_world]} is there without {of_rank}: make the loader once torch.distributed is initialised, "
                "or give rank= and world_size="
            )
        if of_rank in environment and of_world in environment:
            said = f"{of_rank}={environment[of_rank]} {of_world}={environment[of_world]}"
            try:
                rank, world = int(environment[of_rank]), int(environment[of_world])
            except ValueError:
                raise ValueError(f"{said}: these are no numbers; unset them, or give rank= and world_size=") from None
            if not 0 <= rank < world:
                raise ValueError(f"{said}: there is no such rank; unset them, or give rank= and world_size=")
            return rank, world
    return 0, 1


def local_rank_and_ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Returns this process's rank among those of its job on its node, and their number.

    None if the launcher does not say.
    """
    return next(((rank, ranks) for rank, ranks in _locals(environment) if rank < ranks), None)


def job_environment() -> dict[str, str]:
    """Returns this process's variables, with `PMI_JOBID` for MPICH, whose launcher tells it to nobody."""
    environment = dict(os.environ)
    if "MPI_LOCALRANKID" in environment and "PMI_JOBID" not in environment and (job := _core.mpich_job()):
        environment["PMI_JOBID"] = job
    return environment


def processors(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of processors for this rank: those that it is bound to, or else its share of the node's."""
    bound = len(os.sched_getaffinity(0))
    if bound < (os.cpu_count() or 1):
        return bound
    for _, of_ranks in LOCAL:
        if environment.get(of_ranks, "").isdecimal():
            return max(1, bound // max(1, int(environment[of_ranks])))
    return bound


def _locals(environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    for names in LOCAL:
        said = [environment.get(name, "") for name in names]
        if all(number.isdecimal() for number in said):
            yield int(said[0]), int(said[1])
    node, here, tasks = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"))
    if node.isdecimal() and here.isdecimal() and (count := _of_node(tasks, int(node))):
        yield int(here), count


def _of_node(tasks: str, node: int) -> int | None:
    """Returns the tasks of a node from Slurm's list: `4(x2),3` is four on each of two nodes, then three on one."""
    try:
        runs = [run.removesuffix(")").partition("(x") for run in tasks.split(",")]
        counts = itertools.chain.from_iterable(itertools.repeat(int(count), int(times or 1)) for count, _, times in runs)
        return next(itertools.islice(counts, node, None), None)
    except ValueError:
        return None
