"""A tier that holds half: what is kept is never read again, and no more than the rest is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.bounds import source_bytes_max
from bench.epochs import FRESHNESS, moved
from bench.report import BenchReport, What
from bench.session import program, session, tiered
from bench.world import TieringBench

SCENARIO = "half: tier holds half, epochs 2 and 3"


def half(world: TieringBench, report: BenchReport) -> None:
    """Small files and shards."""
    of_kind("files", world.local_files, program("read_files", world.files, "--step"), world, report)
    of_kind("shards", world.local_shards, program("read_shards", world.shards, "--step"), world, report)


def of_kind(name: str, local: Path, words: Sequence[str], world: TieringBench, report: BenchReport) -> None:
    """Runs of one kind, each beside an untiered one."""
    sizes = [path.stat().st_size for path in local.rglob("*") if path.is_file()]
    all_bytes, largest = sum(sizes), max(sizes)
    quota = all_bytes // 2
    shares: list[float] = []
    over: list[float] = []
    for _ in range(world.size.runs):
        with session(world, words) as running:
            untiered = moved(running.epoch(watch=True)).bytes
        bar = source_bytes_max(untiered, all_bytes, quota, largest)
        with world.tier() as tier:
            with session(world, tiered(world, tier, quota, FRESHNESS[0], words), tier) as running:
                epochs = [running.epoch(watch=True) for _ in range(3)]
                running.end()
            over.append(max(0, tier.bytes() - quota))
        shares.append(max(moved(epoch).bytes for epoch in epochs[1:]) / bar)
        report.note_load()
    note = f"C = {quota:,} bytes of {all_bytes:,}; bar: 1.02 x (S - C x S / {all_bytes:,}) + {largest:,} x S / {all_bytes:,}"
    report.count(What(SCENARIO, f"{name}: source bytes of the worse epoch", "x the bar", 1, "the program as it is"), shares, note)
    report.count(What(SCENARIO, f"{name}: copies over the quota", "bytes", 0), over)
