"""Training jobs: what each reads and computes, the ways by which the data comes to it, and what came of each way."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.epochs import FRESHNESS, moved
from bench.peers import rclone, rsync
from bench.programs.course import listed
from bench.session import EpochFigures, program, session, tiered
from bench.world import SourceTraffic, TierDirectory, TieringBench

EPOCHS = 3
# What the tier holds of the data: the paper's 119 of 200 GiB.
TIER_SHARE = 0.6
# Workers that decode: two cores.
WORKERS = 2

AS_IT_IS = "as it is"
FITS = "Forebay, tier of 200 %"
PART = "Forebay, tier of 60 %"
RSYNC = "rsync first"
RCLONE_FITS = "rclone mount, cache of 200 %"
RCLONE_PART = "rclone mount, cache of 60 %"
QUOTAS = {FITS: 2.0, PART: TIER_SHARE, RCLONE_FITS: 2.0, RCLONE_PART: TIER_SHARE}


@dataclass(frozen=True)
class TrainingJob:
    """A model in a framework, and the data that it is trained with."""

    framework: str
    model: str
    source: Path
    # The same data on a local directory.
    local: Path
    classes: int
    # How many of the files it reads, by the order of their names; all if none is said.
    first: int | None = None

    @property
    def name(self) -> str:
        """Name on the command line."""
        return f"{self.framework}-{self.model}"

    def words(self, root: Path) -> list[str]:
        """The program's command line."""
        options: list[object] = ["--framework", self.framework, "--model", self.model, "--classes", self.classes, "--threads", WORKERS]
        return program("train", root, "--step", *options, *(["--first", self.first] if self.first else []))

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of its files, in bytes."""
        return [Path(path).stat().st_size for path in listed(str(self.local), self.first)]

    def quota(self, arm: str) -> int:
        """Returns the size of an arm's tier or cache, in bytes."""
        return int(QUOTAS[arm] * sum(self.sizes))


@dataclass(frozen=True)
class MonarchRun:
    """Three epochs of a job, by one way."""

    arm: str
    epochs: tuple[EpochFigures, ...]
    # What had to be copied before the job could begin: seconds, and what the source saw of it.
    before_s: float = 0.0
    before: SourceTraffic | None = None
    # Bytes and files that the tier held at the end.
    cached: tuple[int, int] = (0, 0)
    # The agent's memory after each epoch, and the most that it ever was, in MiB.
    resident_mib: tuple[float, ...] = ()
    peak_mib: float = 0.0

    @property
    def seconds(self) -> float:
        """From before the first epoch to the end of the last; without the program's own start."""
        return self.before_s + sum(epoch.seconds for epoch in self.epochs)

    @property
    def traffic(self) -> SourceTraffic:
        """Traffic at the source in all epochs, and in the copying before them."""
        return functools.reduce(operator.add, filter(None, [self.before, *map(moved, self.epochs)]))

    @property
    def warm(self) -> tuple[EpochFigures, ...]:
        """All epochs but the first."""
        return self.epochs[1:]

    @property
    def rates(self) -> list[float]:
        """Samples a second, about every second, over all epochs."""
        return [rate for epoch in self.epochs for rate in epoch.said["rates"]]


def seconds(epochs: Sequence[EpochFigures]) -> float:
    """Returns the mean seconds of an epoch."""
    return sum(epoch.seconds for epoch in epochs) / len(epochs)


def arms(model: str, number: int, *, quick: bool) -> list[str]:
    """Returns the ways that a round measures, in order: the first one alternates."""
    chosen = [AS_IT_IS, PART, RSYNC]
    if number == 0:
        chosen += [FITS] if model == "lenet" or not quick else []
        chosen += [RCLONE_FITS, RCLONE_PART] if model == "lenet" else []
    return chosen if number % 2 == 0 else chosen[::-1]


class Ways:
    """Runs of one job."""

    def __init__(self, world: TieringBench, job: TrainingJob) -> None:
        self.world = world
        self.job = job
        self._copied: tuple[float, SourceTraffic] | None = None

    def run(self, arm: str) -> MonarchRun:
        """One run, by one way."""
        if arm == AS_IT_IS:
            return self._plain(arm, self.job.source)
        if arm == RSYNC:
            return self._plain(arm, self._rsynced, *self._copying())
        if arm.startswith("rclone"):
            with rclone(self.world.place, self.job.source, self.job.quota(arm)) as mount:
                return self._plain(arm, mount)
        return self._tiered(arm)

    @contextlib.contextmanager
    def tier(self) -> Iterator[tuple[TierDirectory, list[str]]]:
        """An empty tier of 60 %, and the program's command line under Forebay."""
        with self.world.tier() as tier:
            yield tier, self._under_forebay(tier, PART)

    def _under_forebay(self, tier: TierDirectory, arm: str) -> list[str]:
        return tiered(self.world, tier, self.job.quota(arm), FRESHNESS[0], self.job.words(self.job.source))

    def _plain(self, arm: str, root: Path, before_s: float = 0.0, before: SourceTraffic | None = None) -> MonarchRun:
        with session(self.world, self.job.words(root)) as running:
            epochs = [running.epoch(watch=True) for _ in range(EPOCHS)]
            running.end()
        return MonarchRun(arm, tuple(epochs), before_s, before)

    def _tiered(self, arm: str) -> MonarchRun:
        epochs: list[EpochFigures] = []
        resident_mib: list[float] = []
        with self.world.tier() as tier:
            with session(self.world, self._under_forebay(tier, arm), tier) as running:
                assert running.agent
                for _ in range(EPOCHS):
                    epochs.append(running.epoch(watch=True))
                    resident_mib.append(running.agent.memory()["VmRSS"])
                peak_mib = running.agent.memory()["VmHWM"]
                running.end()
            cached = tier.bytes(), len(tier.files())
        return MonarchRun(arm, tuple(epochs), cached=cached, resident_mib=tuple(resident_mib), peak_mib=peak_mib)

    @property
    def _rsynced(self) -> Path:
        return self.world.place / f"rsynced-{self.job.name}"

    def _copying(self) -> tuple[float, SourceTraffic]:
        """Returns rsync's seconds and traffic; one copy serves all rounds."""
        if self._copied is None:
            local = self.job.local
            names = [str(Path(path).relative_to(local)) for path in listed(str(local), self.job.first)] if self.job.first else None
            before = self.world.traffic()
            seconds = rsync(self.world, self.job.source, self._rsynced, names)
            self._copied = seconds, self.world.traffic() - before
        return self._copied
