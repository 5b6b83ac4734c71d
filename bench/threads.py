"""Measures who gets a node's threads, against bars: `make bench-threads`. Needs root.

It takes about 45 minutes on two cores, in calls of 30.

Four ranks train in step, in timed pauses. One of them has reads, or decoding, that take four times as long, each for a
hundred steps. Decoding is a checksum and a timed wait beside it: threads that compute would share two cores, and no
division of them would show.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command
from bench.loader_bounds import imbalanced
from bench.loader_world import lines, node
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import program
from testbed.testbed import slowfs

RANKS = 4
SLOWER = 4
BATCH = 8
STEP_MS = 60.0
WARM_UP = 20
"""First steps of an epoch that do not count: nothing is measured yet by which threads could be divided."""
FILE_BYTES = 4096
THREADS = 3
"""Decoding threads of a rank's own."""
DECODE_MS = 8.5
"""Wait for a sample of a rank that is not slow. All waits together take two thirds of the time of all threads."""
READS = 8
"""Most concurrent reads of the node, two for each rank where shares are static."""
READ = {"meta_us": 1000.0, "open_ms": 1.5, "read_us": 0.0}
"""Cost of a lookup and an open of a rank that is not slow. The bytes themselves cost nothing: only the first loader over
a source would pay for them, since the kernel keeps them for the others."""
LONG_BATCH = 4
LONG_READ = READ | {"open_ms": 25.0}
LONG_READS = 13
"""Fewer and longer reads, of 28 ms and 112 ms, and hardly more concurrent ones than all of them need together. With
short ones, what is counted is the noise of two cores; with more places, no rank waits under any common queue."""
OTHERS = ("static", "first_come")
OURS = "forebay"
OTHERS_EVERY = 3
"""Runs of ours for each run of another schedule: these hardly differ from run to run."""
EPOCH_BAR = 1.10
SIDE_STEPS = 100
"""Steps after which another rank is the slow one."""
HALVES_THREADS = 16
"""Threads of the node that read or decode, where one half of an epoch needs most of them to read."""
HALVES_DECODE_MS = 5.0
HALVES_READS = (0.25, 3.2)
"""Factors of the times of a read in the half that decoding limits, and in the other."""
HALVES = {"lobster": ("lobster", 2)}
HALVES_OTHERS = {"static 12 + 4": ("static", 1), "static 8 + 8": ("static", 2), "static 4 + 12": ("static", 3)}
"""Schedules by name, with the decoding threads of a rank: the others read."""
HALVES_STATIC = 1.25
PAPER_STEP_MS = 15.0
PAPER_DECODE_MS = 3.0
PAPER_READS = 8
PAPER = (
    ("torch", "lru", "static"),
    ("dali", "lru", "dali_like"),
    ("nopfs", "nopfs", "first_come"),
    ("threads alone", "lru", "lobster"),
    ("eviction alone", "lobster", "dali_like"),
    ("lobster", "lobster", "lobster"),
    ("forebay", "forebay", "forebay"),
)
"""Names, policies and schedules. `lobster` is both of threads and eviction."""
PAPER_RATIOS = {"torch": ", 1.6 in the paper", "dali": ", 1.7 in the paper", "nopfs": ", 1.2 in the paper"}
DECIDING_STEP_MS = 10.0
DECIDING_BAR = 0.01


@dataclass(frozen=True)
class ThreadsSize:
    """Steps of an epoch, and runs of each schedule."""

    steps: int
    runs: int


FULL = ThreadsSize(steps=400, runs=9)
QUICK = ThreadsSize(steps=80, runs=1)


@dataclass(frozen=True)
class ThreadsBench:
    """Files of all ranks, and a directory for mounts."""

    size: ThreadsSize
    place: Path

    def files(self, batch: int = BATCH) -> Path:
        """Small files, one a sample."""
        path = self.place / f"files-{batch}"
        if not path.exists():
            path.mkdir()
            for number in range(RANKS * batch * self.size.steps):
                (path / f"{number:06}").write_bytes(number.to_bytes(8, "little") * (FILE_BYTES // 8))
        return path

    def order(self, ours: Sequence[str], others: Sequence[str]) -> list[str]:
        """Returns names in the order of their runs: alternately, the others once for a few of ours."""
        order: list[str] = []
        for number in range(self.size.runs):
            names = [*ours, *(others if number % OTHERS_EVERY == 0 else ())]
            order += names if number % 2 == 0 else names[::-1]
        return order

    @property
    def ideal_s(self) -> float:
        """Seconds of an epoch whose steps wait for nothing."""
        return self.size.steps * STEP_MS / 1000

    def sides(self, one: int, other: int) -> list[int]:
        """Two ranks alternately, one for each hundred steps."""
        parts = max(2, self.size.steps // SIDE_STEPS)
        return [one if part % 2 == 0 else other for part in range(parts)]

    @property
    def decoding_sides(self) -> list[object]:
        """Options that make decoding of one rank slow."""
        return ["--slower", SLOWER, "--slow", *self.sides(1, 2)]

    def reading_sides(self, slow: Path) -> list[object]:
        """Options that make reads of one rank slow."""
        return ["--slow-root", slow, "--slow-reads", *self.sides(3, 0)]


def decoding(world: ThreadsBench, report: BenchReport) -> None:
    """One rank's samples take four times as long to decode; which one changes every hundred steps."""
    scenario = f"decoding: {RANKS} ranks, decoding of one takes {SLOWER} times as long"
    options = ["--decode-ms", DECODE_MS, *world.decoding_sides]
    load = DECODE_MS * BATCH * (RANKS - 1 + SLOWER) / (RANKS * THREADS * STEP_MS)
    note = f"bound 0; decoding takes {load:.2f} of all threads' time, first_come moves none"
    compare(world, report, scenario, world.files(), options, note)


def reads(world: ThreadsBench, report: BenchReport) -> None:
    """One rank's reads take four times as long; which one changes every hundred steps."""
    scenario = f"reads: {RANKS} ranks, reads of one take {SLOWER} times as long"
    with both_mounted(world.files(LONG_BATCH), LONG_READ) as (usual, slow):
        compare(world, report, scenario, usual, world.reading_sides(slow), "bound 0", LONG_BATCH, {"reads_max": LONG_READS})


def both(world: ThreadsBench, report: BenchReport) -> None:
    """One rank's reads and another's decoding take four times as long; which ones changes every hundred steps."""
    scenario = f"both: {RANKS} ranks, reads of one and decoding of another take {SLOWER} times as long"
    with both_mounted(world.files()) as (usual, slow):
        options = ["--decode-ms", DECODE_MS, *world.decoding_sides, *world.reading_sides(slow)]
        compare(world, report, scenario, usual, options, "bound 0")


def halves(world: ThreadsBench, report: BenchReport) -> None:
    """Reading limits the first half of an epoch, decoding the second (Observation 2).

    Static splits of the same number of threads, of which the best counts, beside `lobster`, which moves threads between
    reading and decoding.
    """
    scenario = f"halves: reading takes most of {HALVES_THREADS} threads in one half of an epoch, decoding in the other"
    options = ["--step-ms", STEP_MS, "--decode-ms", HALVES_DECODE_MS, "--slower", SLOWER, "--slow", -1, -2, "--slow-reads", -2, -1]
    epochs: dict[str, list[float]] = {}
    with both_mounted(world.files(), times=HALVES_READS) as (usual, slow):
        for name in world.order(list(HALVES), list(HALVES_OTHERS)):
            schedule, decoders = (HALVES | HALVES_OTHERS)[name]
            own = {"reads_max": HALVES_THREADS - RANKS * decoders}
            ((_, said),) = epochs_of([schedule], usual, [*options, "--slow-root", slow], decoders, own)
            epochs.setdefault(name, []).append(said["seconds"] / world.ideal_s)
            report.note_load()
    best = min(statistics.median(epochs[name]) for name in HALVES_OTHERS)
    for name, found in epochs.items():
        bar = EPOCH_BAR if name in HALVES else None
        note = f"static at its best split {best:.3f}, at least {HALVES_STATIC} is asked for"
        report.time(What(scenario, f"{name}: epoch over the ideal", "x", bar, "steps alone"), found, note)


def paper(world: ThreadsBench, report: BenchReport) -> None:
    """Warm epochs with the paper's loaders, by policy and schedule: their order, and Figure 11."""
    scenario = "paper: warm epochs, a third of the data in memory"
    kept = RANKS * BATCH * world.size.steps * FILE_BYTES // 3
    epochs: dict[str, list[float]] = {}
    options = ["--step-ms", PAPER_STEP_MS, "--decode-ms", PAPER_DECODE_MS, "--seed", 1]
    with mounted(world.files(), READ, 1) as usual:
        for number in range(min(3, world.size.runs)):
            for name, policy, schedule in PAPER[:: 1 if number % 2 == 0 else -1]:
                own = {"policy": policy, "memory_bytes": kept, "reads_max": PAPER_READS}
                warm = epochs_of([schedule], usual, options, THREADS, own, epochs=2)[1][1]
                epochs.setdefault(name, []).append(warm["seconds"])
                report.note_load()
    ours = statistics.median(epochs["lobster"])
    for name, found in epochs.items():
        ratio = PAPER_RATIOS.get(name, "")
        note = f"over lobster {statistics.median(found) / ours:.2f}{ratio}"
        report.time(What(scenario, f"{name}: warm epoch", "s"), found, note)
    for one in ("threads alone", "eviction alone"):
        ratios = [both / alone for both, alone in zip(epochs["lobster"], epochs[one], strict=True)]
        report.time(What(scenario, f"both over {one}", "x", 1.0, one), ratios)


@contextlib.contextmanager
def both_mounted(files: Path, read: Mapping[str, float] = READ, times: tuple[float, float] = (1, SLOWER)) -> Iterator[tuple[Path, Path]]:
    """The files on two file systems, whose answers take so many times as long."""
    with mounted(files, read, times[0]) as usual, mounted(files, read, times[1]) as slow:
        yield usual, slow


@contextlib.contextmanager
def mounted(files: Path, read: Mapping[str, float], times: float) -> Iterator[Path]:
    """The files on a file system whose answers take so many times as long."""
    mnt = Path(tempfile.mkdtemp(prefix="source-", dir=files.parent))
    # Attributes are asked for each time: nothing of a file is kept from one loader to the next.
    settings = {name: times * value for name, value in read.items()} | {"slots": 64, "attr_ttl_ms": 0, "threads": 64}
    with slowfs(files, mnt, allow_other=True, readdirplus=True, **settings):
        yield mnt


def compare(
    world: ThreadsBench,
    report: BenchReport,
    scenario: str,
    root: Path,
    options: Sequence[object],
    bound: str,
    batch: int = BATCH,
    own: Mapping[str, Any] | None = None,
) -> None:
    """Measures epochs with each schedule, alternately."""
    counts: dict[str, list[int]] = {}
    epochs: dict[str, list[float]] = {}
    steps = world.size.steps - WARM_UP
    order = world.order([OURS], OTHERS)
    for schedule, said in epochs_of(order, root, [*options, "--step-ms", STEP_MS], own=own, batch=batch):
        counted = [waits[WARM_UP:] for waits in said["waits_s"]]
        counts.setdefault(schedule, []).append(imbalanced(counted, STEP_MS / 1000))
        epochs.setdefault(schedule, []).append(said["seconds"] / world.ideal_s)
        report.note_load()
    for schedule in (OURS, *OTHERS):
        note = f"{bound}; of {steps} steps a run: {', '.join(map(str, counts[schedule]))}"
        report.once(What(scenario, f"{schedule}: imbalanced steps", "steps"), statistics.median(counts[schedule]), note)
    for other, share in (("static", 0.1), ("first_come", 0.5)):
        most = share * statistics.median(counts[other])
        what = What(scenario, f"imbalanced steps, the bar {share} of those of {other}", "steps", most, other)
        report.time(what, [float(count) for count in counts[OURS]])
    for schedule in (OURS, *OTHERS):
        bar = EPOCH_BAR if schedule == OURS else None
        report.time(What(scenario, f"{schedule}: epoch over the ideal", "x", bar, "steps alone"), epochs[schedule], "bound 1")


def deciding(world: ThreadsBench, report: BenchReport) -> None:
    """Measures the cost of deciding: the agent's time with ours, less that where threads stay."""
    scenario = f"deciding: {RANKS} ranks, a step every {DECIDING_STEP_MS:.0f} ms or so"
    options = ["--decode-ms", 1, "--slower", SLOWER, "--slow", *[0, 2] * 4, "--step-ms", DECIDING_STEP_MS]
    cpu_s: dict[str, list[float]] = {}
    steps = world.size.steps
    for schedule, said in epochs_of(world.order([OURS, "earliest_deadline"], []), world.files(), options):
        cpu_s.setdefault(schedule, []).append(said["agent_cpu_s"] / steps)
        report.note_load()
    more = [(ours - other) * 100 for ours, other in zip(cpu_s[OURS], cpu_s["earliest_deadline"], strict=True)]
    whole = statistics.median(cpu_s[OURS]) * 100
    note = f"by the agent's CPU time a step; all that it does takes {whole:.4f} of a core"
    report.time(What(scenario, "deciding at 100 steps/s", "of a core", DECIDING_BAR, "earliest_deadline"), more, note)


def epochs_of(
    order: Sequence[str],
    root: Path,
    options: Sequence[object],
    threads: int = THREADS,
    own: Mapping[str, Any] | None = None,
    epochs: int = 1,
    batch: int = BATCH,
) -> list[tuple[str, dict[str, Any]]]:
    """Returns schedules and their epochs, in the order in which they ran, on one node.

    Args:
        order: schedules of loaders, which follow one another.
        root: where all ranks read.
        options: of the program.
        threads: with which each rank decodes.
        own: settings of the agent that differ from the usual ones.
        epochs: of each run.
        batch: samples of a rank's batch.
    """
    window_bytes = 16 * batch * RANKS * FILE_BYTES
    agent = {"memory_bytes": 1 << 20, "window_bytes": window_bytes, "policy": "none", "reads_max": READS, "hedge_budget": 0.0}
    agents = [json.dumps(agent | dict(own or {}) | {"schedule": schedule}) for schedule in order]
    fixed = ["--batch", batch, "--threads", threads, "--epochs", epochs]
    words = program("thread_ranks", *[root] * RANKS, *fixed, *options, "--agents", *agents)
    with node() as here:
        said = lines(words, here.variables)
    if any(len({line["digest"] for line in said if line["epoch"] == epoch}) != 1 for epoch in range(epochs)):
        raise RuntimeError("schedules gave different batches")
    return list(zip([schedule for schedule in order for _ in range(epochs)], said, strict=True))


SCENARIOS = {"decoding": decoding, "reads": reads, "both": both, "halves": halves, "paper": paper, "deciding": deciding}


@contextlib.contextmanager
def world(size: ThreadsSize, parent: Path) -> Iterator[ThreadsBench]:
    """Makes files when they are first asked for, and removes them at the end."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=parent) as place:
        yield ThreadsBench(size, Path(place))


BENCH = command.RootBench("bench-threads", "threads", __doc__, (Part.LOADER,))


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
