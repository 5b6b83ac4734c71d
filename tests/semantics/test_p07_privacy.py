"""P7: a copy can be read only by the user who could read, and did read, the original."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.semantics.tree import content
from tests.support import NOBODY, Place, as_user, is_copy, read, settle, warm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.mark.parametrize("umask", [0, 0o777])
def test_what_is_kept_is_the_owner_s_alone(place: Place, umask: int) -> None:
    """Whatever the umask, and however open the source is."""
    for name, mode in (("a", 0o777), ("b", 0o644), ("d/x", 0o4755)):
        (place.source / name).chmod(mode)
    settle(place.source)
    before = os.umask(umask)
    try:
        with place.worker() as worker:
            warm(place, worker, place.source / "a", place.source / "b", place.source / "d/x")
            check_all_is_private(place)
    finally:
        os.umask(before)


def check_all_is_private(place: Place) -> None:
    kept = [path for root in (place.tier, place.runtime, place.root / "state") for path in root.rglob("*")]
    assert {path.name for path in kept} >= {"catalogue", "lease", "objects", "control", "index.1"}
    assert [stat.filemode(copy.lstat().st_mode) for copy in place.objects()] == ["-r--------"] * 3
    for path in kept:
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    files = [path for path in kept if path.is_file()]
    assert subprocess.run([*as_user(NOBODY), "env", "cat", *files], capture_output=True, check=False).stdout == b""


# In a child of the worker, which is root: another user, who then opens `path`. What it gets is written to a pipe.
AS_ANOTHER = """
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); {change}
    if {execs}:
        os.dup2(w, 1)
        os.execv('/bin/cat', ['cat', path])
    try:
        with open(path, 'rb') as f: os.write(w, f.read() + os.readlink(f'/proc/self/fd/{{f.fileno()}}').encode())
    except OSError as error:
        os.write(w, str(error.errno).encode())
    os._exit(0)
os.close(w)
got = b''.join(iter(lambda: os.read(r, 65536), b''))
os.close(r); os.waitpid(pid, 0)
got
"""


def one_closed(place: Place) -> tuple[Path, Path]:
    """A file that everybody may read, and one that its owner may."""
    open_to_all, secret = place.source / "a", place.source / "b"
    open_to_all.chmod(0o644)
    secret.chmod(0o600)
    settle(place.source)
    return open_to_all, secret


@pytest.mark.parametrize("change", ["os.setresuid(65534, 65534, 65534)", "os.seteuid(65534)"])
def test_a_child_that_has_become_another_user_reads_the_source_or_is_refused(place: Place, change: str) -> None:
    open_to_all, secret = one_closed(place)
    with place.worker() as worker:
        warm(place, worker, open_to_all, secret)
        code = AS_ANOTHER.format(change=change, execs=False)
        assert worker.do(code, path=str(open_to_all)) == content("a") + os.fsencode(open_to_all)
        assert worker.do(code, path=str(secret)) == b"13"
        assert is_copy(worker, secret)
    counters = worker.end().counters
    assert counters["pass_copy_gone"] == 1, "one was looked up, and could not be opened"
    assert counters["pass_source_changed"] == 1, "the other may not even be read"


def test_a_program_that_another_user_starts_reads_the_source_or_is_refused(place: Place) -> None:
    open_to_all, secret = one_closed(place)
    with place.worker() as worker:
        warm(place, worker, open_to_all, secret)
        code = AS_ANOTHER.format(change="os.setresuid(65534, 65534, 65534)", execs=True)
        assert worker.do(code, path=str(open_to_all)) == content("a")
        assert worker.do(code, path=str(secret)) == b""


def test_two_users_with_one_tier_directory_share_nothing(place: Place) -> None:
    place.tier.chmod(0o1777)
    (place.source / "a").chmod(0o644)
    (place.source / "b").chmod(0o600)
    settle(place.source)
    with place.worker() as root_s:
        warm(place, root_s, place.source / "a", place.source / "b")
    place.stop()
    mine = place.objects()
    place.give_to(NOBODY)
    for path in (place.tier, place.tier / "forebay-0", *(place.tier / "forebay-0").rglob("*")):
        os.chown(path, 0, 0)
    os.chown(place.source / "b", 0, 0)
    settle(place.source)
    with place.worker() as nobody_s:
        status = place.idle()
        assert status["adopted"] == 0
        warm(place, nobody_s, place.source / "a")
        with pytest.raises(PermissionError):
            read(nobody_s, place.source / "b")
    theirs = [path for path in place.objects() if path not in mine]
    assert [path.stat().st_uid for path in theirs] == [NOBODY]
    assert [path.stat().st_uid for path in mine] == [0, 0]
