"""Sessions for tests: a fork agent a module, and jobs of one rank in the test's own process."""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forebay.clone as clone
from forebay.clone import _session
from tests import support
from tests.clone.forks import CloneNode, Opened, node
from tests.clone.jobs import StateJob


@pytest.fixture(scope="module")
def here() -> Iterator[CloneNode]:
    with node() as made:
        yield made


@pytest.fixture
def opened(here: CloneNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Makes sessions that end with the test; one is a clone's if it is given what `forebay clone` has asked for."""
    for name, value in here.own.items():
        monkeypatch.setenv(name, value)
    for name in ("FOREBAY", "FOREBAY_CLONE", "FOREBAY_JOB", "WORLD_SIZE", *itertools.chain(*_session.SCHEDULERS)):
        monkeypatch.delenv(name, raising=False)
    sessions: list[clone.Session] = []

    def make(made: StateJob, job: str | None = "trunk", asked: str | None = None, **options: Any) -> clone.Session:
        if asked:
            monkeypatch.setenv("FOREBAY_CLONE", asked)
        sessions.append(clone.session(**made.for_session(), job=job, **options))
        assert "FOREBAY_CLONE" not in os.environ
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
    # What a module has for all of its tests is in the same state before each.
    support.wait_until(lambda: not here.jobs(), "the end of the jobs")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made
