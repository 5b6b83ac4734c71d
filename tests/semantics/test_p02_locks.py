"""P2: a descriptor that a program locks becomes the source's.

Each outcome is compared with that of the same calls without Forebay.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import support
from tests.semantics.tree import content
from tests.support import Place, Worker, hold_copy, is_copy, read, warm

# `take(fd, alone)` locks the whole file without waiting, alone or with others; a descriptor for reading may take what
# its kind allows.
KINDS = {
    "flock": "import fcntl\ntake = lambda fd, alone: fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)",
    "fcntl": "import fcntl\ntake = lambda fd, alone: fcntl.lockf(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)",
    "fcntl of a description": "import fcntl, struct\n"
    "take = lambda fd, alone: fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK if alone else fcntl.F_RDLCK, 0, 0, 0, 0))",
    "lockf of C": "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    "def take(fd, alone):\n  if c.lockf(fd, 2, ctypes.c_long(0)): raise OSError(ctypes.get_errno(), '')",
}
# Of two ranks: how each opens the file, and whether it locks it alone.
PAIRS = [("r", True, "r", True), ("r", True, "r", False), ("r", False, "r", False), ("r", False, "r+", True), ("r+", True, "r", False)]
TRY = """
def attempt(alone):
    try: take(fd, alone)
    except OSError as error: return error.errno
    return 0
attempt(alone)
"""


@pytest.fixture
def ranks(place: Place) -> Iterator[list[Worker]]:
    """Two covered ones, and one that runs as it would without Forebay."""
    with ExitStack() as stack:
        covered = [stack.enter_context(place.worker()) for _ in range(2)]
        yield [*covered, stack.enter_context(Worker.started([sys.executable, "-E", support.WORKER]))]


def outcomes(one: Worker, other: Worker, kind: str, path: Path) -> list[object]:
    """Returns the results of two ranks, for each of the pairs."""
    found = []
    for first, first_alone, second, second_alone in PAIRS:
        for rank, mode, alone in ((one, first, first_alone), (other, second, second_alone)):
            rank.do(KINDS[kind])
            # For reading it is a copy's, where there is one.
            rank.do("fd = os.open(path, os.O_RDONLY if mode == 'r' else os.O_RDWR)", path=str(path), mode=mode)
            found.append(rank.do(TRY, alone=alone))
        for rank in (one, other):
            rank.do("os.close(fd)")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_locks_exclude_whom_they_exclude_without_us(place: Place, ranks: list[Worker], kind: str) -> None:
    """Covered ranks each other, and those that are not covered; all start from a copy's descriptor."""
    one, other, outside = ranks
    plain = place.root / "plain"
    plain.write_bytes(content("a"))
    pairs = {place.source / f"locked{number}": pair for number, pair in enumerate([(one, other), (one, outside), (outside, one)])}
    for path in pairs:
        path.write_bytes(content("a"))
    support.settle(place.source)
    warm(place, one, *pairs)
    for path, pair in pairs.items():
        with Worker.started([sys.executable, "-E", support.WORKER]) as without:
            expected = outcomes(without, outside, kind, plain)
        assert outcomes(*pair, kind, path) == expected


def test_what_is_read_under_a_lock_is_the_source_s(place: Place, ranks: list[Worker]) -> None:
    """Offset, flags and number stay, of all descriptors that share them."""
    one, other, _ = ranks
    path = place.source / "a"
    warm(place, one, path)
    hold_copy(one, path, "fd")
    one.do("import fcntl\nos.set_inheritable(fd, True)\ntwin = os.dup(fd)\nos.read(fd, 7)")
    other.do("f = open(path, 'r+b', buffering=0)\nf.write(b'0123456789')", path=str(path))
    assert one.do("os.pread(fd, 10, 0)") == content("a")[:10], "P2: not before it is locked"
    one.do("fcntl.flock(fd, fcntl.LOCK_SH)")
    assert one.do("[os.pread(number, 10, 0) for number in (fd, twin)]") == [b"0123456789"] * 2
    assert one.do("os.readlink(f'/proc/self/fd/{fd}')") == str(path)
    assert one.do("os.lseek(fd, 0, os.SEEK_CUR), os.lseek(twin, 0, os.SEEK_CUR), os.read(twin, 2), os.read(fd, 2)") == (
        7,
        7,
        b"78",
        b"9" + content("a")[10:11],
    )
    assert one.do("os.get_inheritable(fd), os.get_inheritable(twin), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE") == (True, False, 0)
    # What was in the copy's place is shared with no other process.
    ran = one.do("other = os.open(path, 0)\nos.read(other, 3)\nos.lseek(fd, 0, os.SEEK_CUR)", path=str(path))
    assert ran == 11
    one.do("os.close(fd); os.close(twin)")
    assert one.end().counters["locked"] == 1


def test_a_version_that_is_no_longer_there_is_locked_by_its_copy(place: Place, ranks: list[Worker]) -> None:
    """Its name leads to another file by now: as without us, the lock has nothing to do with that one."""
    one, other, outside = ranks
    path = place.source / "a"
    warm(place, one, path)
    for rank in (one, other):
        hold_copy(rank, path, "fd")
        rank.do(KINDS["flock"])
    (place.source / "new").write_bytes(b"another")
    (place.source / "new").rename(path)
    outside.do(KINDS["flock"] + "\nfd = os.open(path, 0)", path=str(path))
    assert [rank.do(TRY, alone=True) for rank in (one, other, outside)] == [0, 11, 0]
    assert one.do("os.pread(fd, 9, 0)") == content("a")[:9]


def test_a_lock_of_a_script_outlives_the_child_that_takes_it(place: Place, ranks: list[Worker]) -> None:
    """`flock 9` locks what the shell has open.

    Such a descriptor stays the copy's, or the lock would end with the child.
    """
    one, *_ = ranks
    path = place.source / "a"
    warm(place, one, path)
    lock = 'exec 9<"$1"; flock --nonblock 9 || exit 3; echo locked; read end'
    code = "import subprocess\nchild = subprocess.Popen(['sh', '-c', lock, 'sh', path], stdin=-1, stdout=-1)\nchild.stdout.readline()"
    assert one.do(code, lock=lock, path=str(path)) == b"locked\n"
    refused = one.do("subprocess.run(['sh', '-c', lock, 'sh', path], stdin=-3, stdout=-1).returncode")
    assert refused == 3
    one.do("child.communicate(b'end')")


def test_a_source_that_can_t_be_opened_any_more_can_t_be_locked(place: Place) -> None:
    """Without us the open descriptor could be: better an error than two ranks that both take themselves to be alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place.give_to(support.NOBODY)
    path = place.source / "a"
    support.settle(path)
    with place.worker() as worker:
        warm(place, worker, path)
        worker.do("import fcntl\nfd = os.open(path, 0)", path=str(path))
        os.chown(path, 0, 0)
        path.chmod(0)
        with pytest.raises(OSError, match=os.strerror(37)):
            worker.do("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)")


def test_a_locked_file_is_not_redirected(place: Place, ranks: list[Worker]) -> None:
    """Nor copied, while anybody has it open."""
    one, other, _ = ranks
    path = place.source / "a"
    warm(place, one, path)
    one.do("import fcntl\nfd = os.open(path, 0)\nfcntl.flock(fd, fcntl.LOCK_SH)", path=str(path))
    for rank in (one, other):
        assert read(rank, path) == content("a")
        assert not is_copy(rank, path)
    place.idle()
    assert not is_copy(other, path)
    done = subprocess.run(["flock", "--nonblock", "--exclusive", path, "true"], check=False)
    assert done.returncode == 1
    assert other.end().counters["pass_tombstoned"] == 3
