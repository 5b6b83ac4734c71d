"""How faults are brought about: injected system calls, small and broken file systems, a source that hangs."""

import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed import memory
from testbed.memory import memory_groups
from testbed.testbed import SlowFs, have_fuse, slowfs
from tests import support
from tests.support import LONG_S, Place, Ran, Word, Worker, chill, in_a_file, mounted, wait_until

# What every source holds when a test begins.
CORPUS: dict[str, bytes] = {f"a{n:02}": random.Random(n).randbytes(20_000 + 1_111 * n) for n in range(12)}  # noqa: S311
# Longer than what is copied as soon as its reader begins: its copy is made in the reader's wake.
BIG = "big"
CORPUS[BIG] = random.Random(BIG).randbytes(1 << 20)  # noqa: S311
SMALL = sorted(set(CORPUS) - {BIG})

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
needs_fuse = pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or "")


needs_memory_groups = pytest.mark.skipif(memory_groups() is None, reason="needs root, and control groups of memory")
needs_bindfs = pytest.mark.skipif(shutil.which("bindfs") is None, reason="needs bindfs")


def memory_limit(place: Place, mebibytes: int) -> AbstractContextManager[Path]:
    """A control group of that much memory."""
    return memory.memory_limit(place.root.name, mebibytes << 20)


def is_gone(pid: int) -> bool:
    """Returns True if a process has ended. (Its parent may not have looked yet.)"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def grow(source: Path) -> None:
    """Fills a source."""
    for name, content in CORPUS.items():
        (source / name).write_bytes(content)


def _has_part_of_big(place: Place) -> bool:
    with suppress(FileNotFoundError):
        contents = (copy.read_bytes() for copy in place.objects())
        return any(content and content != CORPUS[BIG] and CORPUS[BIG].startswith(content) for content in contents)
    return False


def begin_big(place: Place, worker: Worker, source: Path | None = None) -> bytes:
    """Has the worker read the first part of BIG, as `held`, so that its copy is begun and can't be ended."""
    path = (source or place.source) / BIG
    chill(path)
    code = "held = open(path, 'rb', buffering=0)\nos.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_RANDOM)\nheld.read(300_000)"
    head: bytes = worker.do(code, path=str(path))
    wait_until(lambda: _has_part_of_big(place), "a copy that is begun")
    return head


def end_big(worker: Worker) -> bytes:
    """Has the worker read the rest of `held`."""
    rest: bytes = worker.do("rest = b''\nwhile piece := held.read(100_000): rest += piece\nrest")
    return rest


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def total(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's counters for a run that has ended."""
    agent: dict[str, Any] = record["agent"]
    assert agent, "the agent was gone before the program's end"
    return agent


def not_copied(place: Place, reason: str) -> int:
    """Returns the number of handoffs that came to nothing for this reason."""
    count: int = place.status()["not_copied"].get(reason, 0)
    return count


def wait_for_reason(place: Place, reason: str) -> int:
    """Waits until a handoff has come to nothing for this reason."""
    return wait_until(lambda: not_copied(place, reason), f"{reason}, not {place.status()['not_copied']}")


def command_words(place: Place, program: Sequence[Word], record: Path, tiers: Sequence[str], *options: str) -> list[str]:
    """The command line of a run with several tiers, or none."""
    words = [str(support.command()), "run", "--source", str(place.source), "--freshness", place.freshness, "--record", str(record)]
    for tier in tiers:
        words += ["--tier", tier]
    return support.as_user(place.uid) + words + [*options, "--"] + [os.fsdecode(word) for word in program]


@contextmanager
def worker_with(place: Place, tiers: Sequence[str], *options: str, before: Sequence[str] = ()) -> Iterator[Worker]:
    """A worker in a run with these tiers; `before` stands before the command."""
    record = place.record_path()
    words = [*before, *command_words(place, [sys.executable, "-E", support.WORKER], record, tiers, *options)]
    with Worker.started(words, environment=place.environment(), cwd=place.root, record=record) as worker:
        yield worker


def another_boot(place: Place) -> list[str]:
    """Returns the words to put before a command so that the machine seems to have been rebooted."""
    boot_id = place.root / "boot_id"
    boot_id.write_text("12345678-9abc-def0-1234-56789abcdef0\n")
    cover = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", cover, str(boot_id)]


# Reads files and says, for each, its digest (or the errno) and whether a copy answered. Any number of rounds.
READER = """
import hashlib, json, os, sys
told = []
for round in range(int(sys.argv[1])):
    for path in sys.argv[2:]:
        try:
            with open(path, "rb") as file:
                link = os.readlink(f"/proc/self/fd/{file.fileno()}")
                told.append([hashlib.sha256(file.read()).hexdigest(), "/objects/" in link])
        except OSError as error:
            told.append([error.errno, False])
print(json.dumps(told))
"""


@dataclass(frozen=True)
class ReaderRun:
    """The reader's findings."""

    ran: Ran
    answers: list[tuple[str | int, bool]]

    @property
    def from_tier(self) -> int:
        return sum(1 for _, is_copy in self.answers if is_copy)


def read_all(place: Place, *names: str, rounds: int = 1, check: bool = True, **asked: Any) -> ReaderRun:
    """Reads files of the corpus in a run of its own; every byte must be right."""
    names = names or tuple(CORPUS)
    source = asked.get("source") or place.source
    ran = place.run(sys.executable, "-E", "-c", READER, str(rounds), *(source / name for name in names), **asked)
    reading = ReaderRun(ran, [(said, is_copy) for said, is_copy in json.loads(ran.out)])
    if check:
        assert [said for said, _ in reading.answers] == [digest(CORPUS[name]) for name in names] * rounds
    return reading


def read_adopted(place: Place, *names: str, **asked: Any) -> ReaderRun:
    """The same, after an agent has taken over what earlier runs left, and none stands any more afterwards."""
    with place.adopted():
        reading = read_all(place, *names, **asked)
    place.stop()
    return reading


def fill(place: Place, *names: str, **asked: Any) -> None:
    """Leaves copies of these files (all, if none is named) in the tier, and no agent."""
    names = names or tuple(CORPUS)
    with place.worker(**asked) as worker:
        support.warm(place, worker, *(place.source / name for name in names))
    place.stop()


def processes_of(place: Place) -> list[int]:
    """Agents of this place, found by their command line and environment, whatever state they are in."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            own = f"FOREBAY_RUNTIME_DIR={place.runtime}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if own and words[1:2] == [b"agent"] and Path(os.fsdecode(words[0])).name == "forebay":
                found.append(int(entry.name))
    return found


# Reads files over and over in a thread of the worker, and notes every answer that is wrong.
READING_ON = """
import hashlib, threading
wrong, rounds, stop = [], 0, threading.Event()
def read_on():
    global rounds
    while not stop.is_set():
        for path, digest in wanted.items():
            try:
                with open(path, "rb") as file:
                    if hashlib.sha256(file.read()).hexdigest() != digest:
                        wrong.append(path)
            except OSError as error:
                wrong.append(f"{path}: {error}")
        rounds += 1
reading_on = threading.Thread(target=read_on)
reading_on.start()
"""


@contextmanager
def reading_on(place: Place, worker: Worker, *names: str, excused: int = 0) -> Iterator[None]:
    """Meanwhile the worker reads these files all the time, and each byte is right each time.

    A device that breaks down fails reads of copies that are open at that moment (P4): so many of those are excused.
    """
    worker.do(READING_ON, wanted={str(place.source / name): digest(CORPUS[name]) for name in names})
    rounds = worker.do("rounds")
    try:
        yield
        wait_until(lambda: worker.do("rounds") >= rounds + 3, "reading goes on")
    finally:
        wrong = worker.do("stop.set()\nreading_on.join()\nwrong")
    assert len([line for line in wrong if "Input/output error" in line]) <= excused, wrong
    assert all("Input/output error" in line for line in wrong), wrong


@dataclass
class Trace:
    """A strace that injects."""

    log: Path

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def injected(self) -> int:
        """Returns the number of system calls that were made to fail."""
        return sum("(INJECTED)" in line for line in self.lines())


@contextmanager
def traced(place: Place, pid: int, *words: str) -> Iterator[Trace]:
    """Attaches strace to a process and all its threads."""
    log = place.root / f"strace.{pid}.{time.monotonic_ns()}"
    with subprocess.Popen(["strace", "-f", "-o", log, *words, "-p", str(pid)], stderr=subprocess.PIPE) as strace:
        assert strace.stderr
        said = strace.stderr.readline()
        assert b"attached" in said, said
        try:
            yield Trace(log)
        finally:
            strace.send_signal(signal.SIGINT)
            # It sometimes misses the end of a process all of whose threads are killed at once; from one that lives it
            # takes its hand.
            with suppress(subprocess.TimeoutExpired):
                strace.wait(LONG_S if Path(f"/proc/{pid}/root").exists() else 1)
            strace.kill()


def agent_settings(place: Place, **more: object) -> bytes:
    """Returns the settings that an agent of this place gets on its standard input, once some run was here."""
    (directory,) = [path for path in place.runtime.iterdir() if path.is_dir() and (path / "lock").exists()]
    tiers = [{"dir": str(place.tier), "bytes": 256 << 20}]
    settings = {"role": "tiering", "dir": str(directory), "state_dir": str(place.root / "state"), "tiers": tiers, "keep": True}
    return json.dumps(settings | more).encode()


@contextmanager
def agent_under(place: Place, *words: str, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that these words start, before any run joins it; with these settings beside the usual ones."""
    settings = agent_settings(place, **more)
    with subprocess.Popen(
        [*words, str(support.command()), "agent"], env=place.environment(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.write(settings)
            process.stdin.close()
        process.stdin = None
        try:
            yield process
        finally:
            for pid in processes_of(place):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(LONG_S)


@contextmanager
def tmpfs(at: Path, options: str) -> Iterator[None]:
    """A file system in memory of that size."""
    with mounted(at, "-t", "tmpfs", "-o", options, "forebay-test"):
        yield


@dataclass
class SmallDisk:
    """A disk of its own, an ext4 in a file."""

    at: Path

    def break_down(self) -> None:
        """From now on all it answers is EIO."""
        at = os.open(self.at, os.O_RDONLY)
        try:
            # EXT4_IOC_SHUTDOWN, without writing the journal.
            fcntl.ioctl(at, 0x8004587D, (2).to_bytes(4, sys.byteorder))
        finally:
            os.close(at)

    def turn_read_only(self) -> None:
        """As the kernel does when it meets an error. (What is in use can't be remounted by hand.)"""
        device = subprocess.run(["findmnt", "-no", "SOURCE", self.at], check=True, capture_output=True, text=True).stdout.strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")


@contextmanager
def disk(place: Place, mebibytes: int = 64) -> Iterator[SmallDisk]:
    """The tier's directory on a disk of its own."""
    make, options = ("mkfs.ext4", "-q", "-m", "0"), "loop,errors=remount-ro"
    with in_a_file(place.tier, place.root / "disk", mebibytes << 20, *make, options=options):
        yield SmallDisk(place.tier)


@contextmanager
def slow_source(place: Place, **settings: float) -> Iterator[SlowFs]:
    """The place's source through the slow file system of the test bed; fast, unless settings say otherwise."""
    mount = place.root / "mnt"
    mount.mkdir()
    with slowfs(place.source, mount, mbps=0, open_ms=0, meta_us=0, read_us=0, attr_ttl_ms=0) as fs:
        fs.set(**settings)
        yield fs
