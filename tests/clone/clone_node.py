"""A node of its own for tests of forks. It needs no framework."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forebay
from tests import support

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
