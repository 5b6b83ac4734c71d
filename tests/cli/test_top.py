"""`forebay top`: what goes on, once as lines or live in a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests import support
from tests.cli.conftest import Desk

ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"


@contextmanager
def running(desk: Desk, then: str = "") -> Iterator[None]:
    """A run that has read ten files twice, opened one for writing, done what else it is told, and goes on."""
    (desk.source / "file").unlink()
    for number in range(10):
        (desk.source / str(number)).write_bytes(bytes(10_000))
    (desk.source / "sub").mkdir()
    support.settle(desk.source)
    warm = desk.type("warm", "--keep", "--source", "source", "--tier", "tier=64M", "--freshness", "immutable", "source")
    assert warm.returncode == 0, warm.stderr
    script = f"cat source/[0-9] > /dev/null; : > source/sub/new; {then or ':'}; echo begun; read -r end"
    with desk.lasting(script, "--freshness", "immutable"):
        yield


def test_there_may_be_no_agent(desk: Desk) -> None:
    done = desk.type("top", "--once")
    assert (done.returncode, done.stdout) == (0, "no agent runs on this node; `forebay run` starts one\n")


def test_once(desk: Desk) -> None:
    with running(desk):
        done = desk.type("top", "--once", "-n", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["1", "run,"]
    assert lines[2][0].endswith(desk.tier.name)
    assert lines[2][1:] == ["10", "0", "97.7", "KiB", "0", "B"]
    # Ten files, and the listings of the two directories; that of the one that was changed since may be gone.
    assert re.search(r"filled: +1[12] copies,", done.stdout), done.stdout
    assert "1 left alone: opened for writing" in done.stdout
    assert "to open a file there" not in done.stdout, "the source was asked for none"


def test_what_an_open_of_the_source_takes(desk: Desk) -> None:
    with running(desk, "cat source/sub/new"):
        done = desk.type("top", "--once", "-n", "0.1")
    lines = done.stdout.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.split()[:2] == ["the", "source"])
    assert lines[at].split()[2:4] == ["1", "0"]
    assert re.fullmatch(r" +to open a file there +median [\d.]+ \w+, 99th percentile [\d.]+ \w+ \(so far\)", lines[at + 1])


class TopRun:
    """`forebay top` in a terminal; it has ended when the block has."""

    def __init__(self, desk: Desk) -> None:
        ours, its = pty.openpty()
        self.fd = ours
        self.drawn = b""
        words = [str(support.command()), "top", "-n", "0.1"]
        # A session of its own whose terminal this becomes: it is told when the terminal is closed.
        in_session = ["setsid", "--ctty", *words]
        self.process = subprocess.Popen(in_session, stdin=its, stdout=its, stderr=its, env=desk.environment)
        os.close(its)

    def __enter__(self) -> "TopRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def expect(self, text: bytes) -> None:
        """Reads until the text comes."""

        def found() -> bool:
            if text not in self.drawn and select.select([self.fd], [], [], 0.1)[0]:
                # Once nobody has the terminal open any more, there is nothing to read from it.
                with suppress(OSError):
                    self.drawn += os.read(self.fd, 65536)
            return text in self.drawn

        support.wait_until(found, f"{text!r}")


@pytest.mark.parametrize("how", ["q", "\x03", "SIGTERM"])
def test_live_until_it_is_ended(desk: Desk, how: str) -> None:
    with running(desk), TopRun(desk) as watched:
        watched.expect(ALTERNATE)
        watched.expect(b"filled:")
        if how == "SIGTERM":
            watched.process.send_signal(signal.SIGTERM)
        else:
            os.write(watched.fd, how.encode())
        watched.expect(NORMAL)
        assert watched.process.wait(support.LONG_S) == 0


def test_it_ends_with_its_terminal(desk: Desk) -> None:
    with running(desk), TopRun(desk) as watched:
        watched.expect(b"filled:")
        watched.close()
        assert watched.process.wait(support.LONG_S) in (0, -signal.SIGHUP)
