"""The place of a process among those of its job on its node, which share an agent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from forebay._launcher import job_environment, local_rank_and_ranks

__all__ = ["RankPlace", "place_of"]

JOBS = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_JOBID",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    # Ray Train, and ranks that a script starts.
    ("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that differ between any two jobs of a user."""


@dataclass(frozen=True)
class RankPlace:
    """A process's place among those of its job that are on its node.

    Attributes:
        job: name of the job: the same in all of its ranks, and no other job's on this node, unless the rank is alone.
        rank: number in the whole job.
        world: ranks of the whole job.
        local_rank: number among the job's ranks on this node, from 0.
        local_ranks: the job's ranks on this node.
    """

    job: str
    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @property
    def name(self) -> str:
        """The name of the job, and no other's on this node.

        A rank that is alone may have been forked since its place was found.
        """
        return f"{self.job}-{os.getpid()}" if self.world == 1 else self.job


def place_of(rank: int, world: int, environment: Mapping[str, str] | None = None) -> RankPlace | None:
    """Returns this process's place on its node, as the launcher says.

    None if it does not say, so that no agent can be shared.
    """
    if world == 1:
        return RankPlace("process", rank, world, 0, 1)
    environment = job_environment() if environment is None else environment
    local = local_rank_and_ranks(environment)
    job = next((names for names in JOBS if names[0] in environment), None)
    if local is None or job is None:
        return None
    local_rank, local_ranks = local
    if local_ranks > world:
        return None
    return RankPlace("-".join(environment.get(name, "") for name in job), rank, world, local_rank, local_ranks)
