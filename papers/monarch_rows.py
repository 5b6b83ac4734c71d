"""Rows of a training job: times, the source's load, processor and memory, accuracy.

And the bars of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from bench.bounds import operations_max, seconds_max, source_bytes_max, variation
from bench.epochs import moved
from bench.report import BenchReport, What
from bench.report import number as shown
from papers.monarch_jobs import AS_IT_IS, PART, RSYNC, MonarchRun, TrainingJob, seconds

# The agent of a tier of some thousand files, and what it may grow by from one warm epoch to the next.
RESIDENT_MIB_MAX = 32
GROWTH_MIB_MAX = 1
# Models whose runs are repeated, so that what they count can be held against a bar; the first waits for data most of
# the time.
IO_BOUND = "lenet"
REPEATED = (IO_BOUND, "alexnet")

# What the bricks count of a close.
CLOSE = "FLUSH"

# A round's runs, by arm.
Round = Mapping[str, MonarchRun]

WHOLE = "three epochs, against the program as it is"
EPOCH = "an epoch"
BARS = "tier of 60 %, epochs 2 and 3"
MEMORY = "memory"
ACCURACY = "accuracy"
DIFFERING = "epochs that differ from those of the program as it is"
TIME = "time"
READS = "reads of the source"
OPENS = "opens and closes at the source"
BYTES = "bytes of the source"
SECONDS = "seconds"
RATES = "samples a second, second by second"
VARIATION = "variation of the throughput in epochs 2 and 3"


class TrainingRows:
    """The rows of one job."""

    def __init__(self, job: TrainingJob, rounds: Sequence[Round], report: BenchReport) -> None:
        self._job = job
        self._rounds = rounds
        self._report = report
        # In the order in which they were first measured.
        self._arms = list(rounds[0])

    def add(self) -> None:
        """All of them."""
        self._whole()
        self._epochs()
        if self._job.model in REPEATED:
            self._bars()
        self._memory()
        self._accuracy()

    def _what(self, part: str, metric: str, unit: str, bar: float | None = None, baseline: str = "") -> What:
        return What(f"{self._job.name}: {part}", metric, unit, bar, baseline)

    def _of(self, arm: str) -> Iterator[MonarchRun]:
        return (each[arm] for each in self._rounds if arm in each)

    def _whole(self) -> None:
        """Against the program as it is in the same round."""
        figures: dict[tuple[str, str], Callable[[MonarchRun], float]] = {
            (TIME, "s"): lambda run: run.seconds,
            (BYTES, "bytes"): lambda run: run.traffic.bytes,
            (READS, "operations"): lambda run: run.traffic.operations["READ"],
            (OPENS, "operations"): lambda run: sum(run.traffic.operations[name] for name in ("OPEN", CLOSE)),
            ("lookups at the source", "operations"): lambda run: run.traffic.operations["LOOKUP"],
        }
        for (name, unit), figure in figures.items():
            self._report.time(self._what(WHOLE, f"{AS_IT_IS}: {name}", unit), [figure(run) for run in self._of(AS_IT_IS)])
            for arm in self._arms:
                if arm != AS_IT_IS:
                    ratios = [figure(each[arm]) / figure(each[AS_IT_IS]) for each in self._rounds if arm in each]
                    self._report.time(self._what(WHOLE, f"{arm}: {name}", "x", None, AS_IT_IS), ratios)
        copied = [run.before_s for run in self._of(RSYNC)]
        self._report.time(self._what(WHOLE, f"{RSYNC}: until the program begins", "s"), copied[:1])

    def _epochs(self) -> None:
        """Adds the rows of an epoch's time, and of its causes."""
        on_copies = _mean(epoch.seconds - epoch.said["wait_s"] for run in self._of(RSYNC) for epoch in run.epochs)
        for arm in self._arms:
            epochs = list(chain.from_iterable(run.epochs for run in self._of(arm)))
            self._report.time(self._what(EPOCH, f"{arm}: {SECONDS}", "s"), [epoch.seconds for epoch in epochs])
            self._report.time(self._what(EPOCH, f"{arm}: of it waiting for batches", "s"), [epoch.said["wait_s"] for epoch in epochs])
            longer = [epoch.seconds - epoch.said["wait_s"] - on_copies for epoch in epochs]
            self._report.time(self._what(EPOCH, f"{arm}: steps longer than on a local copy, for want of processor", "s"), longer)
            self._report.time(self._what(EPOCH, f"{arm}: the program's CPU", "s"), [epoch.cpu_s for epoch in epochs])
            others = [epoch.said["machine_cpu_s"] - epoch.cpu_s for epoch in epochs]
            self._report.time(self._what(EPOCH, f"{arm}: CPU of all else: client, servers, agent", "s"), others)
            if any(run.resident_mib for run in self._of(arm)):
                agent = [epoch.agent_cpu_ms / 1000 for epoch in epochs]
                self._report.time(self._what(EPOCH, f"{arm}: the agent's CPU", "s"), agent)
                settled = [epoch.settled_after_s for epoch in epochs]
                self._report.time(self._what(EPOCH, f"{arm}: until the last copy is made, after the epoch", "s"), settled)
            self._report.time(self._what(EPOCH, f"{arm}: {RATES}", "samples/s"), next(self._of(arm)).rates, "of the first round")
            spread = [variation([rate for epoch in run.warm for rate in epoch.said["rates"]]) for run in self._of(arm)]
            self._report.time(self._what(EPOCH, f"{arm}: {VARIATION}", "of the mean"), spread)

    def _bars(self) -> None:
        """Adds the rows of a tier that holds a part: each round's warm epochs within its bound."""
        compared = [Compared(self._job, each[AS_IT_IS], each[PART], each[RSYNC]) for each in self._rounds]
        self._report.time(self._what(BARS, "cached of the bytes", "of S"), [each.of_bytes for each in compared])
        self._report.time(self._what(BARS, "cached of the files", "of them"), [each.of_files for each in compared])
        for metric, limit in LIMITS.items():
            bar = 1 if metric != AGAINST_BOUND or self._job.model == IO_BOUND else None
            figures = [limit(each) for each in compared]
            note = "; ".join(f"{shown(plain)} as it is, bound {shown(most)}, {shown(mine)} measured" for plain, most, mine in figures)
            self._report.count(self._what(BARS, metric, "x the bound", bar, AS_IT_IS), [mine / most for _, most, mine in figures], note)
        over = [float(max(0, each.mine.cached[0] - self._job.quota(PART))) for each in compared]
        self._report.count(self._what(BARS, "copies over the quota", "bytes", 0), over)

    def _memory(self) -> None:
        """Adds the rows of CPU and memory of agent and program."""
        runs = [run for arm in self._arms for run in self._of(arm) if run.resident_mib]
        barred = self._job.model in REPEATED
        peak = self._what(MEMORY, "the agent, resident at most", "MiB", RESIDENT_MIB_MAX if barred else None)
        self._report.count(peak, [run.peak_mib for run in runs])
        growth = self._what(MEMORY, "the agent, growth from epoch 2 to epoch 3", "MiB", GROWTH_MIB_MAX if barred else None)
        self._report.count(growth, [run.resident_mib[-1] - run.resident_mib[-2] for run in runs])
        for arm in self._arms:
            resident = [run.epochs[-1].said["rss_mib"] for run in self._of(arm)]
            self._report.time(self._what(MEMORY, f"{arm}: the program, resident at most", "MiB"), resident)

    def _accuracy(self) -> None:
        """Equal seeds give equal weights, whatever way the data came."""
        first = self._rounds[0][AS_IT_IS]
        expected = [(epoch.digest, epoch.said["loss"], epoch.bytes) for epoch in first.epochs]
        found = [(epoch.digest, epoch.said["loss"], epoch.bytes) for each in self._rounds for run in each.values() for epoch in run.epochs]
        wanted = expected * sum(len(each) for each in self._rounds)
        others = sum(one != other for one, other in zip(found, wanted, strict=True))
        note = f"weights, loss and bytes of {len(found)} epochs, by all ways, to the last bit"
        self._report.once(self._what(ACCURACY, DIFFERING, "epochs", 0), others, note)
        for name, unit in (("top1", "of the samples"), ("loss", "")):
            values = [epoch.said[name] for epoch in first.epochs]
            note = "after each epoch: " + ", ".join(f"{value:.4g}" for value in values)
            self._report.once(self._what(ACCURACY, f"{name} in the last epoch", unit), values[-1], note)


class Limit(NamedTuple):
    """A figure of a round."""

    as_it_is: float
    # The most that it may be.
    most: float
    measured: float


@dataclass(frozen=True)
class Compared:
    """A round's runs that a warm tier is judged by."""

    job: TrainingJob
    plain: MonarchRun
    mine: MonarchRun
    local: MonarchRun

    @property
    def of_bytes(self) -> float:
        """The share of the bytes that is cached."""
        return self.mine.cached[0] / sum(self.job.sizes)

    @property
    def of_files(self) -> float:
        """The share of the files that is cached."""
        return self.mine.cached[1] / len(self.job.sizes)

    def bytes(self) -> Limit:
        """On the links, in the worse epoch."""
        sizes = self.job.sizes
        plain = _mean(moved(epoch).bytes for epoch in self.plain.warm)
        most = source_bytes_max(plain, sum(sizes), self.job.quota(PART), max(sizes))
        return Limit(plain, most, max(moved(epoch).bytes for epoch in self.mine.warm))

    def reads(self) -> Limit:
        """Returns the limit on reads at the bricks, in the worse epoch."""
        return self._operations("READ", self.of_bytes)

    def opens(self) -> Limit:
        """Returns the limit on opens at the bricks, in the worse epoch."""
        return self._operations("OPEN", self.of_files)

    def _operations(self, name: str, cached_share: float) -> Limit:
        plain = _mean(moved(epoch).operations[name] for epoch in self.plain.warm)
        return Limit(plain, operations_max(plain, cached_share), max(moved(epoch).operations[name] for epoch in self.mine.warm))

    def seconds(self) -> Limit:
        """Returns the limit on the mean seconds of an epoch; the stall is its excess over an epoch on a local copy."""
        plain = seconds(self.plain.warm)
        return Limit(plain, seconds_max(plain, seconds(self.local.warm), self.of_bytes), seconds(self.mine.warm))


AGAINST_BOUND = "seconds: the cached share of the stall gone"
LIMITS: dict[str, Callable[[Compared], Limit]] = {
    "source bytes of the worse epoch: 1.02 x (S - C) and one file": Compared.bytes,
    "reads of the worse epoch: 1.02 x the share that is not cached": Compared.reads,
    "opens of the worse epoch: the same": Compared.opens,
    AGAINST_BOUND: Compared.seconds,
}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
