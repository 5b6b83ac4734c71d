"""Nodes of a job on one machine: a network namespace, a host name and directories for each, joined by links.

Needs root. Where no network namespace can be made (in a container without that right), nodes can share the host's
network and meet on its loopback interface: see `together`.
"""

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobNode", "can_isolate", "nodes", "remote_shell", "together"]

FILES = {"FOREBAY_RUNTIME_DIR": "run", "FOREBAY_STATE_DIR": "state", "HOME": "."}
"""Variables of the directories that a node has for itself."""


HOSTS = "hosts"
"""File, of those that all nodes see, with the names and addresses of nodes that have a network of their own."""


@dataclass(frozen=True)
class JobNode:
    """A node of a job.

    Attributes:
        number: its number, from 0.
        name: its host name, and that of its network namespace.
        address: its address on the links between nodes.
        inside: words before a command that is to run in its network.
        root: directory of its own files.
        shared: directory that all nodes see.
    """

    number: int
    name: str
    address: str
    root: Path
    shared: Path
    inside: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of programs on this node."""
        own = {name: str(self.root / part) for name, part in FILES.items()}
        # Gloo looks its own host up by name, which nobody knows here.
        network = {"GLOO_SOCKET_IFNAME": self.name} if self.inside else {"GLOO_SOCKET_IFNAME": "lo", "FOREBAY_PEERS_INTERFACE": "lo"}
        return own | network | {"FOREBAY_PEERS_DIR": str(self.shared / "peers")}

    @property
    def source(self) -> Path:
        """Directory on which this node's own mount of the source is to lie: programs on the node see it as `data`."""
        return self.root / "source"

    @property
    def data(self) -> Path:
        """The source, by the name that it has on all nodes."""
        return self.shared / "data"

    def start(self, words: Sequence[str], environment: Mapping[str, str], **options: object) -> "subprocess.Popen[str]":
        """Starts a program on this node, with its mount of the source, if there is one, in place of `data`.

        The program finds the names of all nodes in /etc/hosts.
        """
        mounts = '{ [ ! -d "$1" ] || mount --bind "$1" "$2"; } && { [ ! -f "$3" ] || mount --bind "$3" /etc/hosts; }'
        begin = f'hostname "$0" && {mounts} && shift 3 && exec "$@"'
        arguments = [self.name, str(self.source), str(self.data), str(self.shared / HOSTS), *words]
        inside = [*self.inside, "unshare", "--uts", "--mount", "sh", "-c", begin, *arguments]
        return subprocess.Popen(inside, env={**self.environment, **environment}, text=True, **options)  # type: ignore[call-overload,no-any-return]

    def sent_bytes(self) -> int:
        """Bytes that it has sent to other nodes, heads of packets included."""
        counter = f"/sys/class/net/{self.name}/statistics/tx_bytes"
        done = subprocess.run([*self.inside, "cat", counter], check=True, capture_output=True, text=True)
        return int(done.stdout)


@contextlib.contextmanager
def nodes(count: int, *, rate: str | None = None, where: str | None = None) -> Iterator[list[JobNode]]:
    """Makes nodes that reach each other through a bridge, and removes them.

    Args:
        count: number of nodes, at most 200.
        rate: rate of each link, as `tc` takes it, such as `1gbit`; None for no limit.
        where: directory of their files; None for the system's for temporary files.
    """
    tag = f"fb{os.getpid()}"
    switch = f"{tag}s"
    with tempfile.TemporaryDirectory(prefix="fb-", dir=where, ignore_cleanup_errors=True) as root, contextlib.ExitStack() as stack:
        _ip("netns", "add", switch)
        stack.callback(_ip, "netns", "delete", switch)
        _inside(switch, "link", "add", "bridge", "type", "bridge")
        _inside(switch, "link", "set", "bridge", "up")
        made = []
        for number in range(count):
            name = f"{tag}n{number}"
            inside = ("ip", "netns", "exec", name)
            node = JobNode(number, name, f"10.99.0.{number + 1}", Path(root) / str(number), Path(root) / "shared", inside)
            node.root.mkdir()
            _ip("netns", "add", node.name)
            stack.callback(_ip, "netns", "delete", node.name)
            port = f"port{number}"
            _ip("link", "add", node.name, "netns", node.name, "type", "veth", "peer", "name", port, "netns", switch)
            _inside(node.name, "address", "add", f"{node.address}/24", "dev", node.name)
            _inside(node.name, "link", "set", "lo", "up")
            _inside(node.name, "link", "set", node.name, "up")
            _inside(switch, "link", "set", port, "master", "bridge", "up")
            if rate is not None:
                for where_to, link in ((node.name, node.name), (switch, port)):
                    shape = ["tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms"]
                    subprocess.run(["ip", "netns", "exec", where_to, *shape], check=True)
            made.append(node)
        shared = Path(root) / "shared"
        shared.mkdir(mode=0o700)
        lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in made)]
        (shared / HOSTS).write_text("\n".join(lines) + "\n")
        yield made


@contextlib.contextmanager
def together(count: int) -> Iterator[list[JobNode]]:
    """Makes nodes that share the host's network and meet on its loopback interface, and removes them."""
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as root:
        (Path(root) / "shared").mkdir(mode=0o700)
        made = [JobNode(number, f"fbn{number}", "127.0.0.1", Path(root) / str(number), Path(root) / "shared") for number in range(count)]
        for node in made:
            node.root.mkdir()
        yield made


def remote_shell(job: Sequence[JobNode]) -> str:
    """Makes a program that goes to another node as ssh does: given options, a host, and a command for a shell."""
    cases = "".join(f"{node.address}|{node.name}) name={node.name}; inside='{shlex.join(node.inside)}';;\n" for node in reversed(job))
    go = 'shift\nexec $inside unshare --uts sh -c "hostname $name; $*"\n'
    shell = job[0].shared / "shell"
    shell.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\ncase $1 in\n{cases}esac\n{go}')
    shell.chmod(0o700)
    return str(shell)


def can_isolate() -> bool:
    """Returns True if a network namespace with a link can be made here."""
    name = f"fb{os.getpid()}t"
    try:
        _ip("netns", "add", name)
        try:
            _ip("link", "add", name, "netns", name, "type", "veth", "peer", "name", "peer", "netns", name)
        finally:
            _ip("netns", "delete", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _inside(namespace: str, *words: str) -> None:
    _ip("-n", namespace, *words)
