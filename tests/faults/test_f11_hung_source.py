"""F11: a source that hangs. Only who opens it waits; all else answers; and the agent ends when its runs do."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import apart
from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, needs_bindfs, needs_fuse, needs_root, processes_of, slow_source
from tests.support import LONG_S, Place, Worker, is_copy, read, wait_until, warm

pytestmark = [needs_root, needs_fuse]

# What is not behind the hung source answers within this, at least once in so many times: a machine may be busy, a wait
# is there each time.
SOON_S = 3.0
TIMES = 10


@contextmanager
def hung_slowfs(place: Place) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A source, and what makes it hang and go on."""
    with slow_source(place) as fs:
        yield fs.mnt, fs.hang, fs.resume


@contextmanager
def stopped_bindfs(place: Place) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """The same, by a server that is stopped."""
    mount = place.root / "mnt"
    mount.mkdir()
    # Nothing is kept by the kernel: each question goes to the server.
    options = "attr_timeout=0,entry_timeout=0,negative_timeout=0"
    with subprocess.Popen(["bindfs", "-f", "-o", options, place.source, mount]) as server:
        try:
            wait_until(lambda: os.path.ismount(mount), "bindfs")
            yield mount, lambda: server.send_signal(signal.SIGSTOP), lambda: server.send_signal(signal.SIGCONT)
        finally:
            server.send_signal(signal.SIGCONT)
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
            server.terminate()


SOURCES = [hung_slowfs, pytest.param(stopped_bindfs, marks=needs_bindfs)]

READ_BESIDE = """
import threading
answers = []
def read_it():
    with open(path, 'rb') as file:
        answers.append(file.read())
beside = threading.Thread(target=read_it, daemon=True)
beside.start()
"""


def answers_soon(ask: Callable[[], object]) -> None:
    """Asks, and holds the answer to its time."""
    took_s = []
    for _ in range(TIMES):
        asked_at = time.monotonic()
        ask()
        took_s.append(time.monotonic() - asked_at)
        if took_s[-1] < SOON_S:
            return
    raise AssertionError(f"no answer soon: {took_s}")


def begins_to_hang(worker: Worker, path: Path) -> None:
    worker.do(READ_BESIDE, path=str(path))
    wait_until(lambda: waits_for_source(worker.do("os.getpid()")), "a thread that waits for the source")
    assert worker.do("beside.is_alive()")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("freshness", ["immutable", "ttl=600"])
def test_f11_only_the_opener_waits(place: Place, source: Callable[[Place], object], freshness: str) -> None:
    copied, fresh = SMALL[:4], SMALL[4]
    with ExitStack() as stack:
        mount, hang, resume = stack.enter_context(source(place))  # type: ignore[arg-type, var-annotated]
        worker = stack.enter_context(place.worker(source=mount, freshness=freshness))
        other = stack.enter_context(place.worker(source=mount, freshness=freshness))
        warm(place, worker, *(mount / name for name in copied))
        hang()
        try:
            begins_to_hang(worker, mount / fresh)
            for name in copied:
                answers_soon(lambda name=name: read(worker, mount / name))  # type: ignore[misc]
                answers_soon(lambda name=name: read(other, mount / name))  # type: ignore[misc]
                assert is_copy(other, mount / name)
            answers_soon(place.status)
            assert worker.do("beside.is_alive()")
        finally:
            resume()
        worker.do(f"beside.join({LONG_S})")
        assert worker.do("answers") == [CORPUS[fresh]]


def test_f11_commands_answer(place: Place) -> None:
    with slow_source(place) as fs, place.worker(source=fs.mnt) as worker:
        warm(place, worker, fs.mnt / SMALL[0])
        fs.hang()
        begins_to_hang(worker, fs.mnt / SMALL[1])
        # It finds the hung file system by itself, asks it for no longer than its own deadline, and leaves nobody
        # waiting for its output.
        doctor = _command(place, "doctor", keep=fs.mnt)
        assert doctor.returncode == 0
        assert str(fs.mnt) in doctor.stdout
        answers_soon(lambda: _command(place, "config", "show").check_returncode())
        clean = _command(place, "clean", "--tier", str(place.tier))
        assert clean.returncode != 0
        assert "in use" in clean.stdout + clean.stderr
        answers_soon(lambda: _command(place, "clean", "--tier", str(place.tier)))
        answers_soon(lambda: _command(place, "run", "--tier", f"{place.tier}=256M", "--", "true", keep=fs.mnt).check_returncode())
        assert worker.do("beside.is_alive()")
        assert len(place.objects()) == 1
        fs.resume()


def _command(place: Place, *words: str, keep: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Types a command. With `keep` this file system is the only one that it may take for a source."""
    words = (*(apart(keep) if keep else ()), str(support.command()), *words)
    return subprocess.run(words, env=place.environment(), capture_output=True, text=True, timeout=LONG_S, check=False, cwd="/")


@pytest.mark.parametrize("source", SOURCES)
def test_f11_copies_from_another_source_go_on(place: Place, source: Callable[[Place], object]) -> None:
    well = place.root / "well"
    shutil.copytree(place.source, well)
    support.settle(well)
    with ExitStack() as stack:
        mount, hang, resume = stack.enter_context(source(place))  # type: ignore[arg-type, var-annotated]
        worker = stack.enter_context(place.worker(source=mount))
        other = stack.enter_context(place.worker(source=well))
        head = begin_big(place, worker, mount)
        hang()
        try:
            # The reader hangs, and so does who copies behind it.
            worker.do(READ_BESIDE.replace("file.read()", "os.pread(held.fileno(), 1 << 20, 0)"), path=str(mount / BIG))
            wait_until(lambda: waits_for_source(worker.do("os.getpid()")), "a reader that hangs")
            for name in SMALL:
                assert read(other, well / name) == CORPUS[name]
            wait_until(lambda: all(is_copy(other, well / name) for name in SMALL), "copies from the source that is well")
            wait_until(lambda: place.status()["in_flight"] <= 1, "the end of all copies but one")
            assert read(other, well / BIG) == CORPUS[BIG]
        finally:
            resume()
        worker.do(f"beside.join({LONG_S})")
        assert worker.do("beside.is_alive()") is False
        assert head == CORPUS[BIG][: len(head)]
        assert read(worker, mount / BIG) == CORPUS[BIG]


def test_f11_a_read_that_hangs_holds_up_no_other_file(place: Place) -> None:
    well = place.root / "well"
    shutil.copytree(place.source, well)
    support.settle(well)
    with hung_slowfs(place) as (mount, hang, resume), place.worker(source=mount) as worker, place.worker(source=well) as other:
        agent = place.agent_pid()
        os.kill(agent, signal.SIGSTOP)
        try:
            # The agent hears of the file only while a read of it moves the offset, and has it locked.
            worker.do("held = open(path, 'rb', buffering=0)", path=str(mount / BIG))
            hang()
            worker.do("import threading; beside = threading.Thread(target=held.read, args=(1 << 20,), daemon=True); beside.start()")
            wait_until(lambda: waits_for_source(worker.do("os.getpid()")), "a reader that hangs")
            os.kill(agent, signal.SIGCONT)
            for name in SMALL:
                assert read(other, well / name) == CORPUS[name]
            wait_until(lambda: all(is_copy(other, well / name) for name in SMALL), "copies from the source that is well")
            assert place.status()["in_flight"] == 1
            assert worker.do("beside.is_alive()")
        finally:
            os.kill(agent, signal.SIGCONT)
            resume()
        worker.do(f"beside.join({LONG_S})")
        assert worker.do("beside.is_alive()") is False


@pytest.mark.parametrize("source", SOURCES)
def test_f11_the_agent_ends_while_the_source_hangs(place: Place, source: Callable[[Place], object]) -> None:
    with ExitStack() as stack:
        mount, hang, resume = stack.enter_context(source(place))  # type: ignore[arg-type, var-annotated]
        words = place.words([place.python, "-E", str(support.WORKER)], place.record_path(), source=mount, freshness="ttl=2")
        pipe = subprocess.PIPE
        run = stack.enter_context(subprocess.Popen(words, env=place.environment(), cwd=place.root, stdin=pipe, stdout=pipe, stderr=pipe))
        worker = Worker(run)
        program = worker.do("os.getpid()")
        warm(place, worker, mount / SMALL[0])
        begin_big(place, worker, mount)
        (agent,) = processes_of(place)
        hang()
        try:
            begins_to_hang(worker, mount / SMALL[1])
            # A sweep that is due: the agent itself waits for the source as well.
            wait_until(lambda: waits_for_source(agent), "a thread of the agent that waits for the source")
            # Neither may be reaped by anybody yet: who has asked a server for something may have to wait for its answer
            # even now.
            os.kill(program, signal.SIGKILL)
            run.kill()
            wait_until(lambda: not place.agents() and not is_running(agent), "the agent's end")
            # The next run need not wait for what is left of it.
            other = place.run("cat", place.source / SMALL[2])
            assert other.out == CORPUS[SMALL[2]]
            assert other.record["agent"]
        finally:
            resume()
        wait_until(lambda: not Path(f"/proc/{agent}").exists(), "nothing is left")


def waits_for_source(pid: int) -> bool:
    """Returns True if, by the kernel's word, a thread of this process waits for the answer of a FUSE server."""
    with suppress(OSError):
        return any("fuse" in stack.read_text() for stack in Path(f"/proc/{pid}/task").glob("*/stack"))
    return False


def is_running(pid: int) -> bool:
    """Returns True if a process still executes anything; its remains may wait for the source."""
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
