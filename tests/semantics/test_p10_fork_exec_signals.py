"""P10: safe in forked children, after exec and in signal handlers.

What a preload library can't cover runs as it would, and is counted.

The stress of these is in tests/preload; here is what a user sees.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.semantics.tree import SIZES, content
from tests.support import Place, warm

STATIC = """
#include <stdio.h>
int main(int n, char **v) { FILE *f = fopen(v[1], "rb"); int c; while ((c = getc(f)) != EOF) putchar(c); return 0; }
"""
# Each ends in what was read, by another process than the worker or at a special moment.
WHEN = {
    "forked": "r, w = os.pipe()\nif os.fork() == 0:\n  os.write(w, Path(path).read_bytes()); os._exit(0)\nos.close(w)\n"
    "got = b''.join(iter(lambda: os.read(r, 65536), b'')); os.wait()\ngot",
    "forked while threads open": "import threading\nstop = threading.Event()\n"
    "def reads():\n  while not stop.is_set(): Path(path).read_bytes()\n"
    "threads = [threading.Thread(target=reads) for _ in range(4)]\n[t.start() for t in threads]\ngot = []\n"
    "for _ in range(50):\n  pid = os.fork()\n  if pid == 0:\n    os._exit(0 if Path(path).read_bytes() == Path(path).read_bytes() else 1)\n"
    "  got.append(os.waitpid(pid, 0)[1])\nstop.set(); [t.join() for t in threads]\nassert got == [0] * 50\nPath(path).read_bytes()",
    "executed": "import subprocess\nsubprocess.run(['cat', path], capture_output=True).stdout",
    "executed in place": "r, w = os.pipe()\nif os.fork() == 0:\n  os.dup2(w, 1); os.execvp('cat', ['cat', path])\nos.close(w)\n"
    "got = b''.join(iter(lambda: os.read(r, 65536), b'')); os.wait()\ngot",
    "spawned": "r, w = os.pipe()\n"
    "os.posix_spawn('/bin/cat', ['cat', path], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, w, 1)])\nos.close(w)\n"
    "got = b''.join(iter(lambda: os.read(r, 65536), b'')); os.wait()\ngot",
    "a shell's grandchild": "import subprocess\nsubprocess.run(['sh', '-c', '(cat \"$1\") | cat', 'sh', path], capture_output=True).stdout",
    "environment cleared": "import subprocess\nsubprocess.run(['cat', path], capture_output=True, env={}).stdout",
    "the library taken out": "import subprocess\nenv = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}\n"
    "subprocess.run(['cat', path], capture_output=True, env=env).stdout",
    "switched off": "import subprocess\nsubprocess.run(['cat', path], capture_output=True, env={**os.environ, 'FOREBAY': 'off'}).stdout",
    "in a signal handler": "import signal, time\ngot = []\nsignal.signal(signal.SIGALRM, lambda *_: got.append(Path(path).read_bytes()))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nuntil = time.monotonic() + 0.5\n"
    "while time.monotonic() < until or len(got) <= 100: got.append(Path(path).read_bytes())\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
    "assert len(got) > 100 and len(set(got)) == 1\ngot[0]",
    "in a thread": "import threading\ngot = []\nt = threading.Thread(target=lambda: got.append(Path(path).read_bytes()))\n"
    "t.start(); t.join()\ngot[0]",
    "at exit": "import subprocess\nsubprocess.run([sys.executable, '-c', 'import atexit, sys\\n"
    'atexit.register(lambda: sys.stdout.buffer.write(open(sys.argv[1], "rb").read()))\', path], capture_output=True).stdout',
}


@pytest.mark.parametrize("when", WHEN)
def test_reads(place: Place, when: str) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "b")
        assert worker.do(WHEN[when], path=str(place.source / "b")) == content("b")


@pytest.mark.parametrize("how", ["exit", "signal"])
def test_the_program_s_end_is_the_command_s(place: Place, how: str) -> None:
    code = {"exit": "import sys; sys.exit(7)", "signal": "import os; os.kill(os.getpid(), 15)"}[how]
    ran = place.run(sys.executable, "-c", code, check=False)
    assert ran.status == {"exit": 7, "signal": -signal.SIGTERM}[how]
    assert ran.record["exit"] == {"exit": {"code": 7}, "signal": {"signal": 15}}[how]


def test_descriptors_of_copies_are_closed_on_exec_as_they_were_asked_to_be(place: Place) -> None:
    code = """
import subprocess
kept = os.open(path, os.O_RDONLY); os.set_inheritable(kept, True)
closed = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True, close_fds=False).stdout.split(), str(kept), str(closed)
"""
    with place.worker() as worker:
        warm(place, worker, place.source / "b")
        there, kept, closed = worker.do(code, path=str(place.source / "b"))
    assert kept in there
    assert closed not in there


def test_no_descriptor_of_ours_stays_in_the_program(place: Place) -> None:
    """Neither after hits nor after handoffs."""
    with place.worker() as worker:
        before = worker.do("sorted(os.listdir('/proc/self/fd'))")
        warm(place, worker, *(place.source / name for name in SIZES))
        assert worker.do("sorted(os.listdir('/proc/self/fd'))") == before


def test_what_can_not_be_covered_runs_untouched_and_is_counted(place: Place, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "static.c"
    source.write_text(STATIC)
    program = place.root / "static"
    subprocess.run(["gcc", "-static", "-o", program, source], check=True)
    for _ in range(2):
        ran = place.run(program, place.source / "b")
        assert ran.out == content("b")
    assert ran.counters["processes"] == 0
    assert [Path(entry["program"]).name for entry in ran.record["not_covered"]] == ["static"]
