"""Attributes through a redirected descriptor are the source's (promise P6)."""

import os
import shutil
import subprocess

import pytest

from tests import support
from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]

SCRIPT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
fd = copy("f1")
def same():
    one, two = os.fstat(fd), os.stat("f1")
    for name in ["st_dev", "st_ino", "st_mode", "st_uid", "st_gid", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns"]:
        assert getattr(one, name) == getattr(two, name), (name, one, two)
def untouched():
    status = os.stat(os.readlink(f"/proc/self/fd/{fd}"))
    assert (status.st_mode, status.st_uid, status.st_mtime_ns) == before, status
status = os.stat(os.readlink(f"/proc/self/fd/{fd}"))
before = (status.st_mode, status.st_uid, status.st_mtime_ns)
same()
{change}
same(), untouched()
"""

CHANGES = {
    "fchmod": "os.fchmod(fd, 0o640); assert os.stat('f1').st_mode == 0o100640",
    "futimens": "os.utime(fd, ns=(5, 7)); assert os.stat('f1').st_mtime_ns == 7",
    "futimes": "times = (ctypes.c_long * 4)(3, 4, 5, 6); libc.futimes(fd, times); assert os.stat('f1').st_mtime_ns == 5000006000",
    "chmod by /proc": "os.chmod(f'/proc/self/fd/{fd}', 0o604); assert os.stat('f1').st_mode == 0o100604",
    "utime by /proc": "os.utime(f'/proc/self/fd/{fd}', ns=(5, 9)); assert os.stat('f1').st_mtime_ns == 9",
    "chmod by name": "os.chmod('f1', 0o606)",
    "utime by name": "os.utime('f1', ns=(5, 11))",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_reaches_the_source_and_not_the_copy(own_covered: CoveredSource, change: str) -> None:
    own_covered.python(SCRIPT.replace("{change}", change.replace("; ", "\n")))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("call", ["os.fchown(fd, 12, 34)", "assert libc.fchownat(fd, b'', 12, 34, 0x1000) == 0", "os.chown('f1', 12, 34)"])
def test_the_owner_is_the_sources(own_covered: CoveredSource, call: str) -> None:
    own_covered.python(SCRIPT.replace("{change}", f"{call}\nassert (os.stat('f1').st_uid, os.stat('f1').st_gid) == (12, 34)"))


def test_extended_attributes_are_the_sources(own_covered: CoveredSource) -> None:
    name = own_covered.source / "f1"
    try:
        os.setxattr(name, "user.colour", b"red")
    except OSError:
        pytest.skip("no extended attributes here")
    script = """
assert os.listxattr(fd) == os.listxattr("f1") and os.getxattr(fd, "user.colour") == b"red"
os.setxattr(fd, "user.shape", b"round")
assert os.getxattr("f1", "user.shape") == b"round"
os.removexattr(fd, "user.colour")
assert os.listxattr("f1") == ["user.shape"] == os.listxattr(fd)
try:
    os.getxattr(fd, "user.colour")
    sys.exit("still there")
except OSError as error:
    assert error.errno == 61
"""
    support.settle(name)
    own_covered.python(SCRIPT.replace("{change}", script), freshness="on_open")


def test_a_source_that_is_gone_is_stale(own_covered: CoveredSource) -> None:
    script = """
fd = copy("f1")
os.unlink("f1")
try:
    os.fchmod(fd, 0o600)
    sys.exit("changed")
except OSError as error:
    assert error.errno == 116, error
"""
    own_covered.python(script)


# How cp is told, and what its open counts as: -a does not follow links, and no copy answers an open that does not.
COPYING = {"-a": {"pass_flags": 1, "source_opens": 0, "hits": 0}, "--preserve=all": {"pass_flags": 0, "source_opens": 1, "hits": 1}}


@pytest.mark.skipif(not shutil.which("setfattr"), reason="no setfattr here")
@pytest.mark.parametrize("option", COPYING)
def test_cp_keeps_extended_attributes(own_covered: CoveredSource, option: str) -> None:
    try:
        os.setxattr(own_covered.source / "f1", "user.colour", b"red")
    except OSError:
        pytest.skip("no extended attributes here")
    support.settle(own_covered.source / "f1")
    # Setting the attribute has changed the file: it is copied once more.
    own_covered.python("os.close(copy('f1'))", freshness="on_open", keep="yes")
    plain, copied = own_covered.place.root / "plain", own_covered.place.root / "copied"
    subprocess.run(["cp", option, own_covered.source / "f1", plain], check=True)
    ran = own_covered.run("cp", option, "f1", copied, check=True, freshness="on_open")
    assert ran.counters["processes"] == 1, "cp is covered"
    assert {name: (ran.counters | {"hits": ran.hits})[name] for name in COPYING[option]} == COPYING[option]
    for path in (plain, copied):
        assert os.getxattr(path, "user.colour") == b"red"
    assert copied.read_bytes() == plain.read_bytes()
    of = [(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns) for status in (plain.stat(), copied.stat())]
    assert of[0] == of[1]
