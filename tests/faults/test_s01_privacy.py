"""S1: nobody else can read a copy, whatever the umask and the source's mode."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import CORPUS, SMALL, needs_root
from tests.support import NOBODY, Place, is_copy, warm

pytestmark = needs_root
# A user that is neither root nor the one who tries to read.
OWNER = 12345


@pytest.mark.parametrize("umask", ["000", "022", "277", "777"])
def test_s01_modes_hold_whatever_the_umask(place: Place, umask: str) -> None:
    for name in SMALL:
        (place.source / name).chmod(0o666)
    support.settle(place.source)
    record = place.record_path()
    words = ["sh", "-c", f'umask {umask} && exec "$@"', "sh", *place.words([place.python, "-E", support.WORKER], record)]
    with support.Worker.started(words, environment=place.environment(), cwd=place.root) as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        everything = [path for root in (place.tier, place.runtime, place.root / "state") for path in root.rglob("*")]
        assert len(everything) > len(SMALL)
        for path in everything:
            mode = path.lstat().st_mode
            allowed = 0o700 if stat.S_ISDIR(mode) else 0o600
            assert not stat.S_ISLNK(mode)
            # A socket's mode says nothing: its directory is closed.
            assert stat.S_ISSOCK(mode) or stat.S_IMODE(mode) & ~allowed == 0, path
        assert {stat.S_IMODE(copy.stat().st_mode) for copy in place.objects()} == {0o400}


def test_s01_nobody_else_reads_a_copy_nor_speaks_to_the_agent(place: Place) -> None:
    place.give_to(OWNER)
    for name in SMALL:
        # Readable by its owner alone.
        (place.source / name).chmod(0o400)
    support.settle(place.source)
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        assert is_copy(worker, place.source / SMALL[0])
        attempts = [*place.objects(), *place.tier.glob("forebay-*/catalogue"), *place.runtime.glob("*/*"), place.root / "state/secret"]
        assert len(attempts) > len(SMALL) + 5
        for path in attempts:
            read = subprocess.run([*support.as_user(NOBODY), "cat", path], capture_output=True, check=False)
            assert read.returncode != 0, path
            assert b"Permission denied" in read.stderr
        (control,) = place.runtime.glob("*/control.sock")
        speak = "import socket, sys\nsocket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
        said = subprocess.run(
            [*support.as_user(NOBODY), support.python_for(NOBODY), "-E", "-c", speak, control], capture_output=True, text=True, check=False
        )
        assert "PermissionError" in said.stderr


def test_s01_a_run_of_another_user_makes_copies_of_its_own(place: Place) -> None:
    for path in (place.root, place.tier):
        path.chmod(0o1777)
    secret = place.source / SMALL[0]
    secret.chmod(0o600)
    support.settle(place.source)
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
    place.stop()
    before = place.objects()
    # The same tier directory, another user: may read all but one.
    runtime, state = place.root / "theirs", place.root / "their-state"
    for directory in (runtime, state):
        directory.mkdir(mode=0o700)
        os.chown(directory, OWNER, OWNER)
    environment = {**place.environment(), "FOREBAY_RUNTIME_DIR": str(runtime), "FOREBAY_STATE_DIR": str(state)}
    theirs, place.command = support.as_user(OWNER), support.visible_command(place.root)
    record = Path("/dev/null")
    read = 'cat "$0"; cat "$1"'
    words = [*theirs, *place.words(["sh", "-c", read, str(secret), str(place.source / SMALL[1])], record)]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, cwd="/")
    assert done.stdout == CORPUS[SMALL[1]], done.stderr
    assert b"Permission denied" in done.stderr
    assert (place.tier / f"forebay-{OWNER}").stat().st_uid == OWNER
    assert [copy for copy in place.objects() if "forebay-0" in str(copy)] == before
