"""Events of a session's forks in a run's record: steps, stall and clone, with times that follow each other."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import forebay.clone as clone
from forebay._run_events import RUN
from forebay.clone._events import ForkEvents, tell
from tests.clone.forks import CloneNode, Opened, train
from tests.clone.jobs import full


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `forebay run` would have made."""
    file = tmp_path / "forks.1"
    file.touch(mode=0o600)
    monkeypatch.setenv(RUN, str(tmp_path / "run.1"))
    return file


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_fork_is_told_with_the_steps_around_it(told: Path) -> None:
    telling = ForkEvents("trunk", 1, 2)
    telling.passed(0, None)
    telling.passed(3, clone.Fork(7, 4096, 0.0, copied=1024))
    telling.closed(0.0, 512)
    assert lines(told) == [], "not before the next step is known"
    telling.passed(3, None)
    (line,) = lines(told)
    at, before_s, window_s, after_s = (line.pop(name) for name in ("at", "before_s", "window_s", "after_s"))
    assert line == {
        "what": "taken",
        "job": "trunk",
        "rank": 1,
        "ranks": 2,
        "epoch": 3,
        "step": 7,
        "bytes": 4096,
        "copied": 1024,
        "aside": 512,
        "stall_s": 0.0,
        "closing_s": 0.0,
    }
    assert before_s > 0
    assert 0 < window_s < after_s
    assert at <= time.time()


def test_what_is_not_known_is_null(told: Path) -> None:
    telling = ForkEvents("trunk", 0, 1)
    telling.passed(0, clone.Fork(1, 4096, 0.5))
    telling.close()
    telling.close()
    (line,) = lines(told)
    assert (line["before_s"], line["window_s"], line["after_s"], line["stall_s"]) == (None, None, None, 0.5)


def test_without_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN, str(tmp_path / "run.7"))
    tell("taken", {"step": 1})
    monkeypatch.delenv(RUN)
    tell("taken", {"step": 1})
    telling = ForkEvents("trunk", 0, 1)
    telling.passed(0, clone.Fork(1, 4096, 0.5))
    telling.close()
    assert list(tmp_path.iterdir()) == [], "a run that has ended has taken its file away"


def test_a_job_and_its_clone_tell_of_one_fork(told: Path, here: CloneNode, opened: Opened) -> None:
    made = full(1)
    session = opened(made)
    step = train(made, session, 2)
    with here.cloning("trunk", "--at", "5", "--set", "lr=0.5") as asked:
        train(made, session, 5, step)
        resumed = opened(full(2), asked=asked)
    resumed.close()
    session.close()
    taken, became = lines(told)
    assert (taken["what"], taken["job"], taken["step"], taken["bytes"]) == ("taken", "trunk", 5, session.forks[0].length)
    assert (became["what"], became["job"], became["parent"], became["step"]) == ("became", "trunk.1", "trunk", 5)
    assert resumed.lineage
    assert (became["digest"], became["changes"]) == (resumed.lineage.digest, {"lr": 0.5})
    assert became["bytes"] == taken["bytes"]
    # The state was there before its clone asked for it.
    assert taken["at"] <= became["asked_at"] <= became["state_at"] <= became["loaded_at"] <= became["exists_at"]
