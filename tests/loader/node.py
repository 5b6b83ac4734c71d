"""A node of its own for the loader agent: its directories, and files to load."""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from forebay.loader import DirectSource, Extent
from forebay.loader._agent import AgentRank
from forebay.loader._agent_source import AgentSource
from forebay.loader._joining import AgentJoining
from forebay.loader._place import RankPlace
from forebay.loader._settings import AgentSettings
from tests.support import LONG_S, remove_tree

SAMPLES = 60


class LoaderNode:
    """Directories of a node, and files on it: one a sample, the first of them empty."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"
        self.cache = root / "cache"
        self.files.mkdir()
        self.cache.mkdir()
        for sample in range(SAMPLES):
            self.path(sample).write_bytes(self.content(sample))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of programs on this node."""
        parts = {"FOREBAY_RUNTIME_DIR": "run", "FOREBAY_STATE_DIR": "state", "HOME": "."}
        return {name: str(self.root / part) for name, part in parts.items()}

    def path(self, sample: int) -> Path:
        return self.files / f"{sample}"

    def content(self, sample: int) -> bytes:
        return bytes((sample * 7 + at * at) % 251 for at in range(sample * 37 % 3000))

    def locate(self, sample: int) -> Extent:
        return Extent(str(self.path(sample)))

    def agent(self) -> int:
        """The loader agent's process."""
        return agent_in(self.root / "run")

    def refusals(self) -> list[str]:
        """The lines of refusals in the agent's logs, as a person finds them with one grep."""
        logs = sorted((self.root / "run/loaders").glob("agent.log*"), reverse=True)
        found = subprocess.run(["grep", "-h", " refused ", *logs], capture_output=True, text=True, check=False)
        return found.stdout.splitlines()

    def kill_agent(self) -> None:
        """Kills it, and waits until nothing of it is there."""
        kill_agent_in(self.root / "run")


def agent_in(runtime: Path) -> int:
    """The process of the loader agent that has this runtime directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(runtime / "loaders/loader.sock"))
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    assert isinstance(pid, int)
    return pid


def point_to(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Sets the variables that lead to a store, and no others that lead to any."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def kill_agent_in(runtime: Path) -> None:
    """Kills the loader agent that has this runtime directory, and waits until nothing of it is there."""
    agent = os.pidfd_open(agent_in(runtime))
    signal.pidfd_send_signal(agent, signal.SIGKILL)
    assert select.select([agent], [], [], LONG_S)[0]
    os.close(agent)


@contextlib.contextmanager
def a_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoaderNode]:
    """A node, for this process too. Its agent ends with it."""
    # A short path, for sockets.
    root = Path(tempfile.mkdtemp(prefix="fb-", dir="/var/tmp"))
    node = LoaderNode(root)
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield node
    finally:
        with contextlib.suppress(OSError):
            os.kill(node.agent(), signal.SIGKILL)
        # One that is just ending may still write.
        remove_tree(root)


class ServedSource(AgentSource):
    """A source of 40 samples that a loader agent of its own serves, until it is closed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(a_node(self._stack.enter_context(pytest.MonkeyPatch.context())))
        settings = AgentSettings(40, 4, seed=0, window=12, window_bytes=1 << 20, hedge_budget=0.0)
        super().__init__(AgentRank(AgentJoining("0", 40, settings, RankPlace("job", 0, 1, 0, 1), ("ram=1M",))), DirectSource())

    def close(self) -> None:
        super().close()
        self._agent.close()
        self._stack.close()
