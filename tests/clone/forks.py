"""Jobs and clones that a test plays itself, on a node of its own."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forebay.clone as clone
from forebay import _core
from forebay.clone._resume import CloneRequest
from tests import support
from tests.clone.clone_node import CloneNode, node
from tests.clone.jobs import StateJob, full

__all__ = [
    "CloneNode",
    "Opened",
    "State",
    "drop",
    "node",
    "refusal",
    "taking",
    "told",
    "train",
    "train_until",
    "trained",
    "training",
    "wait_for_state",
]

Opened = Callable[..., clone.Session]
State = tuple[str, int, list[int], int]


@contextlib.contextmanager
def training(node: CloneNode, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A parent that can be forked by now, as job `trunk`; it is ended at the latest with the block."""
    environment = {**node.environment, "FOREBAY_JOB": "trunk"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=support.ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as parent:
        try:

            def trains() -> bool:
                assert parent.poll() is None, parent.communicate()
                # It imports for seconds, and to ask takes something from it.
                time.sleep(0.5)
                return any(job["job"] == "trunk" and job["ranks"] == job["ranks_here"] and job["step"] for job in node.jobs())

            support.wait_until(trains, "the job to train", support.PROGRAM_S)
            yield parent
        finally:
            parent.terminate()
            parent.communicate()


def told(lines: str) -> list[dict[str, Any]]:
    """Returns the output of each rank of `tests.clone.train`, in the order of ranks."""
    found = [json.loads(line) for line in lines.splitlines() if line.startswith('{"rank"')]
    return sorted(found, key=lambda one: int(one["rank"]))


def train(made: StateJob, session: clone.Session | None, steps: int, first: int = 1) -> int:
    """Gives the number of the next step."""
    for step in range(first, first + steps):
        made.step()
        if session:
            session.point(epoch=0, step=step)
    return first + steps


def trained(opened: Opened, steps: int = 1, **options: Any) -> tuple[StateJob, clone.Session]:
    """A job with a session that has made some steps."""
    made = full(1)
    session = opened(made, **options)
    train(made, session, steps)
    return made, session


def train_until(made: StateJob, session: clone.Session, done: Callable[[], bool], first: int = 1) -> int:
    deadline = time.monotonic() + support.LONG_S
    while not done():
        assert time.monotonic() < deadline
        first = train(made, session, 1, first)
    return first


def taking(asked: str) -> _core.Taking:
    told = CloneRequest.from_json(asked)
    return _core.Taking(told.directory, told.fork, 0, 1)


def wait_for_state(mine: _core.Taking) -> State:
    state = support.wait_until(lambda: mine.state(0.1), "a state")
    assert state
    return state


def refusal(asked: str, why: str) -> None:
    """Waits until who asks for this fork's state is told so. Before that, another has the place."""

    def is_told() -> bool:
        with pytest.raises(ConnectionError) as told:
            wait_for_state(taking(asked))
        return why in str(told.value)

    support.wait_until(is_told, why)


def drop(state: State) -> None:
    for descriptor in state[2]:
        os.close(descriptor)
