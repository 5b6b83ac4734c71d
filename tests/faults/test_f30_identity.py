"""F30: a redirected descriptor and its name are one file to whoever compares them."""

import os
from pathlib import Path

import pytest

from tests import support
from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]

# All that a stat says but the time of the last access, which is a listed deviation.
ALIKE = """
def alike(one, two):
    names = [name for name in dir(one) if name.startswith("st_") and not name.startswith("st_atime")]
    return all(getattr(one, name) == getattr(two, name) for name in names)
"""


def test_f30_every_kind_of_stat_agrees(covered: CoveredSource) -> None:
    ran = covered.program("identity")
    assert ran.hits >= 2
    assert ran.counters["stats_saved"] == int(ran.out) > 0


@pytest.mark.parametrize("words", [["cp"], ["cp", "-a"], ["install", "-m", "600"]])
def test_f30_files_are_copied(covered: CoveredSource, tmp_path: Path, words: list[str]) -> None:
    target = tmp_path / "target"
    ran = covered.run(*words, "f1", target)
    assert ran.status == 0, ran.err.decode()
    assert b"replaced while being copied" not in ran.err
    assert target.read_text() == "file 1\n"
    if words == ["cp", "-a"]:
        source = (covered.source / "f1").stat()
        assert (target.stat().st_mtime_ns, target.stat().st_mode) == (source.st_mtime_ns, source.st_mode)


def test_f30_a_file_is_moved_to_another_device(own_covered: CoveredSource) -> None:
    target = own_covered.tier / "moved"
    ran = own_covered.run("sh", "-c", "cat f1 && mv f1 $0 && ! cat f1", target)
    assert ran.status == 0
    assert target.read_text() == "file 1\n"
    assert not (own_covered.source / "f1").exists()


def test_f30_python_sees_one_file(covered: CoveredSource) -> None:
    script = (
        ALIKE
        + """
import shutil
fd = copy("f1")
assert alike(os.fstat(fd), os.stat("f1"))
assert os.path.sameopenfile(fd, os.open("f1", os.O_RDONLY | os.O_NOFOLLOW))
shutil.copy2("f1", TIER + "/copied")
assert os.stat(TIER + "/copied").st_mtime_ns == os.stat("f1").st_mtime_ns
"""
    )
    covered.python(script)


def test_f30_a_descriptor_that_is_inherited_or_sent(covered: CoveredSource) -> None:
    script = (
        ALIKE
        + """
import subprocess, socket
fd = copy("f1")
show = "import os; s = os.fstat(0); print(s.st_dev, s.st_ino, oct(s.st_mode))"
want = os.stat("f1")
out = subprocess.run([sys.executable, "-c", show], stdin=fd, capture_output=True, text=True, check=True).stdout
assert out == f"{want.st_dev} {want.st_ino} {oct(want.st_mode)}\\n", out
one, two = socket.socketpair()
socket.send_fds(one, [b"x"], [fd])
assert alike(os.fstat(socket.recv_fds(two, 1, 1)[1][0]), want)
"""
    )
    covered.python(script)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_f30_owner_and_mode_are_the_sources(own_covered: CoveredSource) -> None:
    (own_covered.source / "f1").chmod(0o640)
    os.chown(own_covered.source / "f1", 1234, 2345)
    script = (
        ALIKE
        + """
fd = copy("f1")
status = os.fstat(fd)
assert (status.st_mode, status.st_uid, status.st_gid) == (0o100640, 1234, 2345), status
assert alike(status, os.stat("f1"))
"""
    )
    support.settle(own_covered.source)
    own_covered.python(script, freshness="on_open")
