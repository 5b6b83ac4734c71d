"""Measures Figures 7 (c) and 8 (b) of the Lobster paper in kind, on network namespaces: `make papers-lobster-nodes`.

Needs root; takes at most fifteen minutes. A node is a namespace with a host name, an agent, a mount of its own of the
source, and two ranks that train in step, in timed pauses. The paper has eight nodes with eight GPUs each, 40 GB of
memory on each of them, and 1.3 TB of data, of which all keep a quarter together. Here each node keeps a quarter.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command
from bench.loader_bounds import imbalanced
from bench.parts import Part
from bench.report import ROOT, BenchReport, What
from bench.session import PROGRAMS, ProgramError
from testbed import datasets
from testbed.epochs import free_port
from testbed.nodes import nodes
from testbed.testbed import slowfs

NODES = (2, 4)
RANKS = 2
"""Ranks of a node."""
KEPT = 1 / 4
"""Part of the data that a node keeps."""
STEP_MS = 200.0
BATCH = 4
"""Samples of a rank in a step."""
EPOCHS = 3
FILE_KB = 20
READS = 2
"""Reads of a node under way."""
PROGRAM_S = 400
# Without sharing, a node reads three quarters of its eight samples a step: twice as long as the step, so that an epoch
# could be twice as short, as in the paper.
SOURCE = {"meta_us": 32000.0, "open_ms": 64.0, "read_us": 64000.0, "slots": 64, "threads": 64, "attr_ttl_ms": 60_000}
READ_S = (SOURCE["open_ms"] + SOURCE["read_us"] / 1000) / 1000
"""Time of a file in a warm epoch, whose lookup the kernel answers."""
LOADERS: dict[str, tuple[str, str, bool]] = {
    "static": ("pinned", "static", False),
    "nopfs": ("nopfs", "first_come", True),
    "lobster_as_written": ("lobster_as_written", "lobster_as_written", True),
    "forebay": ("forebay", "earliest_deadline", True),
}
"""Policy and schedule of each loader, and whether nodes share; `static` stands for PyTorch's."""
PAPER_SPEEDUPS = {"static": 2.0, "nopfs": 1.2}
"""Lobster's speed-up on eight nodes (Figure 7 c)."""
PAPER_IMBALANCED = {"static": 0.58, "nopfs": 0.325, "lobster_as_written": 0.228}
"""Imbalanced steps of eight nodes (Figure 8 b)."""


@dataclass(frozen=True)
class NodesFiles:
    """The files of the source, and the runs of each loader."""

    photos: Path
    place: Path
    files: int
    runs: int


@dataclass(frozen=True)
class WarmEpochs:
    """All epochs of a job but the first, which fills the caches.

    Attributes:
        seconds: median of an epoch.
        imbalanced: share of the steps.
        hits: share of the samples that no node read from the source.
    """

    seconds: float
    imbalanced: float
    hits: float

    @classmethod
    def of(cls, lines: Sequence[dict[str, Any]], count: int, total: int) -> WarmEpochs:
        """Returns the figures of the lines of `bench/programs/step_ranks.py`.

        Args:
            lines: of all ranks and epochs.
            count: number of nodes.
            total: bytes of the data.
        """
        by_epoch = [
            sorted((line for line in lines if line["epoch"] == epoch), key=lambda line: int(line["rank"])) for epoch in range(EPOCHS)
        ]

        def read(epoch: int) -> int:
            # Each rank of a node tells the bytes of its agent so far, and one may do so before the other's last read.
            told = [line["figures"]["source_bytes"] for line in by_epoch[epoch]]
            return sum(max(told[node * RANKS : (node + 1) * RANKS]) for node in range(count))

        waits = [[line["waits_s"] for line in of_epoch] for of_epoch in by_epoch[1:]]
        seconds = [sum(max(step) + STEP_MS / 1000 for step in zip(*waited, strict=True)) for waited in waits]
        uneven = sum(imbalanced(waited, STEP_MS / 1000) for waited in waits)
        missed = (read(EPOCHS - 1) - read(0)) / ((EPOCHS - 1) * total)
        return cls(statistics.median(seconds), uneven / sum(len(waited[0]) for waited in waits), 1 - missed)


def run(world: NodesFiles, count: int, loader: str) -> WarmEpochs:
    """Runs a job on `count` nodes.

    Raises:
        ProgramError: a rank failed, or nodes did not share.
    """
    policy, schedule, shares = LOADERS[loader]
    total = sum(path.stat().st_size for path in world.photos.rglob("*") if path.is_file())
    agent = {"memory_bytes": int(KEPT * total), "policy": policy, "schedule": schedule, "reads_max": READS}
    with nodes(count, where=str(world.place)) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        for node in made:
            node.source.mkdir()
            stack.enter_context(slowfs(world.photos, node.source, allow_other=None, readdirplus=True, **SOURCE))
        shape = ["--nnodes", str(count), "--nproc-per-node", str(RANKS), "--master-addr", made[0].address, "--master-port", free_port()]
        program = [str(PROGRAMS / "step_ranks.py"), str(made[0].data), str(EPOCHS), str(BATCH), str(STEP_MS), json.dumps(agent)]
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FOREBAY_PEERS": "auto" if shares else "off"}
        launch = [sys.executable, "-m", "torch.distributed.run", *shape]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started = [node.start([*launch, "--node-rank", str(node.number), *program], os.environ | own, **pipes) for node in made]
        done = [one.communicate(timeout=PROGRAM_S) for one in started]
    if any(one.returncode for one in started):
        raise ProgramError("\n".join(error for _, error in done)[-3000:])
    lines = [json.loads(line) for output, _ in done for line in output.splitlines()]
    if shares and any(line["figures"].get("nodes") != count for line in lines if line["epoch"] == EPOCHS - 1):
        raise ProgramError("nodes did not share their samples")
    return WarmEpochs.of(lines, count, total)


def figures(count: int, world: NodesFiles, report: BenchReport) -> None:
    """Figures 7 (c) and 8 (b) on `count` nodes, all loaders alternately."""
    found: dict[str, list[WarmEpochs]] = {name: [] for name in LOADERS}
    for number in range(world.runs):
        for name in list(LOADERS)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(run(world, count, name))
            report.note_load()
    title = f"{scenario(count)}: {count} nodes with {RANKS} ranks each, a node keeps {KEPT} of the data"
    steps = world.files // (BATCH * RANKS * count)
    for name, runs in found.items():
        seconds = statistics.median(one.seconds for one in runs)
        bound = shortest_s(world.files / count, steps, statistics.median(one.hits for one in runs))
        report.once(What(title, f"{name}: warm epoch", "s"), seconds, f"bound {bound:.2f} s, by {steps} steps and its reads of the source")
        uneven = statistics.median(one.imbalanced for one in runs)
        paper = PAPER_IMBALANCED.get(name)
        report.once(What(title, f"{name}: imbalanced steps", "of all"), uneven, f"the paper's, 8 nodes: {paper}" if paper else "")
        hits = statistics.median(one.hits for one in runs)
        report.once(What(title, f"{name}: samples not read from the source", "of all"), hits)
    ours = statistics.median(one.seconds for one in found["lobster_as_written"])
    for name in ("static", "nopfs", "forebay"):
        other = statistics.median(one.seconds for one in found[name])
        paper = PAPER_SPEEDUPS.get(name)
        note = f"the paper's, 8 nodes: {paper}" if paper else ""
        report.once(What(title, f"lobster_as_written: speed-up over {name}", "x"), other / ours, note)


def shortest_s(samples: float, steps: int, hits: float) -> float:
    """Returns the shortest time of an epoch of a node, which can't step before it has read what it misses.

    Args:
        samples: of the node in an epoch.
        steps: of an epoch.
        hits: share of the samples that no node read from the source.
    """
    return max(steps * STEP_MS / 1000, samples * (1 - hits) * READ_S / READS)


def scenario(count: int) -> str:
    """Returns the scenario of a number of nodes."""
    return f"nodes-{count}"


@contextlib.contextmanager
def world(quick: bool, place: Path) -> Iterator[NodesFiles]:
    """Makes the files."""
    files = 128 if quick else 256
    photos = place / f"forebay-papers-lobster-nodes-{files}"
    if not photos.exists():
        datasets.photos(photos, files, size_kb=FILE_KB)
    yield NodesFiles(photos, place, files, 1)


BENCH = command.RootBench("papers-lobster-nodes", "lobster-nodes", __doc__, (Part.PEERS, Part.LOADER))


def main() -> int:
    """Returns the exit code of `bench.command`."""
    scenarios = {scenario(count): lambda world, report, count=count: figures(count, world, report) for count in NODES}
    return command.run_as_root(BENCH, scenarios, world)


if __name__ == "__main__":
    sys.exit(main())
