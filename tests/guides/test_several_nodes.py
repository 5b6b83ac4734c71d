"""Every block of docs/several-nodes.md runs on two nodes, which share samples and files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.epochs import EpochSeen, loader_of
from testbed.nodes import JobNode, can_isolate, nodes, remote_shell
from tests.guides import slurm
from tests.support import PROGRAM_S, ROOT, command

GUIDE = ROOT / "docs/several-nodes.md"
FILES = 96
RANKS = 4
EPOCHS = 3
TRAIN = """
import sys
from pathlib import Path

folder = Path({folder!r})
for path in sorted(folder.iterdir()):
    path.read_bytes()
sys.argv[1:] = [str(folder), "ram=8M", "{epochs}", "0.1"]
from testbed.epochs import main

main()
"""
RUNS = {
    "forebay": '{command} "${{@/#\\/tmp=10G/$TIER=1G}}"',
    "python": '{python} "$@"',
    "torchrun": '{python} -m torch.distributed.run "$@"',
    "mpiexec": '{mpiexec} -launcher ssh -launcher-exec {shell} "$@"',
    "mpirun": 'orterun --allow-run-as-root --mca plm_rsh_agent {shell} -x PATH -x PYTHONPATH "$@"',
}
"""Commands of the blocks, and the words in their place: each begins with the variables of its node."""
Line = dict[str, Any]


def blocks(heading: str, language: str = "sh") -> list[str]:
    """Returns the fenced blocks below a heading."""
    (part,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def two_nodes() -> Iterator[list[JobNode]]:
    if not can_isolate():
        pytest.skip("needs root and network namespaces")
    with nodes(2) as made:
        made[0].data.mkdir()
        for number in range(FILES):
            (made[0].data / f"{number:04d}").write_bytes(bytes([number]) * (1000 + 77 * number))
            os.utime(made[0].data / f"{number:04d}", (1e9, 1e9))
        # Younger files are not copied: their times may not show their next change.
        time.sleep(2.1)
        yield made


@pytest.fixture
def environment(two_nodes: list[JobNode]) -> dict[str, str]:
    """Returns a user's environment on each node: the commands on the PATH, and directories of the node's own."""
    shared, shims = two_nodes[0].shared, two_nodes[0].shared / "bin"
    shims.mkdir()
    for node in two_nodes:
        (node.root / "tier").mkdir()
        own = {**node.environment, "TIER": str(node.root / "tier"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        # On a slow machine a minute may pass between two steps of a job.
        own["FOREBAY_FRESHNESS"] = "immutable"
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in own.items()]
        (shared / f"variables.{node.name}").write_text("".join(lines))
    mpiexec = Path(sys.executable).with_name("mpiexec")
    places = {"command": command(), "python": sys.executable, "mpiexec": mpiexec, "shell": remote_shell(two_nodes)}
    for name, words in RUNS.items():
        (shims / name).write_text(f"#!/bin/bash\n. {shared}/variables.$(hostname)\nexec {words.format(**places)}\n")
        (shims / name).chmod(0o755)
    (shared / "train.py").write_text(TRAIN.format(folder=str(two_nodes[0].data), epochs=EPOCHS))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY")}
    return {**inherited, "PATH": f"{shims}:{os.environ['PATH']}:/usr/sbin:/sbin", "PYTHONPATH": str(ROOT)}


def here(job: Sequence[JobNode], block: str) -> str:
    """Returns a block with the names of these nodes, and their data."""
    for name, place in (("node1", job[0].name), ("node2", job[1].name), ("/lustre/imagenet", str(job[0].data))):
        block = block.replace(name, place)
    return block


def start(node: JobNode, block: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Has a shell run a block on a node."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": node.shared}
    return node.start(["bash", "-c", block], environment, **options)


def said_by(started: "Sequence[subprocess.Popen[str]]") -> str:
    """Returns what all programs said on standard output, once they have ended well."""
    done = [program.communicate(timeout=PROGRAM_S) for program in started]
    errors = "\n".join(error for _, error in done)
    assert [program.returncode for program in started] == [0] * len(started), errors
    assert "not shared" not in errors
    return "".join(output for output, _ in done)


def expected(folder: Path) -> list[tuple[int, int, str]]:
    """Returns epoch, rank and digest of all samples, by loaders without a cache."""
    loaders = [loader_of(folder, rank=rank, world_size=RANKS) for rank in range(RANKS)]
    return [(epoch, rank, EpochSeen.of(loader, epoch).digest) for epoch in range(EPOCHS) for rank, loader in enumerate(loaders)]


def check(job: Sequence[JobNode], said: str, *, shares_files: bool) -> None:
    """Checks that each rank got its samples, and that nodes shared them, and files if so."""
    lines: list[Line] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    lines.sort(key=lambda line: (line["epoch"], line["rank"]))
    assert [(line["epoch"], line["rank"], line["digest"]) for line in lines] == expected(job[0].data)
    last = lines[-RANKS :: RANKS // 2]
    assert [line["figures"]["nodes"] for line in last] == [2, 2]
    assert sum(line["figures"]["from_peers"] for line in last) > 0
    records = [json.loads(path.read_text()) for node in job for path in node.root.glob("state/runs/*.json")]
    assert bool(records) == shares_files
    assert (sum(record["agent"]["from_peers_files"] for record in records) > 0) == shares_files


def test_every_block_is_tested() -> None:
    fenced = GUIDE.read_text().count("\n```") // 2
    assert fenced == sum(len(blocks(heading)) for heading in ("torchrun", "Slurm", "MPI")) + len(blocks("Kubernetes", "yaml"))


@pytest.mark.parametrize("number", range(len(blocks("torchrun"))))
def test_blocks_for_torchrun(two_nodes: list[JobNode], environment: dict[str, str], number: int) -> None:
    block = here(two_nodes, blocks("torchrun")[number])
    check(two_nodes, said_by([start(node, block, environment) for node in two_nodes]), shares_files="forebay run" in block)


@pytest.mark.parametrize("number", range(len(blocks("MPI"))), ids=["mpich", "open-mpi"])
def test_blocks_for_mpi(two_nodes: list[JobNode], environment: dict[str, str], number: int) -> None:
    block = here(two_nodes, blocks("MPI")[number])
    if "mpirun" in block and shutil.which("orterun") is None:
        pytest.skip("needs orterun: apt-get install openmpi-bin")
    check(two_nodes, said_by([start(two_nodes[0], block, environment)]), shares_files=True)


@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
@pytest.mark.parametrize("number", range(len(blocks("Slurm"))))
def test_blocks_for_slurm(two_nodes: list[JobNode], environment: dict[str, str], number: int) -> None:
    shared = two_nodes[0].shared
    (shared / "job.sh").write_text(here(two_nodes, blocks("Slurm")[number]))
    with slurm.cluster(two_nodes) as of_cluster:
        own = {**environment, "SLURM_CONF": of_cluster["SLURM_CONF"]}
        started = start(two_nodes[0], f"sbatch --wait --output={shared}/out job.sh", own)
        _, errors = started.communicate(timeout=PROGRAM_S)
    said = (shared / "out").read_text() if (shared / "out").exists() else ""
    assert started.returncode == 0, errors + said
    assert "not shared" not in said
    check(two_nodes, said, shares_files=True)
