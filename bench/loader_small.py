"""Small samples that all lie in the agent's memory: what handing them over costs, of rank and agent together."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from bench.loader_bounds import quantile
from bench.loader_world import WINDOW, InMemory, LoaderBench, start
from bench.report import BenchReport, What
from bench.session import program

ROW_BYTES = 4096
BATCH = 256
THREADS = 1
# Samples a core-second, of rank and agent together.
WANTED = {"rows": 500_000, "decode": 200_000}
HOW = {"rows": "fixed rows, put together natively", "decode": "a decode in Python that gives what it is given"}


def small(how: str, world: LoaderBench, report: BenchReport) -> None:
    """Warm epochs, each a sample; the bars are on CPU for a sample, so that less is better in every row."""
    path = world.memory / "rows"
    if not path.exists():
        write(path, world.size.rows)
    size = world.size.rows * ROW_BYTES
    agent = {"memory_bytes": size + size // 8, "window_bytes": WINDOW * BATCH * ROW_BYTES}
    us: list[float] = []
    p99_ms: list[float] = []
    agent_share: list[float] = []
    with contextlib.ExitStack() as stack:
        words = program("loader_small", path, "--step", "--how", how, "--batch", BATCH, "--threads", THREADS, "--agent", json.dumps(agent))
        running, here = start(stack, InMemory(), words)
        # What was read to be kept and is there.
        for _ in range(2):
            running.step()
        alone_us = running.first["memcpy_us"]
        for number in range(world.size.pairs):
            before = here.agent_cpu_s()
            said = running.step()
            of_agent = here.agent_cpu_s() - before
            us.append(1e6 * (said["cpu_s"] + of_agent) / said["samples"])
            p99_ms.append(1000 * quantile(said["waits_s"], 0.99))
            agent_share.append(of_agent / (said["cpu_s"] + of_agent))
            print(f"small-{how}: epoch {number + 1} of {world.size.pairs}", flush=True)
            report.note_load()
    scenario = f"small-{how}: samples of 4 KiB in memory, {HOW[how]}, batches of {BATCH}"
    note = f"{1e6 / max(us):,.0f} samples a core-second at least, {WANTED[how]:,} asked for; bound {alone_us:.3g}: a memcpy of each"
    report.time(What(scenario, "CPU a sample, agent and rank", "us", 1e6 / WANTED[how]), us, note)
    report.time(What(scenario, "the agent's share of that", ""), agent_share)
    report.time(What(scenario, "batch latency, 99th percentile of an epoch's", "ms"), p99_ms)


def write(path: Path, rows: int) -> None:
    """Writes a file of random rows."""
    with path.open("wb") as file:
        for _ in range(-(-rows // BATCH)):
            file.write(os.urandom(BATCH * ROW_BYTES))
        file.truncate(rows * ROW_BYTES)
