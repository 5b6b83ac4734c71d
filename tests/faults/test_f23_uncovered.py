"""F23: programs that the preload library can't come into run as they would without us."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.preload.covered import PROGRAMS, CoveredSource

pytest_plugins = ["tests.preload.fixtures"]

TEXT = b"file 1\nfile 2\n"


def read_by(covered: CoveredSource, program: Path, *before: str) -> tuple[int, bytes]:
    """Returns status and output of a program started by a shell that runs under the preload library."""
    ran = covered.run("sh", "-c", '"$@"', "sh", *before, program, "f1", "f2")
    return ran.status, ran.out


def test_f23_static_program(covered: CoveredSource) -> None:
    assert read_by(covered, covered.compile("plain", "-static")) == (0, TEXT)


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc here")
@pytest.mark.parametrize("flag", ["-static", "-rdynamic"])
def test_f23_program_of_another_libc(covered: CoveredSource, flag: str) -> None:
    assert read_by(covered, covered.compile("plain", flag, compiler="musl-gcc")) == (0, TEXT)


@pytest.mark.skipif(not shutil.which("go"), reason="no Go here")
def test_f23_go_program(covered: CoveredSource) -> None:
    program = covered.place.root / "plain-go"
    subprocess.run(["go", "build", "-o", program, PROGRAMS / "plain.go"], check=True, env={**os.environ, "GO111MODULE": "off"})
    assert read_by(covered, program) == (0, TEXT)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_f23_setuid_program_is_not_covered(covered: CoveredSource) -> None:
    # Where a stranger can reach it, as setuid programs are.
    program = Path("/usr/local/bin") / f"forebay-test-setuid-{os.getpid()}"
    shutil.copy(covered.compile("maps"), program)
    try:
        program.chmod(0o4755)
        ran = covered.run("setpriv", "--reuid=65534", "--clear-groups", program)
        assert (ran.status, ran.out) == (0, b"not covered\n")
        assert covered.run(covered.compile("maps")).out == b"covered\n"
    finally:
        program.unlink()


def test_f23_cleared_environment(covered: CoveredSource) -> None:
    ran = covered.run("env", "-i", shutil.which("cat") or "cat", "f1", "f2")
    assert (ran.status, ran.out) == (0, TEXT)
    assert ran.counters["processes"] == 1, "env itself, and no more"


def test_f23_switched_off(covered: CoveredSource) -> None:
    ran = covered.run("sh", "-c", "FOREBAY=off cat f1 f2")
    assert (ran.status, ran.out) == (0, TEXT)
    assert ran.counters["processes"] == 1, "the shell, and no more"
    assert ran.hits == 0


def test_f23_a_library_that_outlives_its_run_does_nothing(covered: CoveredSource) -> None:
    ran = covered.run("sh", "-c", "FOREBAY_RUN=/nowhere cat f1 f2")
    assert (ran.status, ran.out) == (0, TEXT)
