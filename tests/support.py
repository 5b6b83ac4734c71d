"""Shared parts of the tests: the built command, places to run it in, and a worker that obeys a test."""

import fcntl
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import pytest

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("worker.py")
IDLE = Path(__file__).with_name("idle.py")
# Put before a program's text, it lets the program call `wait_until_idle()`.
WAIT_UNTIL_IDLE = IDLE.read_text().partition("if __name__")[0]
# An account that owns nothing.
NOBODY = 65534
# A file that was changed within the last two whole seconds is not published.
SETTLED_AFTER_S = 2
# For what comes soon on an idle machine. CI's is slow and busy: a limit shall only end what would never end.
LONG_S = 120
PROGRAM_S = 600

Word = str | bytes | os.PathLike[str]
T = TypeVar("T")
_recent: set[Path] = set()
_recent_lock = threading.Lock()


def target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def _cargo(*words: str) -> None:
    subprocess.run(["cargo", "build", "--locked", "--quiet", *words], cwd=ROOT, check=True)


def library() -> Path:
    return target() / "preload/libforebay_preload.so"


@cache
def command() -> Path:
    """The command: the newest that was built here; built if there is none. It finds the library by itself."""
    if not library().exists():
        _cargo("--profile", "preload", "-p", "forebay-preload", "-p", "forebay-audit")
    built = [path for path in (target() / "release/forebay", target() / "debug/forebay") if path.exists()]
    if not built:
        _cargo("-p", "forebay-cli")
        built = [target() / "debug/forebay"]
    return max(built, key=lambda path: path.stat().st_mtime)


def wait_until(condition: Callable[[], T], what: str, seconds: float = LONG_S) -> T:
    """Polls until the condition holds, and gives what it gave."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.02)
    return value


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Looks again and again in a thread, and once more after the end, for what came since the last look."""
    over = threading.Event()

    def look_on() -> None:
        last = False
        while not last:
            last = over.wait(0.005)
            look()

    watcher = threading.Thread(target=look_on)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def settle(*paths: Word) -> None:
    """Waits until these files (whole trees, for directories) are old enough to be published."""
    newest = 0.0
    with _recent_lock:
        _recent.difference_update(map(Path, map(os.fsdecode, paths)))
    for path in map(Path, map(os.fsdecode, paths)):
        for found in [path, *path.rglob("*")] if path.is_dir() else [path]:
            stat = found.lstat()
            newest = max(newest, stat.st_mtime if stat.st_mtime < time.time() else 0, stat.st_ctime)
    # The two clocks that this sleeps by and is judged by may differ a little.
    while (left := int(newest) + SETTLED_AFTER_S + 0.01 - time.time()) > 0:
        time.sleep(left)


def keep_recent(path: Path) -> None:
    """From now on the file or directory is modified again and again, until `settle` is called for it or it is gone."""
    os.utime(path)
    with _recent_lock:
        _recent.add(path)
        if len(_recent) == 1:
            threading.Thread(target=_touch, daemon=True).start()


def _touch() -> None:
    """Ends with the last file that is to be kept recent."""
    while True:
        with _recent_lock:
            for path in list(_recent):
                try:
                    os.utime(path)
                except FileNotFoundError:
                    _recent.discard(path)
            if not _recent:
                return
        time.sleep(0.3)


def chill(path: Path) -> None:
    """Takes a file out of the page cache: what is in it is copied ahead of its reader."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove_tree(path: Path) -> None:
    """Removes a directory that somebody may still be writing to."""

    def gone() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    wait_until(gone, f"{path} to be gone")


@contextmanager
def mounted(at: Path, *words: str) -> Iterator[None]:
    """Something mounted; taken away in any case, though it may be in use."""
    subprocess.run(["mount", *words, at], check=True)
    try:
        yield
    finally:
        if subprocess.run(["umount", at], check=False, capture_output=True).returncode != 0:
            subprocess.run(["umount", "-l", at], check=False, capture_output=True)


@contextmanager
def in_a_file(at: Path, image: Path, size: int, *make: str, options: str = "loop") -> Iterator[None]:
    """A disk of `size` bytes: a file `image`, most of it a hole, in which these words make a file system, mounted.

    Skips the test where there is no such program, or no loop device.
    """
    if shutil.which(make[0]) is None:
        pytest.skip(f"needs {make[0]}")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*make, image], check=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(mounted(at, "-o", options, str(image)))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs loop devices: {error}")
        yield


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    status: int
    out: bytes
    err: bytes
    record: dict[str, Any]

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.record["counters"])

    @property
    def hits(self) -> int:
        return sum(tier["opens"] for tier in self.record["tiers"])


@dataclass
class Place:
    """Directories of its own for one agent: source, tier, runtime, state. Everybody may look at the source."""

    root: Path
    runtime: Path
    freshness: str = "immutable"
    tier_size: str = "256M"
    source: Path = field(init=False)
    tier: Path = field(init=False)
    command: Path = field(init=False)
    python: str = sys.executable
    worker_script: Path = WORKER
    uid: int | None = None
    _records: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.command = command()
        self.source = self.root / "source"
        self.tier = self.root / "tier"
        for directory in (self.source, self.tier, self.root / "state"):
            directory.mkdir(exist_ok=True)

    def give_to(self, uid: int) -> None:
        """From now on everything here is this user's, and so are the runs.

        The command is copied to where that user can see it.
        """
        self.uid = uid
        self.command, self.worker_script = visible_command(self.root), self.root / "worker.py"
        shutil.copy(WORKER, self.worker_script)
        self.python = python_for(uid)
        for path in (self.root, self.runtime):
            for found in [path, *path.rglob("*")]:
                os.chown(found, uid, uid, follow_symlinks=False)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY") and name != "LD_PRELOAD"}
        own = {"FOREBAY_RUNTIME_DIR": str(self.runtime), "FOREBAY_STATE_DIR": str(self.root / "state"), "HOME": str(self.root)}
        return {**kept, **own, "XDG_CONFIG_HOME": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}

    def words(self, program: Sequence[Word], record: Path, **asked: str | Path | None) -> list[str]:
        """The command line of a run; `freshness`, `source`, `tier_size`, `prefetch`, `keep` (any text) may be given."""
        words = [str(self.command), "run", "--source", str(asked.get("source") or self.source)]
        words += ["--tier", f"{self.tier}={asked.get('tier_size') or self.tier_size}", "--record", str(record)]
        words += ["--freshness", str(asked.get("freshness") or self.freshness)]
        words += ["--prefetch", str(asked["prefetch"])] if asked.get("prefetch") else []
        words += ["--keep", "--"] if asked.get("keep") else ["--"]
        return as_user(self.uid) + words + [os.fsdecode(word) for word in program]

    def record_path(self) -> Path:
        number = next(self._records)
        directory = self.root / "records"
        directory.mkdir(exist_ok=True)
        if self.uid is not None:
            os.chown(directory, self.uid, self.uid)
        return directory / f"{number}.json"

    def run(
        self,
        *program: Word,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = PROGRAM_S,
        check: bool = True,
        standard_input: bytes = b"",
        **asked: str | Path | None,
    ) -> Ran:
        """Runs a program to its end."""
        record = self.record_path()
        done = subprocess.run(
            self.words(program, record, **asked),
            env={**self.environment(), **(environment or {})},
            cwd=cwd or self.root,
            input=standard_input,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{program}: {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        return Ran(done.returncode, done.stdout, done.stderr, json.loads(record.read_text()) if record.exists() else {})

    @contextmanager
    def worker(self, **asked: str | Path | None) -> Iterator["Worker"]:
        """A worker in a run of its own."""
        record = self.record_path()
        words = self.words([self.python, "-E", self.worker_script], record, **asked)
        with Worker.started(words, environment=self.environment(), cwd=self.root, record=record) as worker:
            yield worker

    @contextmanager
    def adopted(self, **asked: str | Path | None) -> Iterator[dict[str, Any]]:
        """An agent that has taken over what earlier runs left, for runs beside it to find; gives its status."""
        with self.worker(**asked):
            yield self.idle()

    def agents(self) -> list[Path]:
        """Control sockets of the agents that stand here."""
        return [path for path in self.runtime.glob("*/control.sock") if _answers(path)]

    def status(self) -> dict[str, Any]:
        """Returns the agent's counters over all its runs."""
        (agent,) = self.agents()
        return _ask(agent, {"request": "status"})

    def agent_pid(self) -> int:
        (agent,) = self.agents()
        return process_of(agent)

    def idle(self, handed_over: int = 0) -> dict[str, Any]:
        """Waits until the agent has had a number of handoffs and has nothing to do."""

        def done() -> bool:
            now = self.status()
            return now["handed_over"] >= handed_over and not now["in_flight"] and not now["adopting"]

        wait_until(done, f"{handed_over} hand-overs, all done")
        return self.status()

    def objects(self) -> list[Path]:
        """The files in the tier that hold copies."""
        return sorted(path for path in self.tier.glob("forebay-*/objects/*/*") if path.is_file())

    def clean(self, complete: bool = True) -> str:
        """Removes all copies; gives what the command says.

        `complete`: nothing of somebody else's is found there and left.
        """
        words = [*as_user(self.uid), str(self.command), "clean", "--tier", str(self.tier)]
        done = subprocess.run(words, env=self.environment(), cwd=self.root, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == complete, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """Waits until the agents have ended, which they do after their last run.

        One that was told to stay is told to go.
        """

        def ended() -> bool:
            for agent in self.agents():
                # One that is just ending hears nothing more.
                with suppress(ConnectionError, FileNotFoundError):
                    _ask(agent, {"request": "stop"})
            return not self._is_held()

        wait_until(ended, "the end of agents")

    def _is_held(self) -> bool:
        """Returns True if an agent has anything open here.

        Its sockets are gone before it has removed its files and given back its leases.
        """
        return is_held(self.runtime, self.tier)

    def end(self) -> None:
        """Ends what still stands here, whatever it does."""
        for agent in self.agents():
            with suppress(OSError):
                os.kill(process_of(agent), signal.SIGKILL)

    def remove(self) -> None:
        """Ends what stands here and removes all of it."""
        self.end()
        wait_until(lambda: not self._is_held(), "the end of agents that were killed")
        for directory in (self.root, self.runtime):
            shutil.rmtree(directory, ignore_errors=True)


def make_place() -> Place:
    """A place, to be removed. Its path is short, since sockets are in it, and open to every user."""
    root, runtime = (Path(tempfile.mkdtemp(prefix="fb-", dir=where)) for where in ("/tmp", "/dev/shm"))  # noqa: S108
    root.chmod(0o755)
    return Place(root, runtime)


@contextmanager
def place() -> Iterator[Place]:
    """A place that is gone afterwards."""
    made = make_place()
    try:
        yield made
    finally:
        made.remove()


class PlacePool:
    """Places that are made ahead of their tests, since what `grow` puts into them must be two seconds old."""

    def __init__(self, grow: Callable[[Place], None], ahead: int = 16) -> None:
        self._grow = grow
        self._ahead = ahead
        self._ready: list[Place] = []

    def take(self) -> Place:
        """Returns a place whose files are old enough, and makes others for later."""
        while len(self._ready) <= self._ahead:
            self._ready.append(make_place())
            self._grow(self._ready[-1])
        settle(self._ready[0].root)
        return self._ready.pop(0)

    @contextmanager
    def taken(self) -> Iterator[Place]:
        """One that is gone afterwards."""
        place = self.take()
        yield place
        place.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._ready:
            place.remove()


@cache
def python_for(uid: int) -> str:
    """An interpreter that this user may run."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            # setpriv itself still has root's rights when it looks for a program; env has not.
            if subprocess.run([*as_user(uid), "env", python, "-c", ""], capture_output=True, check=False).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("needs root, and a Python that every user can run: apt-get install python3")


def visible_command(root: Path) -> Path:
    """A copy of the command, with its library, below a directory that other users can see.

    The checkout may lie where they can't.
    """
    copied = root / "bin/forebay"
    for path, to in ((command(), copied), (library(), root / "lib/forebay" / library().name)):
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    return copied


def as_user(uid: int | None) -> list[str]:
    """Returns the words to put before a command so that this user runs it."""
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@contextmanager
def _connected(agent: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(LONG_S)
        # An agent speaks with its own user only.
        user, owner = os.geteuid(), agent.stat().st_uid
        os.seteuid(owner)
        try:
            connection.connect(str(agent))
        finally:
            os.seteuid(user)
        yield connection


def is_held(runtime: Path, tier: Path) -> bool:
    """Returns True if an agent stands, or has not quite ended."""
    return any(map(_is_locked, [*runtime.glob("*/lock"), *tier.glob("forebay-*/lease")]))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Gone meanwhile, or prepared by the test: a link, a directory.
        return False
    return False


def _answers(agent: Path) -> bool:
    try:
        with _connected(agent):
            return True
    except OSError:
        return False


def _ask(agent: Path, request: dict[str, Any]) -> dict[str, Any]:
    """One request to an agent. One that ends meanwhile says nothing more."""
    with _connected(agent) as connection:
        connection.send(json.dumps(request).encode())
        answer: dict[str, Any] = json.loads(connection.recv(1 << 16) or b'{"response": "stopping"}')
        return answer


def process_of(agent: Path) -> int:
    """The process of the agent that listens on a control socket."""
    with _connected(agent) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(credentials[:4], sys.byteorder)


@dataclass
class Worker:
    """A Python process that does what it is told, one thing at a time. See worker.py."""

    process: subprocess.Popen[bytes]
    record_path: Path | None = None
    ran: Ran | None = None

    @staticmethod
    @contextmanager
    def started(
        words: Sequence[Word], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None, record: Path | None = None
    ) -> Iterator["Worker"]:
        """A worker that these words start; afterwards it has ended, and `ran` says how."""
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=environment, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            worker = Worker(process, record)
            try:
                worker.do("None")
                yield worker
                worker.end()
            finally:
                process.kill()

    def do(self, code: str, **names: object) -> Any:  # noqa: ANN401
        """Executes Python code with these names.

        Gives the value of its last expression, or raises the OSError that it raised.
        """
        pickle.dump((code, names), self._stdin)
        self._stdin.flush()
        try:
            kind, value = pickle.load(self._stdout)  # noqa: S301
        except EOFError:
            _, err = self.process.communicate()
            raise AssertionError(f"the worker has died: {self.process.returncode}\n{err.decode()}") from None
        if kind == "errno":
            raise OSError(value, os.strerror(value))
        assert kind == "value", value
        return value

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin
        return self.process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self.process.stdout
        return self.process.stdout

    def end(self) -> Ran:
        """Lets it end, and reads the record of its run."""
        if self.ran is None:
            out, err = self.process.communicate(timeout=PROGRAM_S)
            record = json.loads(self.record_path.read_text()) if self.record_path and self.record_path.exists() else {}
            self.ran = Ran(self.process.returncode, out, err, record)
            assert self.process.returncode == 0, err.decode()
        return self.ran


def read(worker: Worker, path: Word) -> bytes:
    """A file's bytes, as the worker reads them."""
    value: bytes = worker.do("Path(path).read_bytes()", path=os.fspath(path))
    return value


def warm(place: Place, worker: Worker, *paths: Word) -> None:
    """Reads files until their copies are there."""
    before = place.status()
    for path in paths:
        read(worker, path)
    place.idle(before["handed_over"])

    def is_there(path: Word) -> bool:
        if is_copy(worker, path):
            return True
        # What is opened and not read is not copied, unless it still is in the page cache.
        read(worker, path)
        return False

    wait_until(lambda: all(map(is_there, paths)), f"copies of {paths}")


def hold_copy(worker: Worker, path: Word, name: str) -> None:
    """Has the worker keep a descriptor of the file's copy open, as `name`; a copy's validity may run out in between."""
    code = f"{name} = os.open(path, os.O_RDONLY)\nos.readlink(f'/proc/self/fd/{{{name}}}')"

    def is_held() -> bool:
        if "/objects/" in worker.do(code, path=os.fspath(path)):
            return True
        worker.do(f"os.close({name})")
        return False

    wait_until(is_held, f"a copy of {path!r}")


def is_copy(worker: Worker, path: Word) -> bool:
    """Returns True if an open of this file leads to a copy: the descriptor's name in /proc is a listed deviation."""
    link: str = worker.do("with open(path, 'rb') as file: link = os.readlink(f'/proc/self/fd/{file.fileno()}')\nlink", path=os.fspath(path))
    return "/forebay-" in link and "/objects/" in link
