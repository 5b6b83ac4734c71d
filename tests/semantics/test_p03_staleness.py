"""P3: changes are seen within the time that was stated; those of covered programs, immediately."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.semantics.tree import content
from tests.support import NOBODY, Place, Worker, is_copy, keep_recent, read, settle, wait_until, warm

NEW = b"what it holds now"


def replace(path: Path) -> None:
    new = path.with_name("replacement")
    new.write_bytes(NEW)
    new.rename(path)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("b")


def restamped(path: Path) -> None:
    """The same size and time of modification: only the time of change tells."""
    stat = path.stat()
    path.write_bytes(NEW.ljust(stat.st_size, b"."))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


OUTSIDE: dict[str, Callable[[Path], object]] = {
    "overwritten": lambda path: path.write_bytes(NEW),
    "appended to": lambda path: path.open("ab").write(NEW),
    "cut": lambda path: os.truncate(path, 5),
    "replaced": replace,
    "removed": lambda path: path.unlink(),
    "restamped": restamped,
    "made a link": link,
}


def now(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def seen(worker: Worker, path: Path) -> bytes | None:
    # Not by whether it exists: the answer to that may be out of time before the next one.
    try:
        return read(worker, path)
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("how", OUTSIDE)
def test_a_change_from_outside_is_seen_within_the_ttl(place: Place, how: str) -> None:
    path = place.source / "a"
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, path)
        OUTSIDE[how](path)
        changed = time.monotonic()
        while time.monotonic() < changed + 1:
            assert seen(worker, path) in (content("a"), now(path)), "neither the old version nor the new one"
            time.sleep(0.05)
        assert seen(worker, path) == now(path)


def test_a_directory_that_is_swept_serves_on(place: Place) -> None:
    """Over many validities, without a new copy and with fewer opens of the source than of the copy."""
    path = place.source / "a"
    with place.worker(freshness="ttl=2") as worker:
        warm(place, worker, path)

        def was_swept() -> bool:
            assert read(worker, path) == content("a")
            return bool(place.status()["sweeps"] >= 4)

        wait_until(was_swept, "four sweeps")
        status = place.status()
    ran = worker.end()
    assert status["files_copied"] == 1
    assert ran.hits >= 0.5 * ran.counters["source_opens"]


def test_immutable_trusts_until_clean(place: Place) -> None:
    path = place.source / "a"
    with place.worker(freshness="immutable") as worker:
        warm(place, worker, path)
        replace(path)
        assert read(worker, path) == content("a")
    place.stop()
    with place.adopted(freshness="immutable"):
        assert place.run("cat", path, freshness="immutable").out == content("a"), "in the next run, too"
    place.stop()
    place.clean()
    assert place.run("cat", path, freshness="immutable").out == NEW


@pytest.mark.parametrize("how", OUTSIDE)
def test_on_open_sees_what_was_finished_before(place: Place, how: str) -> None:
    path = place.source / "a"
    with place.worker(freshness="on_open") as worker:
        warm(place, worker, path)
        OUTSIDE[how](path)
        assert seen(worker, path) == now(path)
    assert worker.end().hits > 0


@pytest.mark.parametrize("freshness", ["ttl=60", "on_open"])
def test_copies_of_an_earlier_run_serve_once_they_are_known_to_be_current(place: Place, freshness: str) -> None:
    changed, same = place.source / "d/x", place.source / "d/y"
    with place.worker() as worker:
        warm(place, worker, changed, same)
    place.stop()
    replace(changed)
    with place.worker(freshness=freshness) as worker:
        assert place.idle()["adopted"] == 2
        assert read(worker, changed) == NEW
        wait_until(lambda: is_copy(worker, same), "its directory to be swept")
        assert read(worker, same) == content("d/y")
        assert read(worker, changed) == NEW


# Code that changes what names under the source lead to; the bytes of each name are then compared with the source's.
BY_A_COVERED_PROGRAM = {
    "write": "Path(a).write_bytes(b'new')",
    "append": "open(a, 'ab').write(b'new')",
    "write without truncating": "f = open(a, 'r+b'); f.write(b'new'); f.close()",
    "os.open to write": "fd = os.open(a, os.O_WRONLY); os.pwrite(fd, b'new', 3); os.close(fd)",
    "open that truncates": "os.close(os.open(a, os.O_RDONLY | os.O_TRUNC))",
    "truncate": "os.truncate(a, 7)",
    "ftruncate": "f = open(a, 'r+b'); os.ftruncate(f.fileno(), 7); f.close()",
    "fopen": "import ctypes\nc = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p\n"
    "f = ctypes.c_void_p(c.fopen(a.encode(), b'r+')); c.fputs(b'new', f); c.fclose(f)",
    "creat": "import ctypes\nos.close(ctypes.CDLL(None).creat(a.encode(), 0o644))",
    "rename over": "os.rename(b, a)",
    "rename away": "os.rename(a, a + '.away')",
    "rename away and back": "os.rename(a, a + '.away'); os.rename(a + '.away', a)",
    "exchange": "import ctypes\nassert ctypes.CDLL(None).renameat2(-100, a.encode(), -100, b.encode(), 2) == 0",
    "unlink": "os.unlink(a)",
    "unlink and make": "os.unlink(a); Path(a).write_bytes(b'new')",
    "remove by C": "import ctypes\nctypes.CDLL(None).remove(a.encode())",
    "link over a removed name": "os.unlink(a); os.link(b, a)",
    "symbolic link over a removed name": "os.unlink(a); os.symlink('b', a)",
    "write by the other hard link": "Path(harder).write_bytes(b'new')",
    "write by a symbolic link": "Path(to_a).write_bytes(b'new')",
    "retarget a link": "os.unlink(to_a); os.symlink('b', to_a)",
    "retarget a directory link": "os.symlink('e', to_d + '.new'); os.rename(to_d + '.new', to_d)",
    "relative": "os.chdir(os.path.dirname(a)); Path('a').write_bytes(b'new')",
    "relative to a directory": "fd = os.open(os.path.dirname(a), os.O_RDONLY); os.unlink('a', dir_fd=fd); os.close(fd)",
    "by another spelling": "Path(os.path.dirname(a) + '/./d/../a').write_bytes(b'new')",
    "by /proc/self/cwd": "os.chdir(os.path.dirname(a)); Path('/proc/self/cwd/a').write_bytes(b'new')",
    "by a link outside": "os.symlink(a, outside); Path(outside).write_bytes(b'new')",
    "rename the directory": "os.rename(d, d + '.away')",
    "put another directory in its place": "os.rename(d, d + '.away'); os.rename(e, d)",
    "remove the directory": "import shutil; shutil.rmtree(d)",
    "copy over": "import shutil; shutil.copyfile(b, a)",
    "mv": "import subprocess; subprocess.run(['mv', b, a], check=True)",
    "cp": "import subprocess; subprocess.run(['cp', b, a], check=True)",
    "sh": "import subprocess; subprocess.run(['sh', '-c', 'echo new > \"$1\"', 'sh', a], check=True)",
    "sed -i": "import subprocess; subprocess.run(['sed', '-i', 's/./x/', a], check=True)",
    "dd": "import subprocess; subprocess.run(['dd', 'if=' + b, 'of=' + a, 'bs=10', 'count=3', 'conv=notrunc', 'status=none'], check=True)",
    "a forked child": "pid = os.fork()\nif pid == 0:\n  Path(a).write_bytes(b'new'); os._exit(0)\nos.waitpid(pid, 0)",
    "mapped": "import mmap\nf = open(a, 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:3] = b'new'; m.close(); f.close()",
}
NAMES = ["a", "b", "hard", "harder", "to_a", "to_to_a", "to_d/x", "through", "d/across", "d/x", "e/x"]


def by_name(root: str, names: list[str]) -> str:
    """Code that gives what each of these names holds."""
    return f"{{name: Path({root!r}, name).read_bytes() if os.path.exists({root!r} + '/' + name) else None for name in {names!r}}}"


@contextmanager
def two_workers(place: Place, freshness: str) -> Iterator[tuple[Worker, Worker]]:
    """Starts two runs that one agent serves."""
    with place.worker(freshness=freshness) as one, place.worker(freshness=freshness) as other:
        yield one, other


def change_and_compare(place: Place, how: str, pause: float) -> None:
    source = place.source
    names = {name: str(source / name) for name in ("a", "b", "d", "e", "to_a", "to_d", "harder")}
    with two_workers(place, "immutable") as (one, other):
        warm(place, one, *(source / name for name in NAMES))
        one.do(BY_A_COVERED_PROGRAM[how], outside=str(place.root / "outside"), **names)
        time.sleep(pause)
        truth = {name: now(source / name) for name in NAMES}
        for worker in (one, other):
            assert worker.do(by_name(str(source), NAMES)) == truth


@pytest.mark.parametrize("how", BY_A_COVERED_PROGRAM)
def test_a_change_by_a_covered_program_is_seen_at_once(place: Place, how: str) -> None:
    """By whom made it and by others, by every name, whatever the freshness."""
    change_and_compare(place, how, 0)


# After which other names may lead elsewhere; the agent looks where they lead now.
WAYS = [
    "rename over",
    "exchange",
    "retarget a link",
    "retarget a directory link",
    "rename the directory",
    "put another directory in its place",
]


@pytest.mark.parametrize("how", WAYS)
def test_a_change_of_ways_stays_seen(place: Place, how: str) -> None:
    """Also by names that nobody opened until the agent had looked."""
    change_and_compare(place, how, 0.8)


def test_what_was_changed_by_a_covered_program_is_copied_anew(place: Place) -> None:
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        worker.do("Path(path).write_bytes(b'new')", path=str(path))
        keep_recent(path)
        assert read(worker, path) == b"new"
        assert place.status()["not_copied"] == {"recently_modified": 1}
        os.utime(path)
        settle(path)
        warm(place, worker, path)
        assert read(worker, path) == b"new"


def test_what_is_open_for_writing_is_not_published(place: Place) -> None:
    path = place.source / "a"
    with place.worker() as worker:
        # A new file: one that is changed in place is live, and has no copy for longer.
        worker.do("f = open(path, 'wb', buffering=0); f.write(b'one')", path=str(path))
        settle(path)
        read(worker, path)
        assert place.idle(1)["not_copied"] == {"open_for_writing": 1}
        worker.do("f.seek(0); f.write(b'two')")
        assert read(worker, path)[:3] == b"two"
        worker.do("f.close()")
        settle(path)
        warm(place, worker, path)
        assert read(worker, path)[:3] == b"two"


REFUSALS = {
    "chmod": "os.chmod(path, 0)",
    "chmod of its directory": "os.chmod(os.path.dirname(path), 0)",
    "fchmod of a copy": "fd = os.open(path, 0); os.fchmod(fd, 0); os.close(fd)",
    "fchmod of the source": "os.fchmod(early, 0)",
    "fchmod of its directory": "fd = os.open(os.path.dirname(path), 0); os.fchmod(fd, 0); os.close(fd)",
}


@pytest.mark.parametrize("freshness", ["immutable", "on_open"])
@pytest.mark.parametrize("how", REFUSALS)
def test_permissions_that_are_taken_away_by_a_covered_program(place: Place, how: str, freshness: str) -> None:
    """Also those of a directory on the way: the next open is refused."""
    place.give_to(NOBODY)
    path = place.source / "d/x"
    settle(path)
    with place.worker(freshness=freshness) as worker:
        worker.do("early = os.open(path, 0); os.read(early, 10)", path=str(path))
        warm(place, worker, path)
        worker.do(REFUSALS[how])
        with pytest.raises(PermissionError):
            read(worker, path)
        worker.do("os.chmod(os.path.dirname(path), 0o700); os.chmod(path, 0o600)")
        assert read(worker, path) == content("d/x")


# Opened for writing inside libc, not by a symbol that a library can stand before; then left alone for so long that it
# seems to be settled.
OPENED_INSIDE_LIBC = {
    "mkstemp": "import ctypes\nname = ctypes.create_string_buffer((directory + '/tXXXXXX').encode())\n"
    "fd = ctypes.CDLL(None).mkstemp(name); os.write(fd, b'one'); name.value.decode()",
    "posix_spawn": "path = directory + '/spawned'\nout, fd = os.pipe()\n"
    "actions = [(os.POSIX_SPAWN_DUP2, out, 0), (os.POSIX_SPAWN_OPEN, 1, path, os.O_CREAT | os.O_WRONLY, 0o644)]\n"
    "os.posix_spawn('/bin/sh', ['sh', '-c', 'echo -n one; cat'], os.environ, file_actions=actions)\nos.close(out)\npath",
}


@pytest.mark.parametrize("how", OPENED_INSIDE_LIBC)
def test_what_libc_opened_for_writing_by_itself_is_not_published(place: Place, how: str) -> None:
    with place.worker() as worker:
        path = worker.do(OPENED_INSIDE_LIBC[how], directory=str(place.source))
        wait_until(lambda: Path(path).exists() and Path(path).read_bytes() == b"one", "the writer's first word")
        settle(path)
        assert read(worker, path) == b"one"
        assert place.idle(1)["not_copied"] == {"open_for_writing": 1}
        worker.do("os.write(fd, b'two')")
        wait_until(lambda: Path(path).read_bytes() == b"onetwo", "the writer")
        assert read(worker, path) == b"onetwo"


@pytest.mark.parametrize("device", ["the same", "another"])
def test_a_link_that_leads_to_the_source_is_retargeted_by_a_covered_program(place: Place, device: str) -> None:
    """The source was named by a link, as in `data/current`, which is outside of it."""
    current = (place.root if device == "the same" else place.runtime) / "current"
    current.symlink_to(place.source / "d")
    with place.worker(source=current) as worker:
        warm(place, worker, current / "x")
        worker.do("os.symlink(to, link + '.new'); os.rename(link + '.new', link)", to=str(place.source / "e"), link=str(current))
        assert read(worker, current / "x") == content("e/x")
