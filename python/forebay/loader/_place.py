"""Which of this job's processes on this node a process is: those share an agent."""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Place", "place_of"]

LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""torchrun, Open MPI, MPICH and its kin. Slurm's are counted below."""
JOBS = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_JOBID",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""What no two jobs of a user have alike."""


@dataclass(frozen=True)
class Place:
    """A process's place among those of its job that are on its node.

    Attributes:
        job: the same in all ranks of the job, and no other job's on this node.
        rank: in the whole job.
        world: ranks of the whole job.
        local_rank: among those of this node, from 0.
        local_ranks: how many these are.
    """

    job: str
    rank: int
    world: int
    local_rank: int
    local_ranks: int


def place_of(rank: int, world: int, environment: Mapping[str, str] = os.environ) -> Place | None:
    """Where this process is on its node, as the launcher says; None where it does not: then there is nobody to share an agent with."""
    if world == 1:
        return Place(f"process-{os.getpid()}", rank, world, 0, 1)
    local = next(_locals(environment), None)
    job = next((names for names in JOBS if names[0] in environment), None)
    if local is None or job is None:
        return None
    local_rank, local_ranks = local
    if local_rank >= local_ranks or local_ranks > world:
        return None
    return Place("-".join(environment.get(name, "") for name in job), rank, world, local_rank, local_ranks)


def _locals(environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    for names in LOCAL:
        said = [environment.get(name, "") for name in names]
        if all(number.isdecimal() for number in said):
            yield int(said[0]), int(said[1])
    node, here, tasks = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"))
    if node.isdecimal() and here.isdecimal() and (count := _of_node(tasks, int(node))):
        yield int(here), count


def _of_node(tasks: str, node: int) -> int | None:
    """Slurm's `4(x2),3`: four tasks on each of two nodes, then three on one."""
    try:
        runs = [run.removesuffix(")").partition("(x") for run in tasks.split(",")]
        counts = itertools.chain.from_iterable(itertools.repeat(int(count), int(times or 1)) for count, _, times in runs)
        return next(itertools.islice(counts, node, None), None)
    except ValueError:
        return None
