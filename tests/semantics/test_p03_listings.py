"""P1, P3, P4, P5, P6, P7, P11, P15: a directory that a program lists is listed on the node, by the rules of an open.

What a stream does beside giving entries: preload/test_streams.py.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed.testbed import SlowFs, slowfs
from tests import support
from tests.semantics.tree import AS_ANOTHER, SIZES
from tests.support import Place, Ran, Worker, keep_recent, read, settle, wait_until, warm

# Names with what a listing says of them, in its order; or the errno, if it is refused. And whether the node has listed:
# a stream of ours holds no descriptor.
LISTS = """
def kind(entry):
    return entry.is_symlink(), entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
def lists(path):
    before = len(os.listdir("/proc/self/fd"))
    try:
        with os.scandir(path) as entries:
            held = len(os.listdir("/proc/self/fd")) - before
            return [(entry.name, entry.inode(), kind(entry)) for entry in entries], held == 0
    except OSError as error:
        return error.errno, False
lists(path)
"""
Entries = list[tuple[str, int, tuple[bool, bool, bool]]]
KINDS = ("saved", "unknown", "stale", "tombstoned", "passed")


def lists(worker: Worker, path: Path | str) -> tuple[Entries | int, bool]:
    told: tuple[Entries | int, bool] = worker.do(LISTS, path=str(path))
    return told


def truth(path: Path) -> Entries | int:
    """Returns the source's own listing."""
    names: dict[str, Any] = {"os": os}
    exec(LISTS.replace("\nlists(path)\n", ""), names)  # noqa: S102
    found: Entries | int = names["lists"](str(path))[0]
    return found


def is_kept(worker: Worker, path: Path) -> bool:
    return lists(worker, path)[1]


def keep(worker: Worker, *paths: Path) -> None:
    """Lists directories until the node does."""
    for path in paths:
        wait_until(partial(is_kept, worker, path), f"a listing of {path}")


def counted(ran: Ran) -> dict[str, int]:
    """How often the node listed, and why not; each listing was counted once."""
    counts = {kind: ran.counters[f"listings_{kind}"] for kind in KINDS}
    assert ran.counters["source_listings"] == sum(counts.values())
    return counts


@pytest.mark.parametrize("freshness", ["ttl=3600", "immutable"])
def test_p01_a_listing_is_the_sources(place: Place, freshness: str) -> None:
    """The same names in the same order, the same inodes and kinds, whatever way a program lists."""
    ways = """
import glob
def ways(root):
    walked = [(where, dirs, files) for where, dirs, files in os.walk(root)]
    return (os.listdir(root), walked, [str(path) for path in Path(root).iterdir()], glob.glob(root + "/**", recursive=True),
            sorted(map(str, Path(root).rglob("*"))), [entry.stat(follow_symlinks=False).st_size for entry in os.scandir(root)])
ways(root)
"""
    with place.worker(freshness=freshness) as worker:
        keep(worker, place.source, place.source / "d", place.source / "e")
        for name in (".", "d", "e", "d/.", "d//"):
            entries, here = lists(worker, f"{place.source}/{name}")
            assert here
            assert entries == truth(place.source / name)
        with Worker.started([sys.executable, "-E", support.WORKER]) as plain:
            assert worker.do(ways, root=str(place.source)) == plain.do(ways, root=str(place.source))
        # By a link it is another name.
        keep(worker, place.source / "to_d")
        assert lists(worker, place.source / "to_d") == (truth(place.source / "d"), True)
        worker.do("os.chdir(path)", path=str(place.source / "d"))
        assert lists(worker, ".") == lists(worker, "./") == (truth(place.source / "d"), True)
        assert place.idle()["listings_kept"] == 3, "and one by another name"
    ran = worker.end()
    assert counted(ran)["saved"] > 15
    assert "  listings saved:      " in ran.err.decode()


PROGRAMS = {
    "ls": ["ls", "-laU"],
    "ls of all": ["ls", "-lR"],
    "rsync": ["rsync", "-a", "-n", "--list-only"],
    "find": ["find"],
    "tar": ["tar", "--create", "--file=-"],
    "perl": ["perl", "-e", "opendir(my $dir, $ARGV[0]); print join(' ', readdir($dir)); rewinddir($dir); print scalar(() = readdir($dir))"],
}
# They list by descriptors that they have opened themselves.
BY_DESCRIPTOR = {"find", "tar"}
# Which way it goes depends on its release.
EITHER_WAY = {"rsync"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_p11_programs_list_what_they_listed_without_us(place: Place, program: str) -> None:
    words = PROGRAMS[program]
    if not shutil.which(words[0]):
        pytest.skip(f"no {words[0]} here")
    path = f"{place.source}/d/"
    with place.worker() as worker:
        keep(worker, place.source / "d")
        ran = place.run(*words, path)
        plain = subprocess.run([*words, path], capture_output=True, check=True, cwd=place.root)
    assert ran.out == plain.stdout
    if program not in EITHER_WAY:
        assert (counted(ran)["saved"] > 0) == (program not in BY_DESCRIPTOR)


def test_p15_nothing_is_asked_of_the_server_in_a_second_epoch(place: Place, mnt: Path) -> None:
    """Lists, looks up and opens all on a file system whose kernel keeps no attributes: no operation."""
    epoch = """
seen = 0
for directory in ("", "/d", "/e"):
    assert directory == "" or os.path.isdir(root + directory)
    assert directory == "" or os.access(root + directory, os.R_OK)
    for entry in os.scandir(root + directory):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                seen += len(file.read())
seen
"""
    names = [mnt / name for name in (*SIZES, "harder")]
    with slowfs(place.source, mnt, attr_ttl_ms=0) as fs, place.worker(source=mnt) as worker:
        bytes_read = worker.do(epoch, root=str(mnt))
        assert bytes_read == sum(SIZES.values()) + SIZES["hard"]
        warm(place, worker, *names)
        keep(worker, mnt, mnt / "d", mnt / "e")

        def asks_nothing() -> bool:
            before = fs.stats()
            assert worker.do(epoch, root=str(mnt)) == bytes_read
            return fs.stats() == before

        # The agent may still close what it had open, or look at a directory of a new name.
        wait_until(asks_nothing, "an epoch without any operation on the source")


def test_p03_what_an_earlier_run_listed_is_compared_with_the_source_first(place: Place, mnt: Path) -> None:
    """Also under `immutable`: a user who declares files immutable may add some.

    First it is opened, and not read; then nothing is asked.
    """
    with slowfs(place.source, mnt, attr_ttl_ms=0) as fs:
        with place.worker(source=mnt) as worker:
            keep(worker, mnt / "d", mnt / "e")
        place.stop()
        (place.source / "e/added").write_bytes(b"by nobody of the run")
        with place.worker(source=mnt) as worker:
            place.idle()
            expected = truth(mnt / "d")
            before = fs.stats()
            assert lists(worker, mnt / "d") == (expected, True)
            after = fs.stats()
            assert [after[kind] - before[kind] for kind in ("opendir", "readdir", "readdirplus")] == [1, 0, 0]

            def asks_nothing() -> bool:
                before = fs.stats()
                assert lists(worker, mnt / "d") == (expected, True)
                return fs.stats() == before

            wait_until(asks_nothing, "a listing without any operation on the source")
            assert lists(worker, mnt / "e") == (truth(mnt / "e"), False)
        counts = counted(worker.end())
        assert counts.pop("saved") >= 2
        assert counts == {"unknown": 0, "stale": 1, "tombstoned": 0, "passed": 0}


OUTSIDE: dict[str, Callable[[Path], object]] = {
    "a new name": lambda path: (path / "new").write_bytes(b"new"),
    "a name that is gone": lambda path: (path / "x").unlink(),
    "another name": lambda path: (path / "x").rename(path / "z"),
    "another kind": lambda path: [change(path / "x") for change in (Path.unlink, Path.mkdir)],
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_p03_a_change_from_outside_shows_within_the_ttl(place: Place, how: str) -> None:
    path = place.source / "d"
    with place.worker(freshness="ttl=1") as worker:
        keep(worker, path)
        before = truth(path)
        OUTSIDE[how](path)
        changed = time.monotonic()
        while time.monotonic() < changed + 1:
            assert lists(worker, path)[0] in (before, truth(path))
        assert lists(worker, path)[0] == truth(path) != before
        assert worker.do("os.stat(path).st_mtime_ns", path=str(path)) == path.stat().st_mtime_ns


def test_p03_on_open_the_source_lists(place: Place) -> None:
    path = place.source / "d"
    with place.worker(freshness="immutable") as other:
        keep(other, path)
        with place.worker(freshness="on_open") as worker:
            assert lists(worker, path) == (truth(path), False)
            OUTSIDE["a new name"](path)
            assert lists(worker, path) == (truth(path), False)
            # A user who declares the source immutable is taken at their word.
            assert lists(other, path)[1]
            assert lists(other, path)[0] != truth(path)
            # Nor does the agent list for it what nobody could use.
            assert lists(worker, place.source / "e") == (truth(place.source / "e"), False)
    ran = worker.end()
    assert counted(ran) == {"saved": 0, "unknown": 0, "stale": 0, "tombstoned": 0, "passed": 3}
    assert ran.record["agent"]["listings_handed_over"] == 0


# What changes `d`, or the way to it, through a preload library.
BY_A_COVERED_PROGRAM = {
    "a new file": "open(d + '/new', 'w').close()",
    "a new file, by a foreign name": "open(foreign + '/new', 'w').close()",
    "a new file, by a stream and a foreign name": "import ctypes; assert ctypes.CDLL(None).fopen(f'{foreign}/new'.encode(), b'w')",
    "a new file, by a directory descriptor": "at = os.open(d, os.O_RDONLY); os.close(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=at))",
    "a new file, by a link that led nowhere": "os.symlink('../d/new', e + '/link'); open(e + '/link', 'w').close()",
    "a new directory": "os.mkdir(d + '/new')",
    "a pipe": "os.mkfifo(d + '/new')",
    "a link": "os.link(d + '/x', d + '/new')",
    "a symbolic link": "os.symlink('x', d + '/new')",
    "unlink": "os.unlink(d + '/x')",
    "rename in it": "os.rename(d + '/x', d + '/new')",
    "rename out of it": "os.rename(d + '/x', e + '/new')",
    "rename into it": "os.rename(e + '/x', d + '/new')",
    "exchange": "os.rename(d + '/x', e + '/new'); os.rename(e + '/x', d + '/x')",
    "rename it": "os.rename(d, d + '.away')",
    "another in its place": "os.rename(d, d + '.away'); os.mkdir(d); open(d + '/other', 'w').close()",
    "a whole tree": "import shutil; shutil.rmtree(d)",
    "copied": "import shutil; shutil.copytree(e, d + '/e')",
    "another process": "import subprocess; subprocess.run(['touch', d + '/new'], check=True)",
}


@pytest.mark.parametrize("how", BY_A_COVERED_PROGRAM)
def test_p06_a_change_by_a_covered_program_shows_at_once(place: Place, how: str) -> None:
    """To whom made it and to another run, whatever the freshness."""
    paths = {name: place.source / name for name in ("d", "e")}
    (place.root / "foreign").symlink_to(paths["d"])
    with place.worker() as one, place.worker(freshness="ttl=60") as other:
        for worker in (one, other):
            keep(worker, place.source, *paths.values())
        names = {name: str(path) for name, path in paths.items()}
        one.do(BY_A_COVERED_PROGRAM[how], foreign=str(place.root / "foreign"), **names)
        for worker in (one, other):
            for path in (place.source, *paths.values()):
                assert lists(worker, path)[0] == truth(path), path
        asked = "def of(path):\n    s = os.stat(path)\n    return s.st_mtime_ns, s.st_ctime_ns, s.st_nlink, s.st_size\nof(path)"
        for path in filter(Path.exists, paths.values()):
            now = path.stat()
            assert one.do(asked, path=str(path)) == (now.st_mtime_ns, now.st_ctime_ns, now.st_nlink, now.st_size)
        if how == "a new file":
            # Once it is old enough it is listed again.
            settle(paths["d"])
            keep(other, paths["d"])
            assert lists(other, paths["d"])[0] == truth(paths["d"])


def test_p05_what_can_not_be_listed_is_refused_as_without_us(place: Place) -> None:
    with place.worker() as worker:
        keep(worker, place.source / "d")
        expected = {"a": errno.ENOTDIR, "none": errno.ENOENT, "a/b": errno.ENOTDIR, "d/x": errno.ENOTDIR, "x" * 300: errno.ENAMETOOLONG}
        for name, number in expected.items():
            assert lists(worker, place.source / name) == (number, False)
        assert lists(worker, "") == (errno.ENOENT, False)


def test_p07_another_user_is_told_by_the_source(place: Place) -> None:
    """A child that has become somebody else lists what it might list without us."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    ask = AS_ANOTHER + "as_another(lambda: lists(path))"
    (place.source / "d").chmod(0o700)
    settle(place.source / "d")
    with place.worker() as worker:
        keep(worker, place.source / "d", place.source / "e")
        assert worker.do(ask, path=str(place.source / "d")) == repr((errno.EACCES, False))
        assert worker.do(ask, path=str(place.source / "e")) == repr((truth(place.source / "e"), False))
        # The right is taken away: as with files, the source is asked.
        worker.do("os.chmod(path, 0o700)", path=str(place.source / "e"))
        assert worker.do(ask, path=str(place.source / "e")) == repr((errno.EACCES, False))


def test_p04_without_agent_or_tier_the_source_lists(place: Place) -> None:
    path = place.source / "d"
    with place.worker() as worker:
        keep(worker, path)
        # A stream that is open needs neither.
        worker.do("stream = os.scandir(path); first = next(stream).name", path=str(path))
        os.kill(place.agent_pid(), 9)
        place.stop()
        assert lists(worker, path) == (truth(path), True)
        support.remove_tree(place.tier)
        assert lists(worker, path) == (truth(path), False)
        assert lists(worker, place.source / "e") == (truth(place.source / "e"), False)
        rest = worker.do("sorted([first, *(entry.name for entry in stream)])")
        assert rest == sorted(found.name for found in path.iterdir())
    assert worker.end().counters["listings_dropped"] == 2


def test_p04_while_the_source_hangs_the_node_lists_on(place: Place, mnt: Path) -> None:
    with slowfs(place.source, mnt, attr_ttl_ms=0) as fs, place.worker(source=mnt) as worker:
        keep(worker, mnt / "d")
        expected = truth(mnt / "d")
        fs.hang()
        try:
            assert lists(worker, mnt / "d") == (expected, True)
        finally:
            fs.resume()


def test_p04_a_listing_that_was_altered_is_none(place: Place) -> None:
    path = place.source / "d"
    with place.worker() as worker:
        keep(worker, path)
        (listing,) = place.objects()
        before = listing.stat()
        listing.chmod(0o600)
        listing.write_bytes(listing.read_bytes().replace(b"across\0", b"nobody\0"))
        listing.chmod(0o400)
        os.utime(listing, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert lists(worker, path) == (truth(path), False)


def test_p08_listings_take_their_place_in_the_tier(place: Place) -> None:
    """They count against its size; for one that does not fit the source is asked each time."""
    huge = place.source / "huge"
    huge.mkdir()
    for number in range(20_000):
        (huge / f"a file with a name of some length {number:06}").touch()
    settle(huge)
    with place.worker(tier_size="64M") as worker:
        keep(worker, huge)
        assert lists(worker, huge) == (truth(huge), True)
        used = place.status()["tiers"][0]["used_bytes"]
        assert used >= sum(path.stat().st_size for path in place.objects()) > 20_000 * 60
    place.stop()
    place.clean()
    with place.worker(tier_size="500K") as worker:
        for _ in range(3):
            assert lists(worker, huge) == (truth(huge), False)
            place.idle()
        keep(worker, place.source / "d")
        status = place.status()
    assert status["tiers"][0]["used_bytes"] <= 500 << 10
    assert set(status["listings_not_kept"]) <= {"larger_than_every_tier", "quota_used_up"}


def test_p15_what_was_listed_here_is_counted(place: Place) -> None:
    keep_recent(place.source / "e")
    with place.worker() as worker:
        keep(worker, place.source / "d")
        for _ in range(6):
            worker.do("os.listdir(path)", path=str(place.source / "d"))
        for _ in range(2):
            assert not lists(worker, place.source / "e")[1]
            place.idle()
        worker.do("os.listdir('/'); os.listdir(os.open(path, os.O_RDONLY))", path=str(place.source))
        agent = place.idle()
    counts = counted(worker.end())
    assert counts["saved"] == 7
    assert (counts["stale"], counts["tombstoned"], counts["passed"]) == (0, 0, 0)
    assert agent["listings_handed_over"] == counts["unknown"]
    assert (agent["listings_kept"], agent["listings_not_kept"]) == (1, {"recently_modified": 2})
    assert agent["files_copied"] == agent["handed_over"] == 0


def is_stopped(pid: int) -> bool:
    """Returns True if all of its threads are stopped, or have ended."""

    def state(thread: Path) -> str:
        try:
            return (thread / "stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return "X"

    return all(state(thread) in "TX" for thread in Path(f"/proc/{pid}/task").iterdir())


@contextmanager
def being_listed(place: Place, worker: Worker, fs: SlowFs, path: Path) -> Iterator[None]:
    """The agent lists this directory of a source that hangs meanwhile.

    It is stopped while the worker opens it, for that must not hang.
    """
    agent = place.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(agent), "the agent's stop")
        worker.do("stream = os.scandir(path)", path=str(path))
        fs.hang()
    finally:
        os.kill(agent, signal.SIGCONT)
    try:
        wait_until(lambda: place.status()["listings_in_flight"] == 1, "a directory that is being listed")
        yield
    finally:
        fs.resume()


def test_p15_a_directory_that_is_being_listed_keeps_its_source_busy_and_is_no_copy_of_a_file(place: Place, mnt: Path) -> None:
    """Nothing is read ahead meanwhile, also where that would be of another source: the two may be one server."""
    beside = place.source / "beside"
    beside.mkdir()
    (beside / "opened").write_bytes(bytes(1 << 20))
    # No more than the limit of wasted reads.
    (beside / "sibling").write_bytes(b"sibling")
    settle(beside)
    record = place.record_path()
    words = place.words([place.python, "-E", place.worker_script], record, source=mnt)
    words[2:2] = ["--source", str(place.source), "--prefetch", "idle"]
    with (
        slowfs(place.source, mnt, attr_ttl_ms=0) as fs,
        Worker.started(words, environment=place.environment(), cwd=place.root, record=record) as worker,
    ):
        with being_listed(place, worker, fs, mnt / "d"):
            wait_until(lambda: read(worker, beside / "opened") and place.status()["files_copied"] == 1, "a copy")
            # Idle for a second, a source is read ahead from: however long this takes, it is not while the agent lists.
            until = time.monotonic() + 3
            while time.monotonic() < until:
                status = place.status()
                assert (status["in_flight"], status["listings_in_flight"]) == (1, 1)
                assert (status["prefetching"], status["prefetched_files"]) == (0, 0)
                time.sleep(0.1)
        wait_until(lambda: place.status()["prefetched_files"] == 1, "a file that is copied ahead")
