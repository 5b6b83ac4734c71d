"""Records of Keras jobs and their clones, made by a process of their own, and how they are compared."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from tests import support
from tests.clone.forks import node

STEPS_LEAST = 3
STEPS_OF_LOOPS = 5


def played(names: Iterable[str], backend: str = "tensorflow") -> dict[str, Any]:
    """Returns the records of jobs and clones, and lines of refusals, by name."""
    names = list(names)
    command = [sys.executable, "-m", "tests.keras.play", *names]
    with node() as here:
        environment = {**here.environment, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            command, env=environment, cwd=support.ROOT, capture_output=True, text=True, timeout=support.PROGRAM_S * len(names), check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(map(json.loads, done.stdout.splitlines()))


def is_equal(clone: dict[str, Any], parent: dict[str, Any]) -> bool:
    """Returns whether a clone has all of its steps and epochs in common with its parent."""
    return all(parent[what].get(key) == seen for what in ("steps", "epochs") for key, seen in clone[what].items())


def check(record: dict[str, Any]) -> None:
    """Refuses a record unless the fork has changed nothing of the parent, and the clone has its parent's steps."""
    clone, parent = record["clone"], record["parent"]
    assert parent == record["alone"], "a fork changed its parent"
    assert STEPS_LEAST <= len(clone["steps"]) < len(parent["steps"])
    assert is_equal(clone, parent)
    assert list(clone["epochs"])[-1] == list(parent["epochs"])[-1]


def check_loop(record: dict[str, Any], *, is_carried: bool = True) -> None:
    """Refuses a loop's record unless the clone has its parent's steps, or others if something was left out."""
    clone, parent = record["clone"], record["parent"]
    assert parent == record["alone"], "a fork changed its parent"
    assert record["forks"] == [7]
    assert len(clone) == STEPS_OF_LOOPS
    assert (clone == {step: parent[step] for step in clone}) == is_carried
