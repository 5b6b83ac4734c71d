"""Our policy against others, all in our own runtime: the same agent, window, reads at once and hedging."""

from __future__ import annotations

import contextlib

from bench.epochs import moved
from bench.loader_bounds import lru_share, payload_least, payload_max
from bench.loader_warm import OVER_IDEAL_MAX, SHARES, STEP_MS, name_of, rounds
from bench.loader_world import BANDWIDTH, LoaderBench, epochs, start
from bench.report import BenchReport, What

OURS = "forebay"
LRU, PINNED, NOPFS, LOBSTER, AS_WRITTEN = "lru", "pinned", "nopfs", "lobster", "lobster_as_written"
OTHERS = (LRU, PINNED, NOPFS, LOBSTER, AS_WRITTEN)
# How many times faster than this an epoch has to be, by the share that is cached.
FASTER_THAN_LRU = {0.3: 1.2, 0.6: 1.7}
# Policies that read the same bytes take the same time, give or take this.
NEVER_SLOWER_MAX = 1.02


def policies(other: str, world: LoaderBench, report: BenchReport) -> None:
    """By turns, on the source whose bandwidth is what counts."""
    for share in SHARES:
        with world.source(BANDWIDTH) as source, contextlib.ExitStack() as stack:
            ways = {}
            for policy in (OURS, other):
                agent = world.cache(share) | {"policy": policy}
                ways[policy] = start(stack, source, epochs("forebay", source.mnt, world.size, step_ms=STEP_MS, agent=agent))[0]
            found = rounds(f"policies-{other}, {name_of(share)}", ways, world, report)
        scenario = f"policies-{other}: {name_of(share)}"
        pairs = list(zip(found[OURS], found[other], strict=True))
        faster = FASTER_THAN_LRU[share] if other == LRU else None
        bar = 1 / faster if faster else NEVER_SLOWER_MAX
        note = f"bound {least(other, share):.2f}: the bytes that ours has to read over those that {other} does, where these are known"
        report.time(What(scenario, "time over its", "x", bar, other), [one.seconds / two.seconds for one, two in pairs], note)
        if other == LRU:
            bound = least(other, share)
            what = What(scenario, "the same over the bound", "x", OVER_IDEAL_MAX, "both as good as they can be")
            report.time(what, [one.seconds / two.seconds / bound for one, two in pairs], f"bound 1, {bound:.3f} of the time of {other}")
        size, cache = world.bytes, int(share * world.bytes)
        note = f"bound S - C = {payload_least(size, cache):,}; its bytes: {', '.join(f'{moved(two).bytes:,}' for _, two in pairs)}"
        what = What(scenario, "source bytes over its", "x", 1.0 if other == AS_WRITTEN else None, other)
        report.count(what, [moved(one).bytes / moved(two).bytes for one, two in pairs], note)
        most = payload_max(size, cache, world.window_bytes)
        for policy, found_of in found.items():
            what = What(scenario, f"{policy}: source bytes over 1.03 x (S - C) + W", "x", 1 if policy == OURS else None)
            report.count(what, [moved(epoch).bytes / most for epoch in found_of])


def least(other: str, share: float) -> float:
    """The least that our epoch can take over that of another policy, if both are as good as they can be."""
    reads = 1 - (lru_share(share) if other == LRU else share)
    return (1 - share) / reads
