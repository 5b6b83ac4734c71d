"""Ranks in step on two nodes, one of which has a source four times as slow: who waits for whom."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader_bounds import imbalanced
from bench.report import ROOT, BenchReport, What
from bench.session import PROGRAMS, ProgramError
from testbed import datasets
from testbed.epochs import free_port
from testbed.nodes import JobNode, nodes
from testbed.testbed import slowfs

SLOWER = 4
NODES = 2
RANKS = 2
"""Ranks of a node."""
STEP_MS = 200.0
BATCH = 4
EPOCHS = 3
FILE_KB = 20
KEPT = 0.3
READS = RANKS
PROGRAM_S = 600
OF_STATIC = 0.25
# A read of the faster source: lookup, open and read take 40 ms together.
SOURCE = {"meta_us": 8000.0, "open_ms": 16.0, "read_us": 16000.0, "slots": 64, "threads": 64, "attr_ttl_ms": 60_000}


@dataclass(frozen=True)
class Contender:
    """A policy and a schedule, and whether nodes share."""

    policy: str
    schedule: str
    shares: bool = True


CONTENDERS = {
    "forebay": Contender("forebay", "earliest_deadline"),
    "lobster": Contender("lobster", "lobster"),
    "lobster_as_written": Contender("lobster_as_written", "lobster_as_written"),
    "nopfs": Contender("nopfs", "first_come"),
    "static": Contender("pinned", "static", shares=False),
}
"""By name, the best first. `static`: each node alone, each rank with reads of its own, the first samples pinned."""


def run(place: Path, steps: int, contender: Contender) -> list[list[float]]:
    """Runs a job; returns the waits of each rank in all steps but those of the first epoch, which fills the cache."""
    files = steps * BATCH * RANKS * NODES
    photos = place / f"forebay-bench-steps-{files}"
    if not photos.exists():
        datasets.photos(photos, files, size_kb=FILE_KB)
    kept = int(KEPT * sum(path.stat().st_size for path in photos.rglob("*") if path.is_file()))
    agent = {"memory_bytes": kept, "policy": contender.policy, "schedule": contender.schedule, "reads_max": READS}
    with nodes(NODES) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        for node in made:
            node.source.mkdir()
            factor = SLOWER if node.number else 1
            slowed = {name: value * factor if name in ("meta_us", "open_ms", "read_us") else value for name, value in SOURCE.items()}
            stack.enter_context(slowfs(photos, node.source, allow_other=None, readdirplus=True, **slowed))
        lines = _lines(made, agent, shares=contender.shares)
    if contender.shares and any(line["figures"].get("nodes") != NODES for line in lines if line["epoch"] == EPOCHS - 1):
        raise ProgramError("nodes did not share their samples")
    later = [line for line in sorted(lines, key=lambda line: int(line["epoch"])) if line["epoch"] > 0]
    return [[wait for line in later if line["rank"] == rank for wait in line["waits_s"]] for rank in range(NODES * RANKS)]


def _lines(made: Sequence[JobNode], agent: Mapping[str, Any], *, shares: bool) -> list[dict[str, Any]]:
    shape = ["--nnodes", str(NODES), "--nproc-per-node", str(RANKS), "--master-addr", made[0].address, "--master-port", free_port()]
    program = [str(PROGRAMS / "step_ranks.py"), str(made[0].data), str(EPOCHS), str(BATCH), str(STEP_MS), json.dumps(agent)]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FOREBAY_PEERS": "auto" if shares else "off"}
    started = []
    for node in made:
        words = [sys.executable, "-m", "torch.distributed.run", *shape, "--node-rank", str(node.number), *program]
        started.append(node.start(words, os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    done = [one.communicate(timeout=PROGRAM_S) for one in started]
    if any(one.returncode for one in started):
        raise ProgramError("\n".join(error for _, error in done)[-3000:])
    return [json.loads(line) for output, _ in done for line in output.splitlines()]


def imbalance(place: Path, runs: int, steps: int, report: BenchReport) -> None:
    """Measures all contenders, alternately."""
    counts: dict[str, list[int]] = {name: [] for name in CONTENDERS}
    waits: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(runs):
        for name in list(CONTENDERS)[:: 1 if number % 2 == 0 else -1]:
            waited = run(place, steps, CONTENDERS[name])
            counts[name].append(imbalanced(waited, STEP_MS / 1000))
            waits[name].append(sum(max(step) for step in zip(*waited, strict=True)))
            report.note_load()
    of = (EPOCHS - 1) * steps
    scenario = f"imbalance: {NODES} nodes with {RANKS} ranks, the source of one {SLOWER} times as slow"
    for name, found in counts.items():
        note = (
            f"of {of} steps a run; each run: {', '.join(map(str, found))}; all steps together waited {statistics.median(waits[name]):.1f} s"
        )
        report.once(What(scenario, f"{name}: imbalanced steps", "steps"), sum(found), note)
    ratios = [ours / max(1, static) for ours, static in zip(counts["forebay"], counts["static"], strict=True)]
    report.count(What(scenario, "imbalanced steps of forebay over those of static", "x", OF_STATIC, "static"), ratios)
    for better, worse in itertools.pairwise(CONTENDERS):
        what = What(scenario, f"imbalanced steps of {better} over those of {worse}", "x", 1.0, worse)
        report.once(what, sum(counts[better]) / max(1, sum(counts[worse])))
