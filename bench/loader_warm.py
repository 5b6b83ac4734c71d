"""Warm epochs with a cache of a part of the data, beside PyTorch's loader on the same source and processors."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Sequence

from bench.epochs import moved
from bench.loader_bounds import ideal_s, least_of, payload_least, payload_max
from bench.loader_world import BANDWIDTH, GLUSTER, LATENCY, READS_MAX, WORKERS, LoaderBench, agree, epochs, start, whole_read_s
from bench.report import BenchReport, What
from bench.report import number as shown
from bench.session import BenchSession, EpochFigures

SHARES = (0.3, 0.6)
STEP_MS = 2
OVER_IDEAL_MAX = 1.08
# How many times faster than PyTorch's loader an epoch has to be; where the bandwidth is all that counts 1.43 is the
# most at 30 %.
FASTER = {(LATENCY, 0.3): 1.5, (LATENCY, 0.6): 1.5, (BANDWIDTH, 0.3): 1.3, (BANDWIDTH, 0.6): 1.5, (GLUSTER, 0.6): 1.5}
TORCH = "torch"


def warm(kind: str, world: LoaderBench, report: BenchReport, *, is_balanced: bool = False) -> None:
    """By turns: PyTorch's loader, and ours with each cache. The first epoch of each is not counted.

    `is_balanced`: all steps together take as long as reading what the larger cache lacks, so that neither has time to
    spare.
    """
    name = "warm-balanced" if is_balanced else f"warm-{kind}"
    with world.source(kind) as source, contextlib.ExitStack() as stack:
        whole_s = statistics.median(whole_read_s(source, world.size.files))
        steps = world.size.files // world.size.batch
        step_ms = round(1000 * (1 - max(SHARES)) * whole_s / steps, 3) if is_balanced else STEP_MS
        ways: dict[str, BenchSession] = {TORCH: start(stack, source, epochs(TORCH, source.mnt, world.size, step_ms=step_ms))[0]}
        for share in SHARES:
            words = epochs("forebay", source.mnt, world.size, step_ms=step_ms, agent=world.cache(share))
            ways[name_of(share)] = start(stack, source, words)[0]
        found = rounds(name, ways, world, report)
    bytes_of_all = statistics.mean(moved(epoch).bytes for epoch in found[TORCH])
    for share in SHARES:
        rows(name, kind, share, world, report, found[name_of(share)], found[TORCH], whole_s, bytes_of_all, step_ms)
    scenario = f"{name}: the source"
    note = f"bound of every epoch that keeps nothing; {READS_MAX} reads at once; S is {world.bytes:,} bytes, {bytes_of_all:,.0f} as counted"
    report.once(What(scenario, "all the data read", "s"), whole_s, note)
    report.time(What(scenario, f"PyTorch's loader, {WORKERS} workers: an epoch", "s"), [epoch.seconds for epoch in found[TORCH]])


def name_of(share: float) -> str:
    """A cache that holds this share."""
    return f"cache of {share:.0%} of S"


def rounds(name: str, ways: dict[str, BenchSession], world: LoaderBench, report: BenchReport) -> dict[str, list[EpochFigures]]:
    """A cold epoch of each way, and as many warm ones as are measured. The order of the ways is reversed each time.

    Raises:
        ProgramError: ways gave other samples, or in another order.
    """
    found: dict[str, list[EpochFigures]] = defaultdict(list)
    for number in range(world.size.pairs + 1):
        print(f"{name}: epoch {number}" + (" (cold)" if number == 0 else f" of {world.size.pairs}"), flush=True)
        epochs_of = {way: ways[way].epoch(watch=True) for way in (list(ways) if number % 2 else reversed(ways))}
        agree({way: epoch.digest for way, epoch in epochs_of.items()})
        report.note_load()
        if number:
            for way, epoch in epochs_of.items():
                found[way].append(epoch)
    return found


def rows(
    name: str,
    kind: str,
    share: float,
    world: LoaderBench,
    report: BenchReport,
    mine: Sequence[EpochFigures],
    theirs: Sequence[EpochFigures],
    whole_s: float,
    bytes_of_all: float,
    step_ms: float,
) -> None:
    """Adds the rows of one cache."""
    scenario = f"{name}: {name_of(share)}"
    # On links a byte counts with its headers: cache and window are grown alike.
    counted = bytes_of_all / world.bytes
    size, cache, window = (round(value * counted) for value in (world.bytes, share * world.bytes, world.window_bytes))
    read = [moved(epoch).bytes for epoch in mine]
    bar = payload_max(size, cache, window)
    each_epoch = ", ".join(f"{each:,}" for each in read)
    note = f"bound S - C = {payload_least(size, cache):,} = {size:,} - {cache:,}; W = {window:,}; read {each_epoch}"
    report.count(What(scenario, "source bytes over 1.03 x (S - C) + W", "x", 1, "the bound"), [each / bar for each in read], note)
    ideal = ideal_s(mine[0].said["batches"] * step_ms / 1000, whole_s, share)
    note = f"bound {shown(ideal)} s: the larger of all steps and {1 - share:.0%} of the {shown(whole_s)} s in which all is read"
    report.time(What(scenario, "time over the ideal", "x", OVER_IDEAL_MAX, "the ideal"), [epoch.seconds / ideal for epoch in mine], note)
    faster = FASTER.get((kind, share))
    most, bound = least_of(share, faster or 1)
    ratios = [one.seconds / other.seconds for one, other in zip(mine, theirs, strict=True)]
    note = (f"{faster} times faster is asked for; " if faster else "") + f"bound {bound:.2f} where bandwidth is all that counts"
    report.time(What(scenario, "time over PyTorch's loader's", "x", most if faster else None, "PyTorch's loader"), ratios, note)
    # PyTorch's loader keeps nothing, so any cache of this size spares so much; where latency counts, ours also reads
    # more at once.
    what = What(scenario, "the same over 1 - C/S", "x", None if kind == LATENCY else OVER_IDEAL_MAX, "any cache of this size")
    report.time(what, [ratio / bound for ratio in ratios], "bound 1: the source's bandwidth is all that counts")
    report.time(What(scenario, "an epoch", "s"), [epoch.seconds for epoch in mine])
    left = mine[-1].said["agent"]["left_to_ranks"]
    report.once(What(scenario, "samples that the agent left to the rank, in all epochs", "samples"), left)
