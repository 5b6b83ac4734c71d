"""Threads and worker processes stay on a NUMA node where there are several.

The nodes are stand-ins: the kernel's description is a directory that a test writes, and a node is one processor of this
machine. So the tests hold which processors threads and processes are bound to, and nothing about memory. No test was
run on a machine of several nodes.
"""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.loader import _nodes
from forebay.loader._nodes import homes
from forebay.torch import DataLoader
from tests.loader.data import Indices, KeyedFiles
from tests.loader.node import LoaderNode


def machine(root: Path, *nodes: str) -> Path:
    """Writes the kernel's description of NUMA nodes."""
    for number, processors in enumerate(nodes):
        (root / f"node{number}").mkdir(parents=True)
        (root / f"node{number}/cpulist").write_text(f"{processors}\n")
    return root


@pytest.mark.parametrize(
    ("nodes", "environment", "found"),
    [
        ((), {}, []),
        (("0-7",), {}, []),
        (("0-3", "4-7"), {}, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (("0-1,4", "2-3,5,99", "", "50-51"), {}, [{0, 1, 4}, {2, 3, 5}]),
        (("0-3", "40-47"), {}, []),
        (("0-3", "4-7"), {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, [{0, 1, 2, 3}]),
        (("0-3", "4-7"), {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "8"}, [{4, 5, 6, 7}]),
        (("0-1", "2-3", "4-5", "6-7"), {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, [{4, 5}, {6, 7}]),
        (("0-3", "4-7"), {"SLURM_NODEID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4,2"}, [{4, 5, 6, 7}]),
        (("0-3", "4-7"), {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (("0-3", "4-7"), {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
    ],
)
def test_a_rank_has_its_share_of_the_nodes(
    nodes: tuple[str, ...], environment: dict[str, str], found: list[set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert homes(environment, machine(tmp_path / "node", *nodes)) == found


class Where(KeyedFiles):
    """Samples say where they were decoded."""

    def decode(self, data: memoryview, i: int, rng: object, /) -> tuple[object, ...]:
        return (sorted(os.sched_getaffinity(0)),)


class PlainWhere(Indices):
    def __getitem__(self, index: int) -> object:
        return sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("nodes", [1, 2])
def test_threads_and_processes_stay_on_theirs(nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    # Where there is one processor only, it is on both.
    ends = [min(before), max(before)]
    monkeypatch.setattr(_nodes, "_homes", lambda: [{one} for one in ends] if nodes == 2 else [])
    # Only processes that are forked know of the change above.
    for dataset, context in ((Where(tmp_path, 12), None), (PlainWhere(12), "fork")):
        loader = DataLoader(dataset, 1, num_workers=2, collate_fn=list, multiprocessing_context=context, report=False)
        found = {tuple(where[0] if isinstance(where, tuple) else where) for (where,) in loader}
        wanted = {(one,) for one in ends} if nodes == 2 else {tuple(sorted(before))}
        # Worker processes take samples alternately; of two threads one may be given all of them.
        assert found == wanted if context else found and found <= wanted
        assert os.sched_getaffinity(0) == before, "training's own thread goes where it likes"


def processors_of_readers(pid: int) -> set[tuple[int, ...]]:
    """Returns the processors that an agent's reading threads may use."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if (thread / "comm").read_text().strip() == "loader-read":
                found.add(tuple(sorted(os.sched_getaffinity(int(thread.name)))))
    return found


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_agent_reads_on_the_node_of_the_rank(nodes: int, node: LoaderNode, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    near = max(before)
    monkeypatch.setattr(_nodes, "_homes", lambda: [{near}] if nodes == 2 else [])
    loader = DataLoader(KeyedFiles(node.root / "samples", 32), 4, num_workers=2, collate_fn=list, cache="ram=1M", report=False)
    batches = iter(loader)
    next(batches)
    found = processors_of_readers(node.agent())
    # A thread binds itself before its first read. One that has begun and found nothing to read is not bound.
    everywhere = tuple(sorted(before))
    if nodes == 2:
        assert (near,) in found
        assert found <= {(near,), everywhere}
    else:
        assert found == {everywhere}
    assert len(list(batches)) == 7
    lines = [line for line in (node.root / "run/loaders/agent.log").read_text().splitlines() if "NUMA" in line]
    assert [line.partition("NUMA node: ")[2] for line in lines] == ([f"local ranks 0 on processors {near}"] if nodes == 2 else [])
