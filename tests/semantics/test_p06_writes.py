"""P6: writes are the source's; nothing in the source is ever touched by us.

Nothing is ever done to a copy instead of its source.
"""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.semantics.tree import SIZES, content
from tests.support import NOBODY, Place, read, settle, wait_until, warm


class EntryFacts(NamedTuple):
    """All that can be seen of an entry but its time of access."""

    kind_and_mode: int
    owner: tuple[int, int]
    links: int
    size: int
    mtime_ns: int
    ctime_ns: int
    holds: str


def everything(root: Path) -> dict[str, EntryFacts]:
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        s = path.lstat()
        holds = str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = EntryFacts(s.st_mode, (s.st_uid, s.st_gid), s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns, holds)
    return found


def test_the_source_is_never_touched(place: Place) -> None:
    """By copying, by sweeps, by a tier that is too small, by the next run, by `clean`."""
    before = everything(place.source)
    for tier_size, freshness in (("200K", "ttl=1"), ("200K", "on_open"), ("100M", "ttl=1"), ("100M", "immutable")):
        with place.worker(tier_size=tier_size, freshness=freshness) as worker:
            for _ in range(2):
                for name in SIZES:
                    assert read(worker, place.source / name) == content(name)
                place.idle()
            worker.do("import time; time.sleep(1.2)")
        place.stop()
    place.clean()
    assert everything(place.source) == before


@pytest.mark.parametrize("freshness", ["immutable", "on_open"])
def test_writes_go_straight_through(place: Place, freshness: str) -> None:
    path = place.source / "a"
    with place.worker(freshness=freshness) as worker:
        warm(place, worker, path)
        worker.do("f = open(path, 'r+b', buffering=0); f.write(b'one')", path=str(path))
        assert path.read_bytes() == b"one" + content("a")[3:], "before it is closed"
        assert read(worker, path) == path.read_bytes()
        worker.do("f.seek(0); f.write(b'two'); os.fsync(f.fileno()); f.close()")
        assert path.read_bytes() == read(worker, path) == b"two" + content("a")[3:]
        worker.do("with open(path, 'ab') as f: f.write(b'end')", path=str(path))
        assert path.read_bytes() == read(worker, path) == b"two" + content("a")[3:] + b"end"


# Through the descriptor `fd` of a copy, or its name in /proc.
CHANGES = {
    "fchmod": "os.fchmod(fd, 0o640)",
    "fchown": "os.fchown(fd, os.getuid(), os.getgid())",
    "futimens": "os.utime(fd, ns=(1, 1_000_000_001))",
    "fsetxattr": "os.setxattr(fd, 'user.new', b'value')",
    "chmod of /proc": "os.chmod(f'/proc/self/fd/{fd}', 0o640)",
    "chmod of /dev/fd": "os.chmod(f'/dev/fd/{fd}', 0o640)",
    "utime of /proc": "os.utime(f'/proc/self/fd/{fd}', ns=(1, 1_000_000_001))",
    "setxattr of /proc": "os.setxattr(f'/proc/self/fd/{fd}', 'user.new', b'value')",
    "truncate of /proc": "os.truncate(f'/proc/self/fd/{fd}', 5)",
    "write to /proc": "with open(f'/proc/self/fd/{fd}', 'wb') as f: f.write(b'new')",
    "update of /proc": "with open(f'/proc/self/fd/{fd}', 'r+b') as f: f.write(b'new')",
    "append to /proc": "with open(f'/proc/self/fd/{fd}', 'ab') as f: f.write(b'new')",
    "write to /proc of the thread": "with open(f'/proc/thread-self/fd/{fd}', 'r+b') as f: f.write(b'new')",
    "write to /proc, relative": "os.chdir('/proc/self/fd')\nwith open(str(fd), 'r+b') as f: f.write(b'new')",
    "fopen of /proc": "import ctypes\nc = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p\n"
    "f = ctypes.c_void_p(c.fopen(f'/proc/self/fd/{fd}'.encode(), b'r+')); c.fputs(b'new', f); c.fclose(f)",
    "freopen for writing": "import ctypes\nc = ctypes.CDLL(None); c.fopen.restype = c.freopen.restype = ctypes.c_void_p\n"
    "f = ctypes.c_void_p(c.fopen(path.encode(), b'r'))\n"
    "f = ctypes.c_void_p(c.freopen(None, b'r+', f)); c.fputs(b'new', f); c.fclose(f)",
    "link of /proc": "import ctypes\nlinkat = ctypes.CDLL(None).linkat\n"
    "if linkat(-100, f'/proc/self/fd/{fd}'.encode(), -100, (path + '.linked').encode(), 0x400) < 0: raise OSError(18, '')\n"
    "with open(path + '.linked', 'r+b') as f: f.write(b'new')",
    "flags of the inode": "import fcntl, array\nflags = array.array('l', [0]); fcntl.ioctl(fd, 0x80086601, flags)\n"
    "flags[0] |= 0x40; fcntl.ioctl(fd, 0x40086602, flags)",
}
FLAGS = "import fcntl, array\nflags = array.array('l', [0])\nwith open(copy) as f: fcntl.ioctl(f, 0x80086601, flags)\nflags"
ON_THE_COPY = {"flags of the inode": "ioctl is not looked at"}


def unread(status: os.stat_result) -> dict[str, object]:
    """Returns all that a file's status says but its time of access, which reading changes."""
    return {name: getattr(status, name) for name in dir(status) if name.startswith("st_") and not name.startswith("st_atime")}


@pytest.mark.parametrize("how", CHANGES)
def test_changes_through_a_copy_s_descriptor_act_on_the_source_or_are_refused(
    place: Place, how: str, request: pytest.FixtureRequest
) -> None:
    if how in ON_THE_COPY:
        request.applymarker(pytest.mark.xfail(strict=True, reason=ON_THE_COPY[how]))
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        (copy,) = place.objects()
        flags = (
            f"import fcntl, array\nflags = array.array('l', [0])\nwith open({str(copy)!r}) as f: fcntl.ioctl(f, 0x80086601, flags)\nflags"
        )
        copy_before, flags_before = (copy.stat(), copy.read_bytes()), worker.do(flags)
        before = everything(path)
        worker.do("fd = os.open(path, os.O_RDONLY)", path=str(path))
        try:
            worker.do(CHANGES[how])
        except OSError:
            assert everything(path) == before
        else:
            assert everything(path) != before
        assert unread(copy.stat()) == unread(copy_before[0])
        assert copy.read_bytes() == copy_before[1]
        assert stat.S_IMODE(copy.stat().st_mode) == 0o400
        assert worker.do(FLAGS, copy=str(copy)) == flags_before
        # The time of access, which is the eighth, is the copy's.
        same = worker.do("all(os.fstat(fd)[n] == os.stat(path)[n] for n in (0, 1, 2, 3, 4, 5, 6, 8))")
        assert same or path.stat().st_size != SIZES["a"]


def test_a_copy_s_descriptor_does_not_change_a_file_that_has_come_in_its_source_s_place(place: Place) -> None:
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        worker.do("fd = os.open(path, os.O_RDONLY)", path=str(path))
        (place.source / "new").write_bytes(b"another file")
        (place.source / "new").rename(path)
        before = everything(path)
        for change in (
            "os.fchmod(fd, 0o777)",
            "open(f'/proc/self/fd/{fd}', 'wb')",
            "os.utime(fd, (1, 1))",
            "os.setxattr(fd, 'user.x', b'x')",
        ):
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                worker.do(change)
        assert everything(path) == before


def test_a_program_that_may_not_write_may_not_write_with_a_copy_there(place: Place) -> None:
    """The copy is owned by the user; the source need not be."""
    place.give_to(NOBODY)
    for path in (place.source / "a", place.source):
        os.chown(path, 0, 0)
    settle(place.source / "a")
    before = everything(place.source / "a")
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        worker.do("fd = os.open(path, os.O_RDONLY)", path=str(place.source / "a"))
        for change in (
            "os.fchmod(fd, 0o777)",
            "open(f'/proc/self/fd/{fd}', 'wb')",
            "open(path, 'wb')",
            "os.unlink(path)",
            "os.utime(fd, (1, 1))",
        ):
            with pytest.raises(PermissionError):
                worker.do(change)
        warm(place, worker, place.source / "a")
    assert everything(place.source / "a") == before


def test_changes_through_the_descriptor_of_a_copy_that_was_dropped(place: Place) -> None:
    path = place.source / "a"
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, path)
        worker.do("fd = os.open(path, os.O_RDONLY)", path=str(path))
        os.utime(path, (1, 1))
        wait_until(lambda: not place.objects(), "the sweep that drops it")
        worker.do("os.fchmod(fd, 0o640)")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
