"""P3, P4, P6, P7, P15: `stat` and `access` by name are answered on the node, by the rules of an open."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.testbed import slowfs
from tests import support
from tests.semantics.tree import AS_ANOTHER, SIZES
from tests.support import Place, Worker, settle, wait_until, warm

FIELDS = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_blocks", "st_blksize")
SAYS = f"""
def says(path):
    try:
        found = os.stat(path)
        return [getattr(found, field) for field in {FIELDS!r}]
    except OSError as error:
        return error.errno
says(path)
"""
Said = list[int] | int


def says(worker: Worker, path: Path) -> Said:
    """Returns the facts that the worker gets of a file by its name; the errno, if it is refused."""
    said: Said = worker.do(SAYS, path=str(path))
    return said


def truth(path: Path) -> Said:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno or 0
    return [getattr(found, field) for field in FIELDS]


def saved(worker: Worker) -> int:
    return worker.end().counters["stats_saved"]


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"a new version")
    path.with_name("new").rename(path)


OUTSIDE: dict[str, Any] = {
    "written": lambda path: path.write_bytes(b"other"),
    "replaced": replace,
    "removed": lambda path: path.unlink(),
    "made private": lambda path: path.chmod(0o600),
    "linked": lambda path: path.with_name("another name").hardlink_to(path),
}


@pytest.mark.parametrize("freshness", ["ttl=3600", "immutable"])
def test_p15_what_was_answered_here_is_counted(place: Place, freshness: str) -> None:
    with place.worker(freshness=freshness) as worker:
        warm(place, worker, *(place.source / name for name in SIZES))
        for name in SIZES:
            assert says(worker, place.source / name) == truth(place.source / name)
        # Nothing is known of a directory, or of a name that leads nowhere.
        assert says(worker, place.source / "d") == truth(place.source / "d")
        assert says(worker, place.source / "none") == errno.ENOENT
        assert worker.do("os.access(path, os.W_OK), os.access(path, os.R_OK)", path=str(place.source / "a")) == (True, True)
    ran = worker.end()
    assert (ran.counters["source_stats"], ran.counters["stats_saved"]) == (len(SIZES) + 4, len(SIZES) + 1)
    assert f"source stats saved:  {len(SIZES) + 1} of {len(SIZES) + 4}" in ran.err.decode()


def test_p15_nothing_is_asked_of_the_server_in_a_second_epoch(place: Place, mnt: Path) -> None:
    """Under `immutable`, of a file system whose kernel keeps no attributes: no operation for names that have a copy."""
    epoch = """
import hashlib
total = 0
for name in names:
    path = f"{root}/{name}"
    assert os.access(path, os.R_OK) and os.path.exists(path) and os.path.isfile(path)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        assert len(file.read()) == size == os.stat(path).st_size
    total += size
total
"""
    with slowfs(place.source, mnt, attr_ttl_ms=0) as fs, place.worker(source=mnt) as worker:
        names = {"names": list(SIZES), "root": str(mnt)}
        assert worker.do(epoch, **names) == sum(SIZES.values())
        warm(place, worker, *(mnt / name for name in SIZES))

        def asks_nothing() -> bool:
            before = fs.stats()
            assert worker.do(epoch, **names) == sum(SIZES.values())
            return fs.stats() == before

        # The agent may still close what it had open, or look at a directory of a new name.
        wait_until(asks_nothing, "an epoch without any operation on the source")
        for name in SIZES:
            assert says(worker, mnt / name) == truth(mnt / name)


@pytest.mark.parametrize("how", OUTSIDE)
def test_p03_a_change_from_outside_shows_within_the_ttl(place: Place, how: str) -> None:
    path = place.source / "a"
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, path)
        before = truth(path)
        OUTSIDE[how](path)
        changed = time.monotonic()
        while time.monotonic() < changed + 1:
            assert says(worker, path) in (before, truth(path))
        assert says(worker, path) == truth(path) != before


@pytest.mark.parametrize(("freshness", "is_seen"), [("on_open", True), ("immutable", False)])
def test_p03_a_change_from_outside_shows_as_the_run_says(place: Place, freshness: str, is_seen: bool) -> None:
    path = place.source / "a"
    with place.worker(freshness=freshness) as worker:
        warm(place, worker, path)
        before = truth(path)
        replace(path)
        assert says(worker, path) == (truth(path) if is_seen else before)
    assert saved(worker) == (0 if is_seen else 1)


# What changes `a`, or the way to `d/x`, through a preload library.
BY_A_COVERED_PROGRAM = {
    "write": "Path(a).write_bytes(b'new')",
    "a write that goes on": "f = open(a, 'r+b', buffering=0); f.write(b'new')",
    "truncate": "os.truncate(a, 5)",
    "utime": "os.utime(a, (3, 4))",
    "chmod": "os.chmod(a, 0o640)",
    "fchmod of a copy": "fd = os.open(a, 0); os.fchmod(fd, 0o640); os.close(fd)",
    "link": "os.link(a, a + '.linked')",
    "unlink": "os.unlink(a)",
    "rename over": "os.rename(b, a)",
    "a link in its place": "os.unlink(a); os.symlink('b', a)",
    "rename the directory": "os.rename(d, d + '.away')",
}


@pytest.mark.parametrize("how", BY_A_COVERED_PROGRAM)
def test_p06_a_change_by_a_covered_program_shows_at_once(place: Place, how: str) -> None:
    """To whom made it and to another run, whatever the freshness."""
    paths = {name: place.source / name for name in ("a", "b", "d/x")}
    with place.worker() as one, place.worker(freshness="ttl=60") as other:
        warm(place, one, *paths.values())
        one.do(BY_A_COVERED_PROGRAM[how], a=str(paths["a"]), b=str(paths["b"]), d=str(place.source / "d"))
        for worker in (one, other):
            for path in paths.values():
                assert says(worker, path) == truth(path)
        lstat = "import stat; stat.S_ISLNK(os.lstat(path).st_mode) if os.path.lexists(path) else None"
        expected = paths["a"].is_symlink() if os.path.lexists(paths["a"]) else None
        assert one.do(lstat, path=str(paths["a"])) == expected


def test_p04_without_its_copy_the_source_says(place: Place) -> None:
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        for copy in place.objects():
            copy.unlink(missing_ok=True)
        assert says(worker, path) == truth(path)
        support.remove_tree(place.tier)
        assert says(worker, path) == truth(path)
        assert worker.do("os.access(path, os.R_OK)", path=str(path))
    assert saved(worker) == 0


def test_p07_another_user_asks_the_source(place: Place) -> None:
    """A child that has become somebody else sees of a closed directory what it would see without us: nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    ask = AS_ANOTHER + "as_another(lambda: (says(path), os.access(path, os.R_OK), os.access(path, os.F_OK)))"
    (place.source / "d").chmod(0o700)
    settle(place.source)
    with place.worker() as worker:
        warm(place, worker, place.source / "d/x")
        assert says(worker, place.source / "d/x") == truth(place.source / "d/x")
        assert worker.do(ask, path=str(place.source / "d/x")) == str((errno.EACCES, False, False))
    assert saved(worker) == 1
