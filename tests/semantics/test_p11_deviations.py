"""P11: a redirected descriptor has its source's identity.

What differs all the same is listed, and differs as it is listed.
"""

import ctypes
import os
from pathlib import Path

import pytest

from testbed.testbed import slowfs
from tests.semantics.tree import SIZES, content
from tests.support import Place, is_copy, read, settle, warm

SAME = ["st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_blocks", "st_blksize"]
SAY = f"""
def says(stat): return [getattr(stat, field) for field in {SAME!r}]
fd = os.open(path, os.O_RDONLY)
answers = [says(os.fstat(fd)), says(os.stat(path)), says(os.stat(fd))]
os.close(fd)
answers
"""
# The older family of symbols, which programs built on older systems use; and statx.
OLD = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
fd = os.open(path, os.O_RDONLY)
size = 144
def by(call):
    into = ctypes.create_string_buffer(size)
    assert call(into) == 0, ctypes.get_errno()
    # All but the time of access.
    return into.raw[:72] + into.raw[88:120]
c.__fxstat, c.__xstat
answers = [
    by(lambda into: c.__fxstat(1, fd, into)), by(lambda into: c.__fxstat64(1, fd, into)), by(lambda into: c.fstat(fd, into)),
    by(lambda into: c.fstat64(fd, into)), by(lambda into: c.fstatat(fd, b'', into, 0x1000)),
    by(lambda into: c.__fxstatat(1, fd, b'', into, 0x1000)),
    by(lambda into: c.__xstat(1, path.encode(), into)), by(lambda into: c.stat(path.encode(), into)),
]
os.close(fd)
answers
"""
STATX = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
fd = os.open(path, os.O_RDONLY)
def by(dirfd, name, flags):
    into = ctypes.create_string_buffer(256)
    assert c.statx(dirfd, name, flags, 0x7ff, into) == 0, ctypes.get_errno()
    b = into.raw
    # blksize; nlink, uid, gid, mode; ino, size, blocks; ctime, mtime; devices
    return b[4:8], b[16:30], b[32:56], b[96:108], b[112:124], b[136:144]
answers = [by(fd, b'', 0x1000), by(-100, path.encode(), 0)]
os.close(fd)
answers
"""


@pytest.mark.parametrize("how", [SAY, OLD, STATX], ids=["stat", "older stat", "statx"])
def test_a_redirected_descriptor_has_the_source_s_identity(place: Place, how: str) -> None:
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SIZES))
        for name in SIZES:
            answers = worker.do(how, path=str(place.source / name))
            assert all(answer == answers[0] for answer in answers), name
    assert worker.end().hits >= 2 * len(SIZES)


def test_identity_under_another_device(place: Place, mnt: Path) -> None:
    """Device numbers of a FUSE file system, which change with each mount; in this run and in the next one."""
    for adopted in (0, 3):
        with slowfs(place.source, mnt), place.worker(source=mnt) as worker:
            assert place.idle()["adopted"] == adopted
            warm(place, worker, *(mnt / name for name in ("a", "b", "d/x")))
            for name in ("a", "b", "d/x"):
                answers = worker.do(SAY, path=str(mnt / name))
                assert all(answer == answers[0] for answer in answers), name
                assert read(worker, mnt / name) == content(name)
        place.stop()


def test_extended_attributes_are_the_source_s(place: Place) -> None:
    path = place.source / "a"
    try:
        os.setxattr(path, "user.colour", b"green")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    settle(path)
    with place.worker() as worker:
        warm(place, worker, path)
        get = "fd = os.open(path, 0); got = os.listxattr(fd), os.getxattr(fd, 'user.colour'); os.close(fd)\ngot"
        assert worker.do(get, path=str(path)) == (["user.colour"], b"green")


# What differs. Each value: code, and what it gives for a copy's descriptor `fd`; of the source it would be something
# else.
def test_the_name_in_proc_is_the_copy_s(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        assert is_copy(worker, place.source / "a")


def test_the_source_s_time_of_access_stays(place: Place) -> None:
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
        settle(path)
        warm(place, worker, path)
        before = path.stat().st_atime_ns
        read(worker, path)
        assert path.stat().st_atime_ns == before


def test_watchers_of_the_source_see_no_open(place: Place) -> None:
    path = place.source / "a"
    libc = ctypes.CDLL(None)
    with place.worker() as worker:
        warm(place, worker, path)
        place.idle()
        watch = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(watch, os.fsencode(path), 0x21) >= 0
        read(worker, path)
        with pytest.raises(BlockingIOError):
            os.read(watch, 4096)
        os.close(watch)


def test_holes_stay_holes(place: Place) -> None:
    """They may be others than the source's; a copy takes no more room than its source does, and reads the same."""
    path, dense, end = (place.source / name for name in ("holes", "dense", "end"))
    with path.open("wb") as file:
        file.truncate(40 << 20)
        for at in (0, 3 << 20, (20 << 20) + 5, (39 << 20) - 1):
            file.seek(at)
            file.write(b"data" * 1500)
    with end.open("wb") as file:
        file.truncate(1 << 20)
    dense.write_bytes(bytes(1 << 20))
    settle(path, dense, end)
    with place.worker() as worker:
        warm(place, worker, path, dense, end)
        for made in (path, dense, end):
            assert read(worker, made) == made.read_bytes()
        code = "fd = os.open(path, 0)\nos.lseek(fd, 8 << 10, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE), os.fstat(fd).st_blocks"
        # 6,000 bytes lie in two pages.
        assert worker.do(code, path=str(path)) == (3 << 20, 8 << 10, path.stat().st_blocks)
        taken = sorted(file.stat().st_blocks * 512 for file in place.objects() if file.stat().st_size >= 1 << 20)
    assert taken[0] == 0, "all of it is a hole"
    assert taken[1] <= 16 * 4096, "four pieces"
    assert taken[2] >= 1 << 20, "zeros that the source keeps as data are data"


def test_a_descriptor_shows_no_later_change(place: Place) -> None:
    """In place or of its links: a descriptor of a copy is of the version that it was opened on (P2)."""
    path = place.source / "a"
    with place.worker() as worker:
        warm(place, worker, path)
        worker.do("fd = os.open(path, 0); f = open(path, 'r+b'); f.write(b'new'); f.close()", path=str(path))
        assert worker.do("os.pread(fd, 10**6, 0)") == content("a")
        assert path.read_bytes()[:3] == b"new"
        worker.do("os.unlink(path)")
        assert worker.do("os.fstat(fd).st_nlink") == 1


def test_a_copy_is_not_executed(place: Place) -> None:
    """By its name a program runs; by a redirected descriptor (fexecve) it does not."""
    program = place.source / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    settle(program)
    with place.worker() as worker:
        warm(place, worker, program)
        assert worker.do("import subprocess\nsubprocess.run([path]).returncode", path=str(program)) == 0
        code = "pid = os.fork()\nif pid == 0:\n  try: os.execve(os.open(path, 0), ['true'], os.environ)\n"
        code += "  except OSError as e: os._exit(e.errno)\n"
        assert worker.do(code + "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", path=str(program)) == 13
