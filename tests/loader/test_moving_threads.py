"""Decoding threads move between the ranks of a node, and batches stay what they are under every schedule."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay.loader._settings import SCHEDULES
from tests.loader.node import LoaderNode
from tests.support import LONG_S, ROOT

RANKS, OWN, BATCH, STEPS, READS = 3, 2, 4, 60, 8
MOVING = {"forebay", "lobster", "lobster_as_written"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for number in range(RANKS * BATCH * STEPS):
        (root / f"{number:05}").write_bytes(number.to_bytes(4, "little") * 32)
    return root


def run(
    node: LoaderNode, files: Path, schedules: Sequence[str], decode_ms: float, slow: Sequence[int] = (0, 2, -1)
) -> list[dict[str, Any]]:
    """Returns an epoch of ranks in step with each schedule.

    `slow` names for each part of the epoch the rank that decodes eight times as long as the others: -1 for no rank,
    -2 for all.
    """
    agents = [
        json.dumps({"memory_bytes": 1 << 20, "schedule": schedule, "hedge_budget": 0.0, "reads_max": READS}) for schedule in schedules
    ]
    words = [sys.executable, str(ROOT / "bench/programs/thread_ranks.py"), *[str(files)] * RANKS, "--batch", str(BATCH)]
    words += ["--step-ms", "10", "--decode-ms", str(decode_ms), "--slower", "8", "--slow", *map(str, slow)]
    words += ["--threads", str(OWN), "--agents", *agents]
    done = subprocess.run(words, env=os.environ | node.environment, capture_output=True, text=True, timeout=4 * LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_slow_rank_gets_threads_of_the_others_and_gives_them_back(node: LoaderNode, files: Path) -> None:
    (said,) = run(node, files, ["forebay"], decode_ms=4)
    # A part is long enough for threads to follow: batches that are decoded ahead of its first step come before.
    part = STEPS // 3
    by_step = list(zip(*said["decoders"], strict=True))
    assert all(min(of_step) >= 1 for of_step in by_step), by_step
    # Ranks look one after the other, so a look may lie before and after a move.
    assert sum(sum(of_step) <= RANKS * OWN for of_step in by_step) > STEPS / 2, by_step
    first, second = (by_step[(nth + 1) * part - 3 : (nth + 1) * part] for nth in (0, 1))
    assert any(of_step[0] > max(of_step[1:]) for of_step in first), by_step
    assert any(of_step[2] > max(of_step[:2]) for of_step in second), by_step
    assert any(max(of_step) == OWN for of_step in by_step[2 * part + 3 :]), by_step


def test_threads_that_read_decode_once_the_samples_of_all_ranks_become_costlier(node: LoaderNode, files: Path) -> None:
    (said,) = run(node, files, ["lobster"], decode_ms=2, slow=(-1, -2))
    by_step = [sum(of_step) for of_step in zip(*said["decoders"], strict=True)]
    assert max(by_step[STEPS // 2 + 5 :]) > RANKS * OWN, by_step


def test_batches_are_the_same_under_each_schedule_whoever_has_the_threads(node: LoaderNode, files: Path) -> None:
    found = dict(zip(SCHEDULES, run(node, files, SCHEDULES, decode_ms=1), strict=True))
    assert len({said["digest"] for said in found.values()}) == 1
    assert {schedule for schedule, said in found.items() if sum(said["moved"]) > 0} == MOVING
