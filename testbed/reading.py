"""Reads its part of all files of a directory in each epoch, always another part, and writes down a digest of each file.

A program for tests and measurements of several nodes, and what leads it. Arguments: the directory, a directory in which
all processes meet, the number of this process, that of all, the number of epochs, and that of threads that read.
"""

import functools
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.nodes import JobNode

__all__ = ["PROGRAM", "is_shared", "lead", "lines", "wait_for_copies"]

PROGRAM = Path(__file__)
POLL_S = 0.005
WAIT_S = 300.0


def read_epochs(data: Path, meeting: Path, number: int, count: int, epochs: int, threads: int) -> None:
    """Reads all epochs. Each begins when it is told to."""
    names = sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file())

    def read_one(name: str) -> tuple[str, str, float]:
        began = time.monotonic()
        # In pieces: all nodes' large files would not have room in one machine's memory.
        with (data / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return name, digest, time.monotonic() - began

    with (meeting / f"{number}.jsonl").open("w") as lines, ThreadPoolExecutor(threads) as pool:
        for epoch in range(epochs):
            _meet(meeting, number, str(epoch))
            for name, digest, took_s in pool.map(read_one, names[(number + epoch) % count :: count]):
                lines.write(json.dumps({"epoch": epoch, "name": name, "digest": digest, "took_s": took_s}) + "\n")
    _meet(meeting, number, "end")


def _meet(meeting: Path, number: int, name: str) -> None:
    (meeting / f"at.{name}.{number}").touch()
    while not (meeting / f"go.{name}").exists():
        time.sleep(POLL_S)


def lead(meeting: Path, count: int, epochs: int, before: Callable[[str], object] = lambda _: None) -> None:
    """Has all processes begin each epoch together, and end together.

    Args:
        meeting: directory in which they meet.
        count: number of processes.
        epochs: number of epochs.
        before: called with the number of each epoch, and with `end`, when all have come and none goes on yet.

    Raises:
        TimeoutError: they do not come.
    """
    for name in [*map(str, range(epochs)), "end"]:
        _wait(functools.partial(_have_come, meeting, name, count), f"{count} processes before {name}")
        before(name)
        (meeting / f"go.{name}").touch()


def _have_come(meeting: Path, name: str, count: int) -> bool:
    return len(list(meeting.glob(f"at.{name}.*"))) == count


def lines(meeting: Path) -> list[dict[str, Any]]:
    """Returns what all processes have read."""
    return [json.loads(line) for read in meeting.glob("*.jsonl") for line in read.read_text().splitlines()]


def is_shared(nodes: "Iterable[JobNode]") -> bool:
    """Returns True once the agents of all nodes share files."""

    def is_sharing(node: "JobNode") -> bool:
        return any("files are shared with" in log.read_text() for log in node.root.glob("run/*/agent.log"))

    return all(map(is_sharing, nodes))


def _is_idle(node: "JobNode") -> bool:
    """Returns True if the agent of a node makes no copy, and has taken all that was handed over."""
    (control,) = node.root.glob("run/*/control.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.fspath(control))
        connection.send(b'{"request": "status"}')
        status = json.loads(connection.recv(1 << 16))
    return not status["in_flight"] and not status["adopting"]


def wait_for_copies(nodes: "Iterable[JobNode]") -> None:
    """Waits until the agents of all nodes are idle.

    Raises:
        TimeoutError: they are not.
    """
    for node in nodes:
        _wait(functools.partial(_is_idle, node), f"{node.name} to be idle")


def _wait(is_done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {WAIT_S:.0f} s")
        time.sleep(POLL_S)


if __name__ == "__main__":
    read_epochs(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
