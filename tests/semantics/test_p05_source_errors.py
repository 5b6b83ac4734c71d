"""P5: what the source refuses, it refuses with the same errno at the same call, whether a copy was there or not."""

import errno
import sys
from pathlib import Path

import pytest

from testbed.testbed import slowfs
from tests.semantics.tree import content, grow
from tests.support import NOBODY, Place, Worker, read, settle, warm

# What is asked of a tree that is as tree.py has it, and refused.
REFUSED = {
    "a name that is not there": "os.open(root + '/none', 0)",
    "a directory that is not there": "os.open(root + '/none/a', 0)",
    "a file as a directory": "os.open(root + '/a/b', 0)",
    "a slash behind a file": "os.open(root + '/a/', 0)",
    "a dangling link": "os.symlink('none', root + '/dangling'); os.open(root + '/dangling', 0)",
    "a link to itself": "os.symlink('loop', root + '/loop'); os.open(root + '/loop', 0)",
    "a link that must not be followed": "os.open(root + '/to_a', os.O_NOFOLLOW)",
    "a directory for writing": "os.open(root + '/d', os.O_WRONLY)",
    "a file that must be a directory": "os.open(root + '/a', os.O_DIRECTORY)",
    "a file that must be new": "os.open(root + '/a', os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
    "a name that is too long": "os.open(root + '/' + 'n' * 256, 0)",
    "a path that is too long": "os.open(root + '/d/..' * 1024 + '/a', 0)",
    "the empty name": "os.open('', 0)",
    "what a name is that is not there": "os.stat(root + '/none')",
    "what a file is as a directory": "os.stat(root + '/a/b')",
    "what a file is with a slash behind": "os.stat(root + '/a/')",
    "what a link is with a slash behind": "os.lstat(root + '/to_a/')",
    "what a path is that is too long": "os.stat(root + '/d/..' * 1024 + '/a')",
    "what the empty name is": "os.stat('')",
    "an invalid address": "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    "if c.open(None, 0) < 0: raise OSError(ctypes.get_errno(), '')",
    "writing to what is open for reading": "fd = os.open(root + '/a', 0); os.write(fd, b'x')",
    "truncating what is open for reading": "fd = os.open(root + '/a', 0); os.ftruncate(fd, 0)",
    "reading a directory": "fd = os.open(root + '/d', 0); os.read(fd, 1)",
    "removing a directory that is not empty": "os.rmdir(root + '/d')",
    "renaming a directory over a file": "os.rename(root + '/d', root + '/a')",
    "renaming a file over a directory": "os.rename(root + '/a', root + '/d')",
    "renaming away what is not there": "os.rename(root + '/none', root + '/x')",
    "linking to what is there": "os.link(root + '/a', root + '/b')",
    "seeking before the start": "fd = os.open(root + '/a', 0); os.lseek(fd, -1, os.SEEK_SET)",
    "seeking data past the end": "fd = os.open(root + '/a', 0); os.lseek(fd, 10**9, os.SEEK_DATA)",
    "mapping an empty file": "fd = os.open(root + '/empty', 0)\nimport mmap\nmmap.mmap(fd, 10, access=mmap.ACCESS_WRITE)",
    "an attribute that is not there": "fd = os.open(root + '/a', 0); os.getxattr(fd, 'user.none')",
    "no descriptors left": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 4096))\n"
    "try: os.open(root + '/a', 0)\nfinally: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))",
}


def refusal(worker: Worker, code: str, root: Path) -> str:
    try:
        worker.do(code, root=str(root))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except AssertionError as error:
        return str(error)
    return "allowed"


def test_errors_are_those_of_a_plain_run(place: Place) -> None:
    plain_tree = place.root / "plain"
    plain_tree.mkdir()
    grow(plain_tree)
    with place.worker() as served, Worker.started([sys.executable, "-E", place.worker_script]) as plain:
        warm(place, served, place.source / "a", place.source / "d/x", place.source / "empty")
        told = {what: refusal(served, code, place.source) for what, code in REFUSED.items()}
        expected = {what: refusal(plain, code, plain_tree) for what, code in REFUSED.items()}
    assert told == expected
    assert "allowed" not in expected.values()


def test_permission_is_the_source_s_to_give(place: Place) -> None:
    """A user who may not read a file, may not, with a copy in the tier or without."""
    place.give_to(NOBODY)
    settle(place.source)
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, place.source / "a", place.source / "d/x")
        (place.source / "a").chmod(0)
        (place.source / "d").chmod(0)
        worker.do("import time; time.sleep(1)")
        for name in ("a", "d/x", "d"):
            with pytest.raises(PermissionError):
                worker.do("os.open(path, 0)", path=str(place.source / name))
        (place.source / "d").chmod(0o700)
        assert read(worker, place.source / "d/x") == content("d/x")


@pytest.mark.parametrize("errno_name", ["EIO", "ESTALE", "ETIMEDOUT"])
def test_errors_of_a_failing_file_system(place: Place, mnt: Path, errno_name: str) -> None:
    with slowfs(place.source, mnt) as source, place.worker(source=mnt, freshness="immutable") as worker:
        warm(place, worker, mnt / "a")
        for operation in ("open", "read"):
            source.fail(errno_name, operation)
            assert refusal(worker, "Path(root, 'b').read_bytes()", mnt) == errno_name
            assert read(worker, mnt / "a") == content("a"), "what has a copy needs no source"
        source.ok()
        assert read(worker, mnt / "b") == content("b")
