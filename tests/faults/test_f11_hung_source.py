"""F11: a source that hangs. Only who opens it waits; all else answers; and the agent ends when its runs do."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, needs_bindfs, needs_fuse, needs_root, processes_of, slow_source
from tests.support import Place, Worker, is_copy, read, wait_until, warm

pytestmark = [needs_root, needs_fuse]

# What is not behind the hung source answers within this.
SOON_S = 3.0


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
    asked_at = time.monotonic()
    ask()
    assert time.monotonic() - asked_at < SOON_S


def begins_to_hang(worker: Worker, path: Path) -> None:
    worker.do(READ_BESIDE, path=str(path))
    time.sleep(0.3)
    assert worker.do("beside.is_alive()")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("freshness", ["immutable", "ttl=60"])
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
        worker.do("beside.join(10)")
        assert worker.do("answers") == [CORPUS[fresh]]


def test_f11_commands_answer(place: Place) -> None:
    with slow_source(place) as fs, place.worker(source=fs.mnt) as worker:
        warm(place, worker, fs.mnt / SMALL[0])
        fs.hang()
        begins_to_hang(worker, fs.mnt / SMALL[1])
        # It finds the hung file system by itself, asks it for no longer than its own deadline, and leaves nobody waiting for its output.
        doctor = _command(place, "doctor", seconds=40)
        assert doctor.returncode == 0
        assert str(fs.mnt) in doctor.stdout
        assert _command(place, "config", "show").returncode == 0
        clean = _command(place, "clean", "--tier", str(place.tier))
        assert clean.returncode != 0
        assert "in use" in clean.stdout + clean.stderr
        assert _command(place, "run", "--tier", f"{place.tier}=256M", "--", "true").returncode == 0
        assert worker.do("beside.is_alive()")
        assert len(place.objects()) == 1
        fs.resume()


def _command(place: Place, *words: str, seconds: float = SOON_S) -> subprocess.CompletedProcess[str]:
    words = (str(support.command()), *words)
    return subprocess.run(words, env=place.environment(), capture_output=True, text=True, timeout=seconds, check=False, cwd="/")


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
            time.sleep(0.3)
            for name in SMALL:
                assert read(other, well / name) == CORPUS[name]
            wait_until(lambda: all(is_copy(other, well / name) for name in SMALL), "copies from the source that is well")
            assert place.status()["in_flight"] == 1
            assert read(other, well / BIG) == CORPUS[BIG]
        finally:
            resume()
        worker.do("beside.join(10)")
        assert worker.do("beside.is_alive()") is False
        assert head == CORPUS[BIG][: len(head)]
        assert read(worker, mount / BIG) == CORPUS[BIG]


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
            wait_until(lambda: any("fuse" in stack for stack in stacks(agent)), "a thread of the agent that waits for the source")
            # Neither may be reaped by anybody yet: who has asked a server for something may have to wait for its answer even now.
            os.kill(program, signal.SIGKILL)
            run.kill()
            wait_until(lambda: not place.agents() and not is_running(agent), "the agent's end", seconds=15)
            # The next run need not wait for what is left of it.
            other = place.run("cat", place.source / SMALL[2])
            assert other.out == CORPUS[SMALL[2]]
            assert other.record["agent"]
        finally:
            resume()
        wait_until(lambda: not Path(f"/proc/{agent}").exists(), "nothing is left", seconds=15)


def stacks(pid: int) -> list[str]:
    """Where in the kernel the threads of a process are."""
    return [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stack")]


def is_running(pid: int) -> bool:
    """Whether a process still executes anything; what is left of it may wait for the source."""
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
