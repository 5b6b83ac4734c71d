"""S4: rights that are taken away at the source, from outside, are honoured when the source is next asked.

A group that is left, at once.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import CORPUS, needs_root
from tests.support import NOBODY, Place, Worker, is_copy, read, settle, warm

pytestmark = needs_root

NAME = "d/shared"
CONTENT = CORPUS["a00"]
GROUP = 4242

# What the owner of a file, who is somebody else, does to take away the right to read it, and to give it back.
REVOKED: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "chmod": (lambda path: path.chmod(0o640), lambda path: path.chmod(0o644)),
    "chmod of its directory": (lambda path: path.parent.chmod(0o750), lambda path: path.parent.chmod(0o755)),
    "chmod of a directory above": (lambda path: path.parents[1].chmod(0o750), lambda path: path.parents[1].chmod(0o755)),
    "an access list": (lambda path: acl(path, "-m", f"u:{NOBODY}:---"), lambda path: acl(path, "-b")),
}
revoked = pytest.mark.parametrize("how", REVOKED)


def acl(path: Path, *words: str) -> None:
    subprocess.run(["setfacl", *words, path], check=True)


@pytest.fixture
def shared(place: Place) -> Path:
    """A file of root's, which the place's user may read."""
    place.give_to(NOBODY)
    path = place.source / NAME
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    for each, mode in ((place.source, 0o755), (path.parent, 0o755), (path, 0o644)):
        os.chown(each, 0, 0)
        each.chmod(mode)
    settle(place.source)
    return path


def refused(worker: Worker, path: Path) -> bool:
    try:
        assert read(worker, path) == CONTENT
    except PermissionError:
        return True
    return False


@revoked
def test_s04_on_open_honours_it_at_once(place: Place, shared: Path, how: str) -> None:
    revoke, allow = REVOKED[how]
    with place.worker(freshness="on_open") as worker:
        warm(place, worker, shared)
        revoke(shared)
        assert refused(worker, shared)
        allow(shared)
        assert not refused(worker, shared)


@revoked
def test_s04_ttl_honours_it_within_its_time(place: Place, shared: Path, how: str) -> None:
    revoke, _ = REVOKED[how]
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, shared)
        revoke(shared)
        done = time.monotonic()
        while time.monotonic() < done + 1:
            refused(worker, shared)
            time.sleep(0.05)
        assert refused(worker, shared)


@revoked
def test_s04_later_runs_honour_it(place: Place, shared: Path, how: str) -> None:
    """Whatever the time: copies of an earlier run serve once their directory was compared."""
    revoke, allow = REVOKED[how]
    with place.worker(freshness="ttl=60") as worker:
        warm(place, worker, shared)
    place.stop()
    revoke(shared)
    with place.worker(freshness="ttl=60") as worker:
        place.idle()
        for _ in range(5):
            assert refused(worker, shared)
        allow(shared)
        assert not refused(worker, shared)


def test_s04_immutable_honours_it_after_clean(place: Place, shared: Path) -> None:
    """The user has declared the source immutable."""
    with place.worker(freshness="immutable") as worker:
        warm(place, worker, shared)
        shared.chmod(0o600)
        assert not refused(worker, shared)
    place.stop()
    place.clean()
    with place.worker(freshness="immutable") as worker:
        assert refused(worker, shared)


def member(place: Place, freshness: str, *groups: int) -> list[str]:
    """The command line of a worker whose session has these groups."""
    words = place.words([place.python, "-E", place.worker_script], place.record_path(), freshness=freshness)
    assert "--clear-groups" in words
    return [f"--groups={','.join(map(str, groups))}" if groups and word == "--clear-groups" else word for word in words]


@pytest.mark.parametrize("freshness", ["immutable", "ttl=60", "on_open"])
def test_s04_a_group_that_was_left_is_honoured_at_once(place: Place, shared: Path, freshness: str) -> None:
    """Also by an agent that an earlier session has started, which has the group still."""
    os.chown(shared, 0, GROUP)
    shared.chmod(0o640)
    settle(shared)
    words, environment = member(place, freshness, 77, GROUP), place.environment()
    with Worker.started(words, environment=environment, cwd=place.root) as in_it:
        warm(place, in_it, shared)
        with Worker.started(member(place, freshness), environment=environment, cwd=place.root) as outside:
            assert refused(outside, shared)
            assert outside.do("os.access(path, os.R_OK)", path=str(shared)) is False
            assert in_it.do("os.access(path, os.R_OK)", path=str(shared)) is True
            assert is_copy(in_it, shared), "who is in it is served from the copy"
