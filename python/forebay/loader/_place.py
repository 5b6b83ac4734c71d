"""Which of this job's processes on this node a process is: those share an agent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.loader._launcher import local_rank_and_ranks

__all__ = ["RankPlace", "place_of"]

JOBS = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_JOBID",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""What no two jobs of a user have alike."""


@dataclass(frozen=True)
class RankPlace:
    """A process's place among those of its job that are on its node.

    Attributes:
        job: the same in all ranks of the job, and no other job's on this node, but where the rank is alone.
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

    @property
    def name(self) -> str:
        """Of the job, and no other's on this node. A rank that is alone may have been forked since its place was found."""
        return f"{self.job}-{os.getpid()}" if self.world == 1 else self.job


def place_of(rank: int, world: int, environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Where this process is on its node, as the launcher says; None where it does not: then there is nobody to share an agent with."""
    if world == 1:
        return RankPlace("process", rank, world, 0, 1)
    local = local_rank_and_ranks(environment)
    job = next((names for names in JOBS if names[0] in environment), None)
    if local is None or job is None:
        return None
    local_rank, local_ranks = local
    if local_ranks > world:
        return None
    return RankPlace("-".join(environment.get(name, "") for name in job), rank, world, local_rank, local_ranks)
