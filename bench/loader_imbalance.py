"""Four ranks in step, one of which has reads that take four times as long: who waits for whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from bench.loader_bounds import imbalanced, over_others, stalled
from bench.loader_world import LATENCY, LoaderBench, lines, node
from bench.report import BenchReport, What
from bench.session import program

RANKS = 4
SLOWER = 4
# A twentieth of it makes a step imbalanced: more than what a program waits for a processor now and then.
STEP_MS = 200
# What a read of a rank that is not slow costs, as slowfs is told: lookup, open, read.
READ = {"meta_us": 4000.0, "open_ms": 8.0, "read_us": 8000.0}
STATIC, FIRST_COME, OURS = "static", "first_come", "earliest_deadline"
# One for each rank where shares are static. The slow rank needs more, all together less: see `busy`.
READS = RANKS
OF_OTHERS = 0.25
# A run's first step does not count: its reads begin when it is waited for, and whose come last waits longer, whatever
# the order.
WARM_UP = 1
CACHED = 0.3


def imbalance(world: LoaderBench, report: BenchReport, *, fill: bool = False) -> None:
    """Measures epochs with each schedule, alternately. `fill`: the cache is filled in the background meanwhile."""
    scenario = f"imbalance{'-fill' if fill else ''}: {RANKS} ranks, reads of one take {SLOWER} times as long"
    schedules = (FIRST_COME, OURS) if fill else (STATIC, FIRST_COME, OURS)
    counts: dict[str, list[int]] = {schedule: [] for schedule in schedules}
    waiting: dict[str, list[int]] = {schedule: [] for schedule in schedules}
    steps = 0
    for number in range(world.size.runs):
        for schedule in schedules if number % 2 == 0 else schedules[::-1]:
            print(f"{scenario.split(':')[0]}: round {number + 1} of {world.size.runs}, {schedule}", flush=True)
            epochs = run(world, schedule, fill=fill)
            steps = sum(len(waits[0]) for waits in epochs)
            counts[schedule].append(sum(imbalanced(waits, STEP_MS / 1000) for waits in epochs))
            waiting[schedule].append(sum(stalled(waits, STEP_MS / 1000) for waits in epochs))
            report.note_load()
    bound = f"bound 0: {busy(world):.2f} reads are under way on average, and there may be {READS}; of {steps} steps a run"
    for schedule in schedules:
        what = What(
            scenario, f"{schedule}: imbalanced steps", "steps", bar_of(counts, fill=fill) if schedule == OURS else None, "the others"
        )
        note = f"{bound}; each run: {', '.join(map(str, counts[schedule]))}; all ranks wait: {', '.join(map(str, waiting[schedule]))}"
        report.once(what, sum(counts[schedule]), note)
    # A bar that few events keep by chance proves little; here they must tell ours from first come.
    ratio, interval = over_others(sum(counts[OURS]), sum(counts[FIRST_COME]))
    what = What(scenario, "imbalanced steps over those of first come", "x", OF_OTHERS if fill else 1.0, FIRST_COME)
    report.between(what, ratio, interval, f"{sum(counts[OURS])} and {sum(counts[FIRST_COME])} steps")


def bar_of(counts: Mapping[str, list[int]], *, fill: bool) -> float:
    """The most imbalanced steps that ours may have in all runs."""
    first_come = sum(counts[FIRST_COME])
    if fill:
        return OF_OTHERS * first_come
    return min(first_come, OF_OTHERS * sum(counts[STATIC]))


def busy(world: LoaderBench) -> float:
    """Reads that are under way on average, if no rank waits."""
    read_s = (READ["meta_us"] / 1000 + READ["open_ms"] + READ["read_us"] / 1000) / 1000
    a_step = world.size.batch / RANKS * read_s * (RANKS - 1 + SLOWER)
    return a_step / (STEP_MS / 1000)


def run(world: LoaderBench, schedule: str, *, fill: bool) -> list[list[list[float]]]:
    """Returns, by epoch and rank, the wait in each step that counts.

    Where nothing is kept, the first epoch is as the others.
    """
    agent = world.cache(CACHED) | {"schedule": schedule, "reads_max": READS}
    agent |= {"background_fill": True} if fill else {"policy": "none"}
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(node())
        usual = stack.enter_context(world.source(LATENCY, **READ))
        slow = stack.enter_context(world.source(LATENCY, **{name: SLOWER * value for name, value in READ.items()}))
        usual.drop_caches()
        roots = [usual.mnt] * (RANKS - 1) + [slow.mnt]
        options = ["--batch", world.size.batch // RANKS, "--step-ms", STEP_MS, "--agent", json.dumps(agent)]
        said = lines(program("loader_ranks", *roots, *options), here.variables)
    first, *others = [line["waits_s"] for line in said]
    return [[of_rank[WARM_UP:] for of_rank in first], *others]
