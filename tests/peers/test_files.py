"""Runs on several nodes share the files of their source: the same bytes, and each file is read once for all nodes."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed import reading
from testbed.nodes import JobNode, can_isolate, nodes, together
from testbed.testbed import have_fuse, slowfs
from tests.support import PROGRAM_S, ROOT, command, process_of, wait_until

EPOCHS = 3
LARGE = 6_000_000
"""Bytes of a file that comes in pieces."""
LARGE_TOGETHER = 9_000_000
"""Bytes of a file that all nodes open together."""
SLOW_MBPS = 4.0
"""Rate of a source that takes longer for that file than a copy is current."""
TTL_S = 1
RANKS = 2
Line = dict[str, Any]


def content_of(number: int) -> bytes:
    """Returns the bytes of a file: some are empty, most are small, one comes in pieces."""
    size = 0 if number == 5 else LARGE if number == 7 else 1000 + 977 * number
    return hashlib.shake_128(str(number).encode()).digest(size)


FILES = {f"file {number:02d}": content_of(number) for number in range(40)}
TOTAL_BYTES = sum(map(len, FILES.values()))


@dataclass(frozen=True)
class FilesJob:
    """A job on several nodes, and the directory in which its processes meet."""

    nodes: list[JobNode]
    meeting: Path
    processes: "list[subprocess.Popen[str]]"

    def agent(self, node: JobNode) -> int:
        """Returns the process of a node's agent."""
        (control,) = node.root.glob("run/*/control.sock")
        return process_of(control)

    def lines(self, count: int, before: Callable[[str], object] | None = None) -> list[Line]:
        """Leads the processes through all epochs, once the nodes share files; returns what they have read.

        Args:
            count: number of processes.
            before: called before each epoch; waits until all copies are made by default.
        """
        wait_until(lambda: reading.is_shared(self.nodes), "all agents to share files", PROGRAM_S)
        reading.lead(self.meeting, count, EPOCHS, before or (lambda _: reading.wait_for_copies(self.nodes)))
        for process in self.processes:
            _, errors = process.communicate(timeout=PROGRAM_S)
            assert process.returncode == 0, errors
        return reading.lines(self.meeting)

    def records(self) -> list[Line]:
        """Returns the records of all runs."""
        return [json.loads(path.read_text()) for node in self.nodes for path in node.root.glob("state/runs/*.json")]


@contextlib.contextmanager
def nodes_with_files(count: int) -> Iterator[list[JobNode]]:
    """Nodes with a source and an empty tier each."""
    with nodes(count) if can_isolate() else together(count) as made:
        made[0].data.mkdir()
        for name, content in FILES.items():
            (made[0].data / name).write_bytes(content)
            os.utime(made[0].data / name, (1e9, 1e9))
        for node in made:
            (node.root / "tier").mkdir()
        # Younger files are not copied: their times may not show their next change.
        time.sleep(2.1)
        yield made


@pytest.fixture
def two_nodes() -> Iterator[list[JobNode]]:
    with nodes_with_files(2) as made:
        yield made


def forebay_run(node: JobNode, meeting: Path, number: str, count: int, quota: str = "100MB", epochs: int = EPOCHS) -> list[str]:
    """Returns the words of a run of the program, which reads one of `count` parts of the files in each epoch."""
    settings = ["--source", str(node.data), "--tier", f"{node.root / 'tier'}={quota}"]
    return [
        str(command()),
        "run",
        *settings,
        "--",
        sys.executable,
        str(reading.PROGRAM),
        str(node.data),
        str(meeting),
        number,
        str(count),
        str(epochs),
        "1",
    ]


@contextlib.contextmanager
def job_of(
    made: Sequence[JobNode], quota: str = "100MB", *, parts: int | None = None, epochs: int = EPOCHS, **variables: str
) -> Iterator[FilesJob]:
    """Starts a process a node, as in a Kubernetes job: by its variables. Each reads one of `parts` (default: nodes)."""
    meeting = made[0].shared / "meeting"
    meeting.mkdir()
    job = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": str(len(made)), "MASTER_ADDR": made[0].address, "MASTER_PORT": "29400"}
    started = []
    for node in made:
        words = forebay_run(node, meeting, str(node.number), parts or len(made), quota, epochs)
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | job | {"PET_NODE_RANK": str(node.number)} | variables
        started.append(node.start(words, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        yield FilesJob(list(made), meeting, started)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def assert_all_read(lines: Sequence[Line]) -> None:
    """Each file was read once in each epoch, with its bytes."""
    for epoch in range(EPOCHS):
        read = {line["name"]: line["digest"] for line in lines if line["epoch"] == epoch}
        assert read == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


def source_bytes(records: Sequence[Line]) -> int:
    """Returns the bytes that programs and agents of all nodes read from the source."""
    return sum(record["counters"]["from_source_bytes"] + record["agent"]["for_peers_bytes"] for record in records)


def slow_lines(lines: Sequence[Line]) -> list[Line]:
    """Returns the reads that took as long as an open waits at least: 1 s, and an agent releases it up to 0.3 s earlier.

    Only these may have given up their copy, or have had a second node read a file whose owner was silent.
    """
    return [line for line in lines if line["took_s"] >= 0.7]


def most_source_bytes(lines: Sequence[Line], records: Sequence[Line]) -> int:
    """Returns the most bytes that a job may read from the source if its nodes read each file once.

    Reads that took long may have been made twice more. And a busy agent may take a file that was read whole for an
    unread one, since it divides a program's reads among all large files that the program has open.
    """
    twice_more = sum(len(FILES[line["name"]]) for line in slow_lines(lines))
    unread = sum(record["agent"]["not_copied"].get("mostly_unread", 0) for record in records)
    return TOTAL_BYTES + 2 * twice_more + LARGE * int(unread)


def test_p13_each_file_is_read_from_the_source_once_for_all_nodes_under_torchrun(two_nodes: list[JobNode]) -> None:
    meeting = two_nodes[0].shared / "meeting"
    meeting.mkdir()
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    started = []
    for node in two_nodes:
        shape = ["--nnodes", "2", "--nproc-per-node", str(RANKS), "--node-rank", str(node.number)]
        first = ["--master-addr", two_nodes[0].address, "--master-port", port]
        rank = forebay_run(node, meeting, '"$RANK"', 2 * RANKS)
        shell = ["--no-python", "sh", "-c", " ".join(word if word == '"$RANK"' else f"'{word}'" for word in rank)]
        words = [sys.executable, "-m", "torch.distributed.run", *shape, *first, *shell]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started.append(node.start(words, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    job = FilesJob(two_nodes, meeting, started)
    lines = job.lines(2 * RANKS)
    assert_all_read(lines)
    records = job.records()
    assert len(records) == 2 * RANKS
    left = sum(record["agent"]["left_to_source"] for record in records)
    # A busy owner may have its copy before its program reads the source, and then reads nothing there.
    assert 0.8 * TOTAL_BYTES <= source_bytes(records) <= most_source_bytes(lines, records)
    assert left <= len(slow_lines(lines))
    assert sum(record["agent"]["from_peers_files"] for record in records) + left > len(FILES) / 3


def test_p13_without_other_nodes_each_reads_for_itself(two_nodes: list[JobNode]) -> None:
    with job_of(two_nodes, FOREBAY_PEERS="off") as job:
        reading.lead(job.meeting, 2, EPOCHS)
        for process in job.processes:
            process.wait(PROGRAM_S)
        assert_all_read(reading.lines(job.meeting))
        assert source_bytes(job.records()) > 1.5 * TOTAL_BYTES


def test_p13_nodes_in_groups_read_each_file_from_the_source_once() -> None:
    with nodes_with_files(4) as made, job_of(made, FOREBAY_PEERS_GROUP="2") as job:
        lines = job.lines(4)
        assert_all_read(lines)
        records = job.records()
        assert source_bytes(records) <= most_source_bytes(lines, records)
        for node in made:
            (log,) = node.root.glob("run/*/agent.log")
            assert "files are shared with 3 other nodes, in 2 groups of at most 2" in log.read_text()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_f40_an_agent_that_is_gone_or_silent_costs_a_bounded_wait(two_nodes: list[JobNode], how: signal.Signals) -> None:
    with job_of(two_nodes) as job:
        stopped: list[int] = []

        def stop(epoch: str) -> None:
            if epoch == "1":
                stopped.append(job.agent(two_nodes[1]))
                os.kill(stopped[0], how)
            if epoch == "end" and how == signal.SIGSTOP:
                # The run's end would wait for it.
                os.kill(stopped[0], signal.SIGKILL)

        lines = job.lines(2, stop)
        assert_all_read(lines)
        # A wait for another node, and for the own agent: a second and 100 ns a byte, each.
        longest = 2 * (1.0 + LARGE * 1e-7) + 1.0
        assert max(line["took_s"] for line in lines) < longest


def test_f47_a_small_tier_keeps_what_its_node_owns_and_never_fails(two_nodes: list[JobNode]) -> None:
    with job_of(two_nodes, quota="1MB") as job:
        assert_all_read(job.lines(2))
        records = job.records()
        # The large file fits nowhere.
        assert source_bytes(records) >= EPOCHS * LARGE
        for node in two_nodes:
            kept = sum(path.stat().st_size for path in (node.root / "tier").rglob("*") if path.is_file())
            assert kept <= 1_100_000


def test_p13_a_changed_file_is_not_served_from_an_older_copy(two_nodes: list[JobNode]) -> None:
    changed = two_nodes[0].data / "file 03"
    with job_of(two_nodes) as job:
        assert_all_read(job.lines(2))
    changed.write_bytes(b"new")
    time.sleep(2.1)
    for path in (*job.meeting.iterdir(),):
        path.unlink()
    job.meeting.rmdir()
    with job_of(two_nodes) as again:
        lines = again.lines(2)
    digests = {line["digest"] for line in lines if line["name"] == changed.name}
    assert digests == {hashlib.sha256(b"new").hexdigest()}


@pytest.mark.parametrize("group", ["4", "2"])
def test_f44_nodes_that_open_large_files_together_read_each_from_the_source_once(group: str) -> None:
    contents = {f"weights {number}": hashlib.shake_128(str(number).encode()).digest(LARGE_TOGETHER) for number in range(2)}
    with nodes(4) if can_isolate() else together(4) as made:
        made[0].data.mkdir()
        meeting = made[0].shared / "meeting"
        meeting.mkdir()
        for name, content in contents.items():
            (made[0].data / name).write_bytes(content)
            os.utime(made[0].data / name, (1e9, 1e9))
        time.sleep(2.1)
        job = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": "4", "MASTER_ADDR": made[0].address, "MASTER_PORT": "29400"}
        started = []
        for node in made:
            (node.root / "tier").mkdir()
            # One part: each node reads all files.
            words = forebay_run(node, meeting, str(node.number), 1, epochs=1)
            variables = {"PET_NODE_RANK": str(node.number), "FOREBAY_PEERS_GROUP": group}
            environment = os.environ | {"PYTHONPATH": str(ROOT)} | job | variables
            started.append(node.start(words, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        run = FilesJob(made, meeting, started)
        wait_until(lambda: reading.is_shared(made), "all agents to share files")
        reading.lead(meeting, 4, 1)
        for process in started:
            _, errors = process.communicate(timeout=PROGRAM_S)
            assert process.returncode == 0, errors
        lines = reading.lines(meeting)
        digests = sorted((line["name"], line["digest"]) for line in lines)
        assert digests == sorted((name, hashlib.sha256(content).hexdigest()) for name, content in contents.items() for _ in made)
        records = run.records()
    pulled = sum(record["agent"]["from_peers_files"] for record in records)
    left = sum(record["agent"]["left_to_source"] for record in records)
    slow = len(slow_lines(lines))
    assert pulled + left == 6
    # The owners read two.
    assert pulled >= 6 - slow
    assert source_bytes(records) <= (2 + 2 * slow) * LARGE_TOGETHER


@pytest.mark.skipif(os.geteuid() != 0 or have_fuse() is not None, reason="needs root and FUSE")
def test_p13_an_open_that_waits_beyond_the_ttl_gets_the_copy(tmp_path: Path) -> None:
    content = hashlib.shake_128(b"slow").digest(LARGE_TOGETHER)
    (tmp_path / "weights").write_bytes(content)
    os.utime(tmp_path / "weights", (1e9, 1e9))
    time.sleep(2.1)
    with nodes(2) if can_isolate() else together(2) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        for node in made:
            node.source.mkdir()
            (node.root / "tier").mkdir()
            stack.enter_context(slowfs(tmp_path, node.source, allow_other=None, mbps=SLOW_MBPS))
        with job_of(made, parts=1, epochs=1, FOREBAY_FRESHNESS=f"ttl={TTL_S}") as job:
            wait_until(lambda: reading.is_shared(made), "all agents to share files", PROGRAM_S)
            reading.lead(job.meeting, 2, 1)
            for process in job.processes:
                _, errors = process.communicate(timeout=PROGRAM_S)
                assert process.returncode == 0, errors
            lines, records = reading.lines(job.meeting), job.records()
    assert [line["digest"] for line in lines] == [hashlib.sha256(content).hexdigest()] * 2
    assert min(line["took_s"] for line in lines) > TTL_S
    # The owner's program reads the source, and the other's does not.
    assert sorted(record["counters"]["from_source_bytes"] for record in records) == [0, LARGE_TOGETHER]
    assert sum(record["counters"]["copy_after_open"] for record in records) == 1
