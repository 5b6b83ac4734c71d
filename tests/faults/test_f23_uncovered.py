"""F23: programs that the door can't come into run as they would without us."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.preload.door import PROGRAMS, Door

pytest_plugins = ["tests.preload.fixtures"]

TEXT = b"file 1\nfile 2\n"


def read_by(door: Door, program: Path, *before: str) -> tuple[int, bytes]:
    """Returns status and output of a program started by a shell that runs under the preload library."""
    ran = door.run("sh", "-c", '"$@"', "sh", *before, program, "f1", "f2")
    return ran.status, ran.out


def test_f23_static_program(door: Door) -> None:
    assert read_by(door, door.compile("plain", "-static")) == (0, TEXT)


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc here")
@pytest.mark.parametrize("flag", ["-static", "-rdynamic"])
def test_f23_program_of_another_libc(door: Door, flag: str) -> None:
    assert read_by(door, door.compile("plain", flag, compiler="musl-gcc")) == (0, TEXT)


@pytest.mark.skipif(not shutil.which("go"), reason="no Go here")
def test_f23_go_program(door: Door) -> None:
    program = door.place.root / "plain-go"
    subprocess.run(["go", "build", "-o", program, PROGRAMS / "plain.go"], check=True, env={**os.environ, "GO111MODULE": "off"})
    assert read_by(door, program) == (0, TEXT)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_f23_setuid_program_has_no_door(door: Door) -> None:
    # Where a stranger can reach it, as setuid programs are.
    program = Path("/usr/local/bin") / f"forebay-test-setuid-{os.getpid()}"
    shutil.copy(door.compile("maps"), program)
    try:
        program.chmod(0o4755)
        ran = door.run("setpriv", "--reuid=65534", "--clear-groups", program)
        assert (ran.status, ran.out) == (0, b"no door\n")
        assert door.run(door.compile("maps")).out == b"door\n"
    finally:
        program.unlink()


def test_f23_cleared_environment(door: Door) -> None:
    ran = door.run("env", "-i", shutil.which("cat") or "cat", "f1", "f2")
    assert (ran.status, ran.out) == (0, TEXT)
    assert ran.counters["processes"] == 1, "env itself, and no more"


def test_f23_switched_off(door: Door) -> None:
    ran = door.run("sh", "-c", "FOREBAY=off cat f1 f2")
    assert (ran.status, ran.out) == (0, TEXT)
    assert ran.counters["processes"] == 1, "the shell, and no more"
    assert ran.hits == 0


def test_f23_a_library_that_outlives_its_run_does_nothing(door: Door) -> None:
    ran = door.run("sh", "-c", "FOREBAY_RUN=/nowhere cat f1 f2")
    assert (ran.status, ran.out) == (0, TEXT)
