"""Trainers that wrap or replace torch's loader, on two ranks.

Each sample once, in one order, also when they go on from a checkpoint.
"""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from tests.loader import trainers
from tests.support import PROGRAM_S, ROOT, wait_until

NEEDED = ("accelerate", "pytorch_lightning", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")

RANKS = 2
Found = list[dict[str, dict[str, list[Any]]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Returns the samples of each rank, for all trainers in one process: importing them takes longer than training."""
    root = tmp_path_factory.mktemp("trainers")
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(RANKS):
            words = [sys.executable, "-m", "tests.loader.trainers", str(rank), str(RANKS), str(root), *trainers.TRAINERS]
            with (root / f"out-{rank}").open("w") as out, (root / f"err-{rank}").open("w") as err:
                ranks.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ, **quiet}, stdout=out, stderr=err))
        # Where one has failed the other would wait for it.
        wait_until(lambda: any(rank.poll() for rank in ranks) or all(rank.poll() == 0 for rank in ranks), "the trainers", PROGRAM_S)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, "\n".join((root / f"err-{rank}").read_text() for rank in range(RANKS))
    return [json.loads((root / f"out-{rank}").read_text().splitlines()[-1]) for rank in range(RANKS)]


def wanted(rank: int) -> list[list[Any]]:
    """Yields epoch and samples of each batch of a rank, as torch deals them."""
    sampler: DistributedSampler[Any] = DistributedSampler(trainers.TrainerSamples(), RANKS, rank, seed=trainers.SEED)
    batches = []
    for epoch in range(trainers.EPOCHS):
        sampler.set_epoch(epoch)
        batches += [[epoch, batch] for batch in BatchSampler(sampler, trainers.BATCH, drop_last=False)]
    return batches


@pytest.mark.parametrize("trainer", trainers.TRAINERS)
def test_each_sample_comes_once_in_torchs_order(trainer: str, found: Found) -> None:
    assert [rank[trainer]["whole"] for rank in found] == [wanted(rank) for rank in range(RANKS)]
    for epoch in range(trainers.EPOCHS):
        samples = [sample for rank in found for number, batch in rank[trainer]["whole"] if number == epoch for sample in batch]
        assert sorted(set(samples)) == list(range(trainers.SAMPLES))
        assert len(samples) == trainers.SAMPLES + 1, "one is repeated, since ranks have to have as many"


@pytest.mark.parametrize("trainer", trainers.TRAINERS)
def test_a_checkpoint_goes_on_with_the_next_batch(trainer: str, found: Found) -> None:
    for rank, trainings in enumerate(found):
        states = {state: 8 if state == "epoch" else int(state) for state in trainings[trainer] if state.isdecimal() or state == "epoch"}
        assert {str(step) for step in trainers.STEPS} <= states.keys()
        for state, steps in states.items():
            assert trainings[trainer][state] == wanted(rank)[steps:], state


def test_lightning_may_end_an_epoch_early(found: Found) -> None:
    for rank, trainings in enumerate(found):
        assert trainings["lightning"]["limited"] == [wanted(rank)[4 * epoch + batch] for epoch in range(3) for batch in range(2)]


def test_accelerate_may_skip_batches(found: Found) -> None:
    for rank, trainings in enumerate(found):
        assert trainings["accelerate"]["skipped"] == wanted(rank)[6:]


def test_accelerate_goes_on_on_another_number_of_ranks_in_other_batches(found: Found) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(trainers.TrainerSamples(), 1, 0, seed=trainers.SEED)
    rest = []
    for epoch, had in ((1, 2 * trainers.BATCH * RANKS), (2, 0)):
        sampler.set_epoch(epoch)
        rest += [[epoch, batch] for batch in BatchSampler(list(sampler)[had:], 5, drop_last=False)]
    assert [rank["accelerate"]["alone"] for rank in found] == [rest] * RANKS
