"""Jobs on two nodes that share their samples train as on one node: the same losses, to the last bit."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.epochs import free_port
from testbed.nodes import JobNode, can_isolate, nodes, remote_shell
from tests.support import PROGRAM_S, ROOT

TRAIN = Path(__file__).with_name("train.py")
RANKS = 4
SAMPLES = 96
SAMPLE_BYTES = 3000
TOTAL_BYTES = SAMPLES * SAMPLE_BYTES
EPOCHS = 4
BATCH = 4
STEPS = EPOCHS * SAMPLES // (BATCH * RANKS)
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
Line = dict[str, Any]
Start = Callable[[Sequence[JobNode]], "list[subprocess.Popen[str]]"]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[list[JobNode]]:
    if not can_isolate():
        pytest.skip("needs root and network namespaces")
    with nodes(2) as made:
        made[0].data.mkdir()
        for sample in range(SAMPLES):
            content = bytes((sample * 7 + at * at) % 251 for at in range(SAMPLE_BYTES))
            (made[0].data / f"{sample:04d}").write_bytes(content)
        yield made


def words_of(job: Sequence[JobNode], launcher: str) -> list[str]:
    return [str(TRAIN), str(job[0].data), "ram=8M", str(EPOCHS), launcher]


def by_torchrun(job: Sequence[JobNode]) -> "list[subprocess.Popen[str]]":
    """Starts the job's ranks on all nodes."""
    first = ["--master-addr", job[0].address, "--master-port", free_port()]
    shape = ["--nnodes", str(len(job)), "--nproc-per-node", str(RANKS // len(job))]
    own = {**os.environ, **VARIABLES}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "torch.distributed.run", *shape, *first]
    return [node.start([*command, "--node-rank", str(node.number), *words_of(job, "torchrun")], own, **options) for node in job]


def by_mpiexec(job: Sequence[JobNode]) -> "list[subprocess.Popen[str]]":
    """Starts the job's ranks from the first node: MPICH's launcher goes to the others as by ssh."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: uv sync --group mpi")
    for node in job:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in node.environment.items()]
        (job[0].shared / f"variables.{node.name}").write_text("".join(lines))
    own = ["sh", "-c", f'. {job[0].shared}/variables.$(hostname) && exec "$@"', "sh", sys.executable]
    hosts = ",".join(node.address for node in job)
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", remote_shell(job)]
    command = [*mpiexec, "-hosts", hosts, "-ppn", str(RANKS // len(job)), "-n", str(RANKS), *own, *words_of(job, "mpi")]
    variables = {**os.environ, **VARIABLES}
    return [job[0].start(command, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)]


def trained(started: "list[subprocess.Popen[str]]") -> list[Line]:
    """Returns the lines of all ranks, in their order."""
    done = [program.communicate(timeout=PROGRAM_S) for program in started]
    errors = "\n".join(error for _, error in done)
    assert [program.returncode for program in started] == [0] * len(started), errors
    lines = [json.loads(line) for output, _ in done for line in output.splitlines()]
    assert len(lines) == RANKS, errors
    return sorted(lines, key=lambda line: int(line["rank"]))


@pytest.mark.parametrize("start", [by_torchrun, by_mpiexec], ids=["torchrun", "mpiexec"])
def test_p12_losses_of_two_nodes_are_those_of_one_node(two_nodes: list[JobNode], start: Start) -> None:
    alone, shared = trained(start(two_nodes[:1])), trained(start(two_nodes))
    for line in [*alone, *shared]:
        assert line["losses"] == alone[0]["losses"]
    losses = [float.fromhex(loss) for loss in alone[0]["losses"]]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    of_nodes = [line["figures"] for line in shared[:: RANKS // 2]]
    assert [figures["nodes"] for figures in of_nodes] == [2, 2]
    assert sum(figures["from_peers"] for figures in of_nodes) > SAMPLES // 4
    # What was read before the nodes had met may have been read twice.
    assert sum(figures["source_bytes"] for figures in of_nodes) < 2 * TOTAL_BYTES
