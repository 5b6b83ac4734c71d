"""S2: directories that somebody else has prepared are refused with one line, before anything runs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import needs_root
from tests.support import NOBODY, Place

pytestmark = needs_root
USERS = [0, 12345]


def _of_somebody_else(path: Path, uid: int) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)


def _open_to_others(path: Path, uid: int) -> None:
    path.mkdir()
    path.chmod(0o755)
    os.chown(path, uid, uid)


def _writable_by_others(path: Path, uid: int) -> None:
    path.mkdir()
    path.chmod(0o777)
    os.chown(path, uid, uid)


def _a_link(path: Path, uid: int) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    os.chown(elsewhere, uid, uid)
    path.symlink_to(elsewhere)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _a_dangling_link(path: Path, uid: int) -> None:
    path.symlink_to(path.parent / "nowhere")


def _a_file(path: Path, uid: int) -> None:
    path.touch(mode=0o600)
    os.chown(path, uid, uid)


SQUATTERS = [_of_somebody_else, _open_to_others, _writable_by_others, _a_link, _a_dangling_link, _a_file]
Squat = Callable[[Path, int], None]


def refused(place: Place, path: Path, environment: dict[str, str] | None = None) -> str:
    """The one line with which a run is refused; it names the path, and nothing has run."""
    ran = place.root / "ran"
    words = place.words(["touch", ran], place.record_path())
    done = subprocess.run(
        words,
        env={**place.environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=support.LONG_S,
        check=False,
        cwd="/",
    )
    assert done.returncode == 2, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert str(path) in line
    assert not ran.exists()
    return line


def everything_in(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("squat", SQUATTERS)
def test_s02_the_tiers_root(place: Place, squat: Squat, uid: int) -> None:
    if uid:
        place.give_to(uid)
    place.tier.chmod(0o1777)
    root = place.tier / f"forebay-{uid}"
    squat(root, uid)
    before = everything_in(place.tier)
    refused(place, root)
    assert everything_in(place.tier) == before


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("squat", SQUATTERS)
def test_s02_the_runtime_directory(place: Place, squat: Squat, uid: int) -> None:
    if uid:
        place.give_to(uid)
    # As /dev/shm and /tmp are.
    shared = place.runtime / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    runtime = shared / f"forebay-{uid}"
    squat(runtime, uid)
    before = everything_in(shared)
    assert "FOREBAY_RUNTIME_DIR" in refused(place, runtime, {"FOREBAY_RUNTIME_DIR": str(runtime)})
    assert everything_in(shared) == before


@pytest.mark.parametrize("squat", SQUATTERS)
def test_s02_the_agents_own_directory(place: Place, squat: Squat) -> None:
    place.run("true")
    place.stop()
    (own,) = [path for path in place.runtime.iterdir() if path.is_dir()]
    for path in own.iterdir():
        path.unlink()
    own.rmdir()
    squat(own, 0)
    refused(place, own)


@pytest.mark.parametrize("name", ["lease", "catalogue", "FORMAT", "objects"])
def test_s02_links_inside_the_tiers_root_are_not_followed(place: Place, name: str) -> None:
    root = place.tier / "forebay-0"
    root.mkdir(mode=0o700)
    victim = place.root / "victim"
    if name == "objects":
        victim.mkdir()
    else:
        victim.write_bytes(b"precious")
    (root / name).symlink_to(victim)
    done = place.run("cat", place.source / "a00", check=False)
    # Refused, or served from the source: in any case nothing was done beyond the link.
    assert done.status in (0, 2), done.err
    assert everything_in(victim) == [] if name == "objects" else victim.read_bytes() == b"precious"


def test_s02_a_directory_in_which_everybody_may_rename(place: Place) -> None:
    place.tier.chmod(0o777)
    assert "sticky" in refused(place, place.tier)


def test_s02_a_tier_that_is_exchanged_while_it_is_used(place: Place) -> None:
    with place.worker() as worker:
        support.warm(place, worker, place.source / "a00")
        root = place.tier / "forebay-0"
        root.rename(place.tier / "moved")
        # What stands there now has the names and sizes that the index promises, and other bytes.
        for copy in (place.tier / "moved/objects").rglob("*"):
            there = root / copy.relative_to(place.tier / "moved")
            if copy.is_dir():
                there.mkdir(parents=True)
            else:
                there.write_bytes(bytes(copy.stat().st_size))
                times = copy.stat()
                os.utime(there, ns=(times.st_atime_ns, times.st_mtime_ns))
        for _ in range(3):
            assert support.read(worker, place.source / "a00") == (place.source / "a00").read_bytes()
