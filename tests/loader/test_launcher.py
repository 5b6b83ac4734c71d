"""Rank and world size, as launchers tell them."""

import os

import pytest

from forebay._launcher import processors, rank_and_world


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, (5, 6)),
        # torchrun under srun: one task a node, of which torchrun makes more.
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        # A batch script runs once, however many tasks were asked for.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"RANK": "3"}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_ranks_are_those_of_the_launcher(environment: dict[str, str], found: tuple[int, int]) -> None:
    assert rank_and_world(environment) == found


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"RANK": "x", "WORLD_SIZE": "8"}, "RANK=x WORLD_SIZE=8: these are no numbers"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK=8 WORLD_SIZE=8: there is no such rank"),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            "WORLD_SIZE=4 is there without RANK: make the loader once torch.distributed is initialised",
        ),
        ({"PMI_RANK": "-1", "PMI_SIZE": "8"}, "PMI_RANK=-1 PMI_SIZE=8: there is no such rank"),
    ],
)
def test_ranks_that_can_not_be_are_refused(environment: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        rank_and_world(environment)


def test_ranks_share_a_nodes_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert processors({}) == 8
    assert processors({"LOCAL_WORLD_SIZE": "4"}) == 2
    assert processors({"LOCAL_WORLD_SIZE": "16"}) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4})
    assert processors({"LOCAL_WORLD_SIZE": "4"}) == 2, "it was bound to them by its launcher"
