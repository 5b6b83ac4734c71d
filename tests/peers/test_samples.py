"""Loaders of several nodes share their samples: the same batches, and each sample is read once for all nodes."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed import epochs
from testbed.nodes import JobNode, can_isolate, nodes, together
from tests.loader.node import kill_agent_in
from tests.support import PROGRAM_S

SAMPLES = 96
ALIKE = ("lobster_as_written", "nopfs", "belady")
"""Policies that look ahead as `lobster` does. Each is tested with several nodes in Rust, too."""
Line = dict[str, Any]


def size_of(sample: int) -> int:
    """Bytes of a sample: some are empty, some are small and asked for together, some are larger than is guessed."""
    return 0 if sample % 17 == 0 else (sample * 131) % 9000 if sample % 3 else 200_000 + sample


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[list[JobNode]]:
    with nodes(2) if can_isolate() else together(2) as made:
        folder = made[0].shared / "data"
        folder.mkdir()
        for sample in range(SAMPLES):
            content = bytes((sample + at) % 251 for at in range(1000)) * (size_of(sample) // 1000 + 1)
            (folder / f"{sample:04d}").write_bytes(content[: size_of(sample)])
        yield made


TOTAL_BYTES = sum(map(size_of, range(SAMPLES)))


def free_port(job: Sequence[JobNode]) -> str:
    """Returns a port for the first rank of a job, and ends the agents of the job before."""
    for node in job:
        # An agent that waits for more ranks has other mounts, and would serve none of these.
        with contextlib.suppress(OSError):
            kill_agent_in(node.root / "run")
    return epochs.free_port()


def start(job: Sequence[JobNode], *words: str, **variables: str) -> "list[subprocess.Popen[str]]":
    """Starts the program of `testbed.epochs` on all nodes by torchrun."""
    return epochs.start(job, words, variables, free_port(job))


def ended(started: "list[subprocess.Popen[str]]") -> tuple[list[Line], str]:
    """Returns the lines of all ranks, by epoch and rank, and what was said on standard error."""
    done = [program.communicate(timeout=PROGRAM_S) for program in started]
    errors = "\n".join(error for _, error in done)
    assert [program.returncode for program in started] == [0] * len(started), errors
    lines = [json.loads(line) for output, _ in done for line in output.splitlines()]
    return sorted(lines, key=lambda line: (line["epoch"], line["rank"])), errors


def digests(lines: list[Line]) -> list[tuple[int, int, str]]:
    return [(line["epoch"], line["rank"], line["digest"]) for line in lines]


def expected(folder: str, count: int) -> list[tuple[int, int, str]]:
    """Returns the digests of `count` epochs of loaders without a cache."""
    loaders = [epochs.loader_of(Path(folder), rank=rank, world_size=2) for rank in range(2)]
    return [(epoch, rank, epochs.EpochSeen.of(loader, epoch).digest) for epoch in range(count) for rank, loader in enumerate(loaders)]


def figure(lines: list[Line], epoch: int, name: str) -> int:
    """Sum over the nodes of a figure, from the beginning to the end of an epoch."""
    of_nodes = {line["rank"]: line["figures"][name] for line in lines if line["epoch"] == epoch}
    return sum(of_nodes.values())


@pytest.mark.parametrize("group", ["2", "1"])
def test_p12_batches_are_the_same_and_the_source_is_read_once_for_all_nodes(two_nodes: list[JobNode], group: str) -> None:
    folder = str(two_nodes[0].shared / "data")
    # Nodes meet within the first epoch: until then each reads what is its own.
    shared, said = ended(start(two_nodes, folder, "ram=8M", "3", "0.1", FOREBAY_PEERS_GROUP=group))
    assert digests(shared) == expected(folder, 3)
    assert figure(shared, 2, "nodes") == 4, said
    assert figure(shared, 0, "source_bytes") <= 1.02 * TOTAL_BYTES
    assert figure(shared, 2, "source_bytes") <= 1.02 * TOTAL_BYTES
    assert figure(shared, 1, "from_peers") > SAMPLES // 4
    assert figure(shared, 2, "refused_failed") == figure(shared, 2, "refused_no_room") == 0


def test_p12_what_no_node_has_room_for_is_read_once_an_epoch(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    kept_bytes = 2 * 2_000_000
    shared, said = ended(start(two_nodes, folder, "ram=2M", "4", "0.1"))
    assert figure(shared, 3, "nodes") == 4, said
    for epoch in (2, 3):
        read = figure(shared, epoch, "source_bytes") - figure(shared, epoch - 1, "source_bytes")
        # Both nodes together keep what fits, whole samples of up to 200 kB.
        assert read <= TOTAL_BYTES - kept_bytes + 4 * 200_000
        assert figure(shared, epoch, "from_peers") > figure(shared, epoch - 1, "from_peers")


@pytest.mark.parametrize("policy", ["lobster", *(pytest.param(policy, marks=pytest.mark.long) for policy in ALIKE)])
def test_p12_batches_are_the_same_under_a_policy_that_looks_ahead(two_nodes: list[JobNode], policy: str) -> None:
    folder = str(two_nodes[0].shared / "data")
    shared, said = ended(start(two_nodes, folder, "ram=8M", "3", "0.1", policy))
    assert digests(shared) == expected(folder, 3)
    assert figure(shared, 2, "nodes") == 4, said
    assert figure(shared, 2, "source_bytes") <= 1.02 * TOTAL_BYTES
    assert figure(shared, 1, "from_peers") > SAMPLES // 4
    assert figure(shared, 2, "refused_failed") == figure(shared, 2, "refused_no_room") == 0


def test_p13_forebay_peers_off_keeps_nodes_alone(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    alone, _ = ended(start(two_nodes, folder, "ram=8M", "2", "0", FOREBAY_PEERS="off"))
    assert figure(alone, 1, "nodes") == figure(alone, 1, "from_peers") == 0
    assert figure(alone, 1, "source_bytes") > 1.3 * TOTAL_BYTES


def test_p13_nodes_that_do_not_see_one_directory_read_for_themselves_and_no_secret_is_said(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    invalid, said = ended(start(two_nodes, folder, "ram=8M", "1", "0.1", FOREBAY_PEERS_INTERFACE="none0"))
    assert figure(invalid, 0, "nodes") == 0
    assert said.count("samples are not shared with the other nodes: no interface of this host is 'none0': it has lo 127.0.0.1") == 2
