"""`forebay clean`: gives all space back, and touches nothing that is in use or not ours."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk


@pytest.fixture
def filled(desk: Desk) -> Desk:
    """A desk after a run that has copied ten files of 10,000 bytes."""
    (desk.source / "file").unlink()
    for number in range(10):
        (desk.source / str(number)).write_bytes(bytes(10_000))
    support.settle(desk.source)
    done = desk.run("--", "sh", "-c", 'cat source/*; "$0" -E "$1"', sys.executable, support.IDLE)
    assert len(done.stdout) == 100_000, done.stderr
    assert desk.records()[-1]["agent"]["files_copied"] == 10
    support.wait_until(lambda: not support.is_held(desk.runtime, desk.tier), "the agent's end")
    return desk


def root_of(desk: Desk) -> Path:
    return desk.tier / f"forebay-{os.geteuid()}"


def test_p9_everything_is_given_back(filled: Desk) -> None:
    assert root_of(filled).exists()
    done = filled.type("clean", "--tier", "tier")
    assert (done.returncode, done.stderr) == (0, "")
    # And a listing.
    assert done.stdout == f"{root_of(filled)}: 11 copies removed, 98.0 KiB freed\n"
    assert not list(filled.tier.iterdir())
    assert len(list(filled.source.iterdir())) == 10


def test_without_options_every_tier_of_earlier_runs_is_found(filled: Desk) -> None:
    done = filled.type("clean")
    assert f"{root_of(filled)}: 11 copies removed" in done.stdout
    assert not list(filled.tier.iterdir())
    assert not filled.runtime.exists(), "nor is anything left beside the sockets"


def test_there_may_be_nothing_to_clean(desk: Desk) -> None:
    done = desk.type("clean", "--tier", "tier=64M")
    assert done.returncode == 0
    assert "nothing to clean" in done.stdout


def test_what_is_in_use_is_left_alone(filled: Desk) -> None:
    with filled.lasting("echo begun; read line; cat source/*", "--freshness", "immutable") as said:
        # By now it has taken over what the earlier run left.
        subprocess.run([sys.executable, support.IDLE], env=filled.environment, check=True)
        for again in range(2):
            done = filled.type("clean", *(["--tier", "tier"] if again else []))
            assert done.returncode == 1
            assert f"{root_of(filled)}: in use" in done.stdout
    assert len(said[0]) == 100_000
    assert filled.records()[-1]["tiers"][0]["opens"] == 10
    assert filled.type("clean").returncode == 0


def test_a_kept_agent_is_ended(filled: Desk) -> None:
    filled.run("-q", "--keep", "--", "true")
    (socket,) = filled.runtime.glob("*/control.sock")
    assert socket.exists()
    done = filled.type("clean")
    assert done.returncode == 0
    assert "11 copies removed" in done.stdout
    assert not filled.runtime.exists()


def test_s10_what_an_agent_left_that_was_killed(filled: Desk) -> None:
    filled.run("-q", "--keep", "--", "true")
    (control,) = filled.runtime.glob("*/control.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(control))
        agent = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    os.kill(agent, signal.SIGKILL)
    support.wait_until(lambda: not support.is_held(filled.runtime, filled.tier), "its end")
    done = filled.type("clean")
    assert done.returncode == 0, done.stdout
    assert "11 copies removed" in done.stdout
    assert not filled.runtime.exists()


def test_s10_what_is_not_ours_is_left_and_told(filled: Desk) -> None:
    precious = filled.root / "precious"
    precious.write_text("mine")
    (root_of(filled) / "objects" / "00").mkdir(exist_ok=True)
    (root_of(filled) / "objects/00/link").symlink_to(precious)
    (root_of(filled) / "notes").write_text("mine, too")
    done = filled.type("clean", "--tier", "tier")
    assert done.returncode == 1
    assert "not ours" in done.stdout
    assert precious.read_text() == "mine"
    assert (root_of(filled) / "notes").read_text() == "mine, too"
    (root_of(filled) / "notes").unlink()
    (root_of(filled) / "objects/00/link").unlink()
    assert filled.type("clean", "--tier", "tier").returncode == 0
    assert not root_of(filled).exists()


def test_s2_a_tier_that_is_a_link_is_not_followed(desk: Desk) -> None:
    victim = desk.root / "victim"
    victim.mkdir(mode=0o700)
    (victim / "lease").write_text("precious")
    root_of(desk).symlink_to(victim)
    done = desk.type("clean", "--tier", "tier")
    assert done.returncode == 1
    assert "link" in done.stdout
    assert (victim / "lease").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a tier of another user")
def test_s10_a_tier_of_another_user_is_left(filled: Desk) -> None:
    filled.tier.chmod(0o1777)
    done = filled.type("clean", "--tier", "tier", uid=support.NOBODY, env={"HOME": "/nonexistent", "FOREBAY_RUNTIME_DIR": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    assert "nothing to clean" in done.stdout
    assert len(list(root_of(filled).rglob("objects/*/*"))) == 11


def test_a_directory_that_is_not_there_is_refused(desk: Desk) -> None:
    assert "nowhere" in desk.refuse("clean", "--tier", "nowhere")
