"""Two processes with four DataLoader workers each, under one `forebay run`: one agent, one quota, every file once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.epochs import FRESHNESS
from bench.report import BenchReport, What
from bench.session import ProgramError, program, run_once, tiered
from bench.whole import folder_bytes
from bench.world import TierDirectory, TieringBench

SCENARIO = "workers: 4 DataLoader workers x 2 processes"
LOOK_S = 0.5


def workers(world: TieringBench, report: BenchReport) -> None:
    """Pairs of runs; the quota is less than the data, so that it must be kept."""
    words = program("loader", world.files)
    quota = folder_bytes(world.local_files) * 6 // 10
    shares: list[float] = []
    over: list[float] = []
    for _ in range(world.size.runs):
        said, untiered = run_once(world, words)
        with world.tier() as tier, highest(tier) as seen:
            again, mine = run_once(world, tiered(world, tier, quota, FRESHNESS[0], words), tier)
        if sum(line["digest"] for line in said) != sum(line["digest"] for line in again):
            raise ProgramError("the workers read other bytes under Forebay")
        shares.append(mine.bytes / untiered.bytes)
        over.append(max(0, seen[0] - quota))
        report.note_load()
    report.count(What(SCENARIO, "source bytes", "x S", 1.02, "the program as it is"), shares)
    note = f"the most that lay on the tier at any look, every {LOOK_S} s, beyond {quota:,}"
    report.count(What(SCENARIO, "copies over the quota of the node", "bytes", 0), over, note)


@contextmanager
def highest(tier: TierDirectory) -> Iterator[list[int]]:
    """Looks at the tier until the block ends; the most bytes that it held."""
    seen = [0]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            seen[0] = max(seen[0], tier.bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
        seen[0] = max(seen[0], tier.bytes())
