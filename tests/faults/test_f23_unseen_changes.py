"""F23: what a program that the preload library can't come into has written is read once it has ended."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.preload.covered import PROGRAMS, CoveredSource

pytest_plugins = ["tests.preload.fixtures"]

WAYS = [
    *("spawn", "vfork", "execl", "execlp", "execle", "execvp", "fexecve", "shell", "clear", "system", "popen", "ignored"),
    *("wait", "wait3", "wait4", "waitid", "waitpid"),
]
TTL = "ttl=600"

# Each way has a file of its own, for which a copy answers before.
IN_EACH_WAY = """
import subprocess
children, overwrite, *ways = sys.argv[1:]
for number, way in enumerate(ways):
    name = f"f{number}"
    os.close(copy(name))
    done = subprocess.run([children, way, overwrite, name, f"{way} {number}!".replace(" ", "-")], capture_output=True, text=True)
    print(way, done.returncode, repr(done.stdout), repr(open(name).read()))
"""

# Children that are covered to their end, or change nothing: copies go on answering.
COVERED = """
import subprocess
first = copy("f1")
subprocess.run(["cat", "f2"], check=True)
subprocess.run(["sh", "-c", "cat f2; exec cat f2"], check=True)
assert subprocess.run(["cat", "no such file"], stderr=subprocess.DEVNULL).returncode == 1
try:
    subprocess.run(["/no/such/program"])
except FileNotFoundError:
    pass
for _ in range(3):
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
assert is_copy(os.open("f1", os.O_RDONLY))
"""

# What is listed, and answered by name, has a copy before a static tool changes it.
NAMES = """
import subprocess
overwrite, = sys.argv[1:]
for _ in range(3):
    os.listdir("deep")
    os.close(copy("deep/file"))
    os.stat("deep/file")
subprocess.run([overwrite, "deep/more", "more"], check=True)
subprocess.run([overwrite, "deep/file", "longer than before"], check=True)
print(sorted(os.listdir("deep")), os.stat("deep/file").st_size, open("deep/file").read())
"""


def expected(way: str, number: int) -> str:
    text = f"{way}-{number}!"
    return f"{way} 0 {f'file {number}' + chr(10) + text!r} {text!r}"


def test_f23_what_an_uncovered_child_wrote_is_read(own_covered: CoveredSource) -> None:
    words = (str(own_covered.compile("children")), str(own_covered.compile("overwrite", "-static")), *WAYS)
    ran = own_covered.python(IN_EACH_WAY, *words, freshness=TTL)
    assert ran.out.decode().splitlines() == [expected(way, number) for number, way in enumerate(WAYS)]
    assert ran.counters["uncovered_ends"] >= len(WAYS)


def test_f23_children_that_are_covered_cost_nothing(own_covered: CoveredSource) -> None:
    """Through a shared covered an uncovered child of another test would make copies stale."""
    ran = own_covered.python(COVERED, freshness=TTL)
    assert ran.counters["uncovered_ends"] == 0
    assert ran.counters["pass_stale"] == 0


def test_f23_names_that_an_uncovered_child_made_are_listed(own_covered: CoveredSource) -> None:
    overwrite = str(own_covered.compile("overwrite", "-static"))
    ran = own_covered.python(NAMES, overwrite, freshness=TTL)
    assert ran.out == b"['file', 'more'] 18 longer than before\n"


@pytest.mark.skipif(not shutil.which("go"), reason="no Go here")
def test_f23_what_a_go_program_with_libc_wrote_is_read(own_covered: CoveredSource) -> None:
    program = Path(own_covered.place.root) / "overwrite-go"
    environment = {**os.environ, "GO111MODULE": "off", "CGO_ENABLED": "1"}
    subprocess.run(["go", "build", "-o", program, PROGRAMS / "overwrite.go"], check=True, env=environment)
    ran = own_covered.python(IN_EACH_WAY, str(own_covered.compile("children")), str(program), "waitpid", freshness=TTL)
    assert ran.out.decode().splitlines() == [expected("waitpid", 0)]
