"""A node of its own for tests of forks: its fork agent, and jobs and clones that a test plays itself."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.clone as clone
from forebay import _core
from forebay.clone._resume import CloneRequest
from tests import support
from tests.clone.jobs import StateJob, full

Opened = Callable[..., clone.Session]
State = tuple[str, int, list[int], int]

# A program that says by which fork it was started, and ends when its standard input does.
ASKED = ["sh", "-c", 'printf "%s\\n" "$FOREBAY_CLONE"; exec cat']


@dataclass
class CloneNode:
    """Directories of its own, with a short path, since a socket is in it.

    What is started with `environment` meets at one fork agent.
    """

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm")))

    @property
    def own(self) -> dict[str, str]:
        return {"FOREBAY_RUNTIME_DIR": str(self.root / "run"), "FOREBAY_STATE_DIR": str(self.root / "state"), "HOME": str(self.root)}

    @property
    def environment(self) -> dict[str, str]:
        """For programs: one thread each, as the machine is small."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY", "SLURM", "PBS", "LSB"))}
        return {**kept, **self.own, "XDG_CONFIG_HOME": str(self.root), "OMP_NUM_THREADS": "1"}

    @property
    def forks(self) -> Path:
        return self.root / "run/forks"

    def type(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Types a command line of `forebay`, and waits for its end."""
        command = [str(forebay.command()), *words]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=support.ROOT,
            capture_output=True,
            text=True,
            timeout=support.PROGRAM_S,
            check=False,
            **options,
        )

    def jobs(self) -> list[dict[str, Any]]:
        done = self.type("clone", "ls", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refusals(self) -> list[str]:
        """The lines of refusals in the agent's logs, as a person finds them with one grep."""
        logs = sorted(self.forks.glob("agent.log*"), reverse=True)
        found = subprocess.run(["grep", "-h", " refused ", *logs], capture_output=True, text=True, check=False)
        return found.stdout.splitlines()

    @contextlib.contextmanager
    def cloning(self, job: str, *options: str) -> Iterator[str]:
        """`forebay clone` with a program that waits until the block ends.

        Gives what the program found in FOREBAY_CLONE.
        """
        command = [str(forebay.command()), "clone", job, *options, "--", *ASKED]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout
            assert process.stderr
            asked = process.stdout.readline().removesuffix("\n")
            assert asked, process.stderr.read()
            try:
                yield asked
            finally:
                process.communicate(timeout=support.LONG_S)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(support.LONG_S)
        connection.connect(str(self.forks / "fork.sock"))
        return connection

    def agent_pid(self) -> int:
        with self.connect() as connection:
            return int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")

    def kill_agent(self) -> None:
        """Ends the fork agent, whatever it does; returns when it is gone."""
        with contextlib.suppress(OSError):
            os.kill(self.agent_pid(), signal.SIGKILL)
        support.wait_until(lambda: not self._is_held(), "the end of the fork agent")

    def _is_held(self) -> bool:
        try:
            with (self.forks / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False


@contextlib.contextmanager
def node() -> Iterator[CloneNode]:
    made = CloneNode()
    try:
        yield made
    finally:
        made.kill_agent()
        shutil.rmtree(made.root, ignore_errors=True)


@contextlib.contextmanager
def training(node: CloneNode, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A parent that can be forked by now, as job `trunk`; it is ended at the latest with the block."""
    environment = {**node.environment, "FOREBAY_JOB": "trunk"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=support.ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as parent:
        try:

            def trains() -> bool:
                assert parent.poll() is None, parent.communicate()
                # It imports for seconds, and to ask takes something from it.
                time.sleep(0.5)
                return any(job["job"] == "trunk" and job["ranks"] == job["ranks_here"] and job["step"] for job in node.jobs())

            support.wait_until(trains, "the job to train", support.PROGRAM_S)
            yield parent
        finally:
            parent.terminate()
            parent.communicate()


def told(lines: str) -> list[dict[str, Any]]:
    """Returns the output of each rank of `tests.clone.train`, in the order of ranks.

    They share a pipe: one may stand in another's line.
    """
    decoder = json.JSONDecoder()
    found, at = [], 0
    while (at := lines.find('{"rank"', at)) >= 0:
        value, at = decoder.raw_decode(lines, at)
        found.append(value)
    return sorted(found, key=lambda one: int(one["rank"]))


def train(made: StateJob, session: clone.Session | None, steps: int, first: int = 1) -> int:
    """Gives the number of the next step."""
    for step in range(first, first + steps):
        made.step()
        if session:
            session.point(epoch=0, step=step)
    return first + steps


def trained(opened: Opened, steps: int = 1, **options: Any) -> tuple[StateJob, clone.Session]:
    """A job with a session that has made some steps."""
    made = full(1)
    session = opened(made, **options)
    train(made, session, steps)
    return made, session


def train_until(made: StateJob, session: clone.Session, done: Callable[[], bool], first: int = 1) -> int:
    deadline = time.monotonic() + support.LONG_S
    while not done():
        assert time.monotonic() < deadline
        first = train(made, session, 1, first)
    return first


def taking(asked: str) -> _core.Taking:
    told = CloneRequest.from_json(asked)
    return _core.Taking(told.directory, told.fork, 0, 1)


def wait_for_state(mine: _core.Taking) -> State:
    state = support.wait_until(lambda: mine.state(0.1), "a state")
    assert state
    return state


def refusal(asked: str, why: str) -> None:
    """Waits until who asks for this fork's state is told so. Before that, another has the place."""

    def is_told() -> bool:
        with pytest.raises(ConnectionError) as told:
            wait_for_state(taking(asked))
        return why in str(told.value)

    support.wait_until(is_told, why)


def drop(state: State) -> None:
    for descriptor in state[2]:
        os.close(descriptor)
