"""The scenarios about whole epochs.

Small files and shards, in a first run and a second, beside what people do without Forebay.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.epochs import DROPS_MAX, FILE_OPERATIONS, FILES_A_LISTING, FRESHNESS, TTL_S, Against, LaterEpochs, RoundFigures, Workload, most
from bench.report import BenchReport, What
from bench.rounds import Rounds
from bench.session import hand_over_hand, program, session, tiered
from bench.world import TieringBench

PACE_MS = 4
FIRST_PART = 1_500
AGENT_CPU_MS_MAX = 0.25


def files(world: TieringBench, report: BenchReport) -> None:
    """Small files, read by a paced program that decodes them."""
    kind = Workload("files", world.files, world.local_files, ("read_files", "--decode"), PACE_MS, 1.05, FIRST_PART, 64, True)
    rounds = Rounds(world, kind, report)
    rounds.measure()
    rows(rounds, report)
    unpaced(world, report)


def shards(world: TieringBench, report: BenchReport) -> None:
    """Large files, read in pieces of 256 KiB by four threads."""
    kind = Workload("shards", world.shards, world.local_shards, ("read_shards",), 0, 1.02, 4, 4, False)
    rounds = Rounds(world, kind, report)
    rounds.measure()
    rows(rounds, report)


def rows(rounds: Rounds, report: BenchReport) -> None:
    """Everything that rounds of one kind tell."""
    kind, found = rounds.kind, rounds.found
    first(kind, found, report)
    copies = "the same program on the same copies, through links in tmpfs"
    each = f"{rounds.epochs} epochs each, hand over hand, from cold caches"
    fits, again = f"{kind.name}: fits in the tier, epochs 2 and 3", f"{kind.name}: second run, warm tier"
    against(What(fits, "time", "x", 1.03, copies), found.fits, each, report)
    later(fits, found.fits_seen, report)
    if found.listings:
        bar = rounds.world.size.files / FILES_A_LISTING
        report.count(What(fits, f"ttl: readdirp a brick in {TTL_S} s", "operations", bar, "one per 50 files"), found.listings)
        report.count(What(fits, f"ttl: lookups, opens and reads of files in {TTL_S} s", "operations", 0), found.window_excess)
        share = [moved / statistics.median(found.untiered_bytes) for moved in found.window_bytes]
        report.count(What(fits, f"ttl: bytes on the links in {TTL_S} s", "x S", None, "an untiered epoch"), share)
    against(What(again, "time", "x", 1.03, copies), found.again, each, report)
    later(again, found.again_seen, report)
    if found.again_first_bytes:
        share = [moved / statistics.median(found.untiered_bytes) for moved in found.again_first_bytes]
        report.count(What(again, "ttl: source bytes of the epoch in which it is swept", "x S"), share)
    baseline = f"{kind.name}: the same program on the same copies"
    report.time(What(baseline, "seconds an epoch", "s"), found.copies_seconds)
    report.count(What(baseline, "links that lead to the local copy, there being none in the tier", "of files", DROPS_MAX), found.not_copies)
    report.count(What(baseline, "the agent's CPU in epochs 2 and 3", "cores"), found.agent_share)
    for name, seconds in found.totals.items():
        report.once(What(f"{kind.name}: three epochs", name, "s"), seconds)


def against(time: What, found: Sequence[Against], note: str, report: BenchReport) -> None:
    """Epochs against the same on the very copies."""
    report.time(time, [each.time for each in found], note)
    report.time(time._replace(metric="time of a turn, median"), [each.median_turn for each in found])
    report.time(time._replace(metric="the program's CPU", bar=None), [each.cpu for each in found])


def first(kind: Workload, found: RoundFigures, report: BenchReport) -> None:
    """The first epoch."""
    scenario = f"{kind.name}: epoch 1"
    untiered = "the program as it is"
    note = f"{PACE_MS} ms after each batch of 8" if kind.pace_ms else ""
    report.time(What(scenario, "time", "x", kind.epoch_1_bar, untiered), found.first_ratio, note)
    report.count(What(scenario, "source bytes", "x S", 1.02, untiered), found.first_bytes)
    report.time(What(scenario, "seconds, untiered", "s"), found.untiered_seconds)
    report.time(What(scenario, "seconds, tiered", "s"), found.first_seconds)
    report.time(What(scenario, "S: what an untiered epoch moves", "bytes"), found.untiered_bytes)
    report.time(What(scenario, "until the last copy is made, after the epoch", "s"), found.settled_after_s)


def later(scenario: str, by_freshness: dict[str, list[LaterEpochs]], report: BenchReport) -> None:
    """Adds the rows of the source's traffic in later epochs."""
    for how, seen in by_freshness.items():
        if not seen:
            continue
        excess = [float(one.excess) for one in seen]
        report.count(What(scenario, f"{how}: lookups, opens and reads of files beyond dropped hand-overs", "operations", 0), excess)
        dropped = [one.dropped / one.files for one in seen]
        report.count(What(scenario, f"{how}: dropped hand-overs", "of files", DROPS_MAX), dropped)
        moved = [one.bytes / one.epochs / one.untiered_bytes for one in seen]
        report.count(What(scenario, f"{how}: bytes on the links, an epoch", "x S", None, "untiered"), moved)
        if how == FRESHNESS[1]:
            asked = [float(sum(one.operations[name] for name in FILE_OPERATIONS)) for one in seen]
            report.count(What(scenario, f"{how}: lookups, opens and reads of anything", "operations", 0), asked)
        for name in sorted({name for one in seen for name, count in one.operations.items() if count}):
            report.count(What(scenario, f"{how}: {name.lower()}", "operations"), most(seen, name))


def unpaced(world: TieringBench, report: BenchReport) -> None:
    """The first epoch of a program that does nothing but read: reported with what the agent takes for a file."""
    words = program("read_files", world.files, "--step")
    quota = 2 * folder_bytes(world.local_files)
    ratio: list[float] = []
    cpu_ms: list[float] = []
    for _ in range(world.size.runs):
        with world.tier() as tier, session(world, tiered(world, tier, quota, FRESHNESS[0], words), tier) as running:
            mine, untiered = hand_over_hand(running, (world.files, world.as_it_is(world.files)), 1, FIRST_PART, apart=True)
        ratio.append(mine.seconds / untiered.seconds)
        cpu_ms.append(mine.agent_cpu_ms / mine.files)
        report.note_load()
    scenario = "files: epoch 1, unpaced"
    report.count(What(scenario, "agent's CPU", "ms a file", AGENT_CPU_MS_MAX), cpu_ms)
    report.time(What(scenario, "time", "x", None, "the program as it is"), ratio)


def folder_bytes(folder: Path) -> int:
    """The sizes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
