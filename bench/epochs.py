"""Whole epochs of one program: on the slow file system as it is, under Forebay, in a second run, and on a plain local directory."""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import Report
from bench.session import Epoch, ProgramError, Session, program, session, tiered
from bench.world import Tier, Traffic, World

TTL_S = 60
FRESHNESS = (f"ttl={TTL_S}", "immutable")
# What a file costs a brick. With the answer to a lookup come the bytes of a small file, so a lookup counts as much as a read.
FILE_OPERATIONS = ("LOOKUP", "OPEN", "READ")
# The mount, the data set, the directory.
LOOKUPS_A_LISTING = 3
DROPS_MAX = 0.001
FILES_A_LISTING = 50


@dataclass(frozen=True)
class Kind:
    """A program and its data."""

    name: str
    source: Path
    local: Path
    reader: tuple[str, ...]
    pace_ms: float
    epoch_1_bar: float
    # How many of the rounds' first epochs go into one sample.
    first_epochs: int

    def words(self, root: Path) -> list[str]:
        """The program's command line."""
        return program(self.reader[0], root, "--step", *self.reader[1:])


@dataclass
class Found:
    """Samples, one a round unless said otherwise."""

    first_ratio: list[float] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    untiered_seconds: list[float] = field(default_factory=list)
    untiered_bytes: list[float] = field(default_factory=list)
    settled_after_s: list[float] = field(default_factory=list)
    local_seconds: list[float] = field(default_factory=list)
    fits: dict[str, list[float]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    again: dict[str, list[float]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    fits_seen: dict[str, list[Seen]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    again_seen: dict[str, list[Seen]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    again_first_bytes: list[float] = field(default_factory=list)
    listings: list[float] = field(default_factory=list)
    window_excess: list[float] = field(default_factory=list)
    window_bytes: list[float] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the source saw of a run's later epochs."""

    epochs: int
    files: int
    bytes: float
    untiered_bytes: float
    operations: Counter[str]
    dropped: int

    @property
    def excess(self) -> int:
        """What was asked of files beyond what dropped hand-overs explain; more drops than are allowed explain nothing."""
        explained = min(self.dropped, math.floor(self.files * DROPS_MAX)) * len(FILE_OPERATIONS)
        return max(0, of_files(self.operations) - explained)


def of_files(operations: Mapping[str, int]) -> int:
    """Lookups, opens and reads of files. To list a directory, its path is looked up part by part: these are no files."""
    of_directories = LOOKUPS_A_LISTING * operations.get("OPENDIR", 0)
    return max(0, operations.get("LOOKUP", 0) - of_directories) + operations.get("OPEN", 0) + operations.get("READ", 0)


class Rounds:
    """Rounds of one kind; in each, every program is measured once, next to what it is compared with."""

    def __init__(self, world: World, kind: Kind, report: Report) -> None:
        self.world = world
        self.kind = kind
        self.report = report
        self.found = Found()
        self.epochs = 2
        self.digests: set[int] = set()
        self.quota = 2 * sum(path.stat().st_size for path in kind.local.rglob("*") if path.is_file())

    def measure(self) -> None:
        """All rounds."""
        self.calibrate()
        for number in range(self.world.size.pairs):
            print(f"{self.kind.name}: round {number + 1} of {self.world.size.pairs}", flush=True)
            self.round(number)
            self.report.note_load()
        if len(self.digests) != 1:
            raise ProgramError(f"not all epochs of {self.kind.name} read the same bytes")

    def calibrate(self) -> None:
        """How many epochs make a sample long enough, and how long the program takes on local files from the start."""
        with session(self.world, self.kind.words(self.kind.local)) as local:
            first = local.epoch(pace_ms=self.kind.pace_ms)
            later = [local.epoch() for _ in range(2)]
        self.note([first, *later])
        per_epoch = statistics.mean(epoch.seconds for epoch in later)
        self.epochs = max(2, math.ceil(self.world.size.seconds / per_epoch))
        self.found.totals["on a local copy"] = sum(epoch.seconds for epoch in [first, *later])

    def round(self, number: int) -> None:
        """Every program once."""
        freshness = FRESHNESS[number % 2]
        with self.world.tier() as tier:
            later = self.first_epochs(number, tier, freshness)
            local = self.local()
            self.found.local_seconds.append(local)
            self.found.fits[freshness].append(later / local)
            again = self.second_run(tier, freshness)
            self.found.again[freshness].append(again / local)

    def first_epochs(self, number: int, tier: Tier, freshness: str) -> float:
        """First epochs in pairs, untiered and tiered by turns; the last tiered one goes on to its later epochs, whose mean comes back."""
        untiered: list[Epoch] = []
        firsts: list[Epoch] = []
        later = 0.0
        for turn in range(self.kind.first_epochs):
            goes_on = turn == self.kind.first_epochs - 1
            # Who comes first alternates.
            for who in ("untiered", "tiered") if (number + turn) % 2 == 0 else ("tiered", "untiered"):
                if who == "untiered":
                    untiered.append(self.untiered(baseline=number == 0 and goes_on))
                elif goes_on:
                    first, later = self.tiered_run(number, tier, freshness, untiered)
                    firsts.append(first)
                else:
                    with self.world.tier() as other, self.start(other, freshness) as running:
                        firsts.append(self.note([running.epoch(pace_ms=self.kind.pace_ms, watch=True)])[0])
        self.found.first_ratio.append(sum(e.seconds for e in firsts) / sum(e.seconds for e in untiered))
        self.found.first_seconds.extend(e.seconds for e in firsts)
        self.found.untiered_seconds.extend(e.seconds for e in untiered)
        self.found.settled_after_s.extend(e.settled_after_s for e in firsts)
        for mine, theirs in zip(firsts, untiered, strict=True):
            self.found.first_bytes.append(moved(mine).bytes / moved(theirs).bytes)
            self.found.untiered_bytes.append(moved(theirs).bytes)
        return later

    def untiered(self, *, baseline: bool) -> Epoch:
        """The program as it is: its first epoch, and once all three."""
        with session(self.world, self.kind.words(self.kind.source)) as running:
            first = running.epoch(pace_ms=self.kind.pace_ms, watch=True)
            self.note([first])
            if baseline:
                later = [running.epoch() for _ in range(2)]
                self.found.totals["as it is"] = first.seconds + sum(epoch.seconds for epoch in later)
        return first

    def start(self, tier: Tier, freshness: str) -> contextlib.AbstractContextManager[Session]:
        """The program under Forebay."""
        return session(self.world, tiered(self.world, tier, self.quota, freshness, self.kind.words(self.kind.source)), tier)

    def tiered_run(self, number: int, tier: Tier, freshness: str, untiered: Sequence[Epoch]) -> tuple[Epoch, float]:
        """Its first epoch, and the mean of its later ones."""
        with self.start(tier, freshness) as running:
            first = running.epoch(pace_ms=self.kind.pace_ms, watch=True)
            begun, before = time.monotonic(), self.world.traffic()
            later = [running.epoch(watch=nth < 2) for nth in range(self.epochs)]
            # Enough runs are watched for one whole validity.
            if freshness == FRESHNESS[0] and len(self.found.listings) < self.world.size.runs:
                time.sleep(max(0.0, begun + TTL_S - time.monotonic()))
                per_ttl = TTL_S / (time.monotonic() - begun)
                window = self.world.traffic() - before
                self.found.listings.append(window.most("READDIRP") * per_ttl)
                self.found.window_excess.append(of_files(window.operations))
                self.found.window_bytes.append(window.bytes * per_ttl)
            record = running.end()
        self.note([first, *later])
        if number == 0:
            self.found.totals["tiered"] = sum(epoch.seconds for epoch in [first, *later[:2]])
        self.found.fits_seen[freshness].append(self.seen(later[:2], record, untiered))
        return first, statistics.mean(epoch.seconds for epoch in later)

    def second_run(self, tier: Tier, freshness: str) -> float:
        """Another run on a warm tier; where names must be validated first, its epochs count from then on."""
        with self.start(tier, freshness) as running:
            if freshness == FRESHNESS[0]:
                validating = running.epoch(watch=True)
                self.note([validating])
                self.found.again_first_bytes.append(moved(validating).bytes)
            later = [running.epoch(watch=nth < 2) for nth in range(self.epochs)]
            record = running.end()
        self.note(later)
        self.found.again_seen[freshness].append(self.seen(later[:2], record, []))
        return statistics.mean(epoch.seconds for epoch in later)

    def local(self) -> float:
        """The mean epoch on a local copy."""
        with session(self.world, self.kind.words(self.kind.local)) as running:
            later = [running.epoch() for _ in range(self.epochs)]
        self.note(later)
        return statistics.mean(epoch.seconds for epoch in later)

    def seen(self, epochs: Sequence[Epoch], record: object, untiered: Sequence[Epoch]) -> Seen:
        """Sums up what the source saw in watched epochs."""
        assert isinstance(record, dict)
        counters: dict[str, int] = record["counters"]
        traffic = [moved(epoch) for epoch in epochs]
        operations: Counter[str] = Counter()
        for one in traffic:
            operations.update(one.operations)
        return Seen(
            epochs=len(epochs),
            files=epochs[0].files,
            bytes=sum(one.bytes for one in traffic),
            untiered_bytes=statistics.median([moved(e).bytes for e in untiered] or self.found.untiered_bytes),
            operations=operations,
            dropped=counters["dropped_queue_full"] + counters["dropped_no_agent"],
        )

    def note(self, epochs: list[Epoch]) -> list[Epoch]:
        """Every epoch must have read the same bytes."""
        self.digests.update(epoch.digest for epoch in epochs)
        return epochs

    def rsync_first(self) -> None:
        """The other way to have local data: all of it is copied before the program begins."""
        target = self.world.place / "rsynced"
        self.world.drop_caches()
        begun = time.monotonic()
        try:
            subprocess.run(["rsync", "-a", f"{self.kind.source}/", f"{target}/"], check=True)
            self.found.totals["rsync first"] = time.monotonic() - begun + self.found.totals["on a local copy"]
        finally:
            shutil.rmtree(target, ignore_errors=True)


def moved(epoch: Epoch) -> Traffic:
    """What a watched epoch moved."""
    assert epoch.traffic
    return epoch.traffic


def all_of(by_freshness: dict[str, list[float]]) -> list[float]:
    """Whatever the freshness."""
    return [value for values in by_freshness.values() for value in values]


def most(seen: Iterable[Seen], operation: str) -> list[float]:
    """How many of an operation each run cost, beside what is said of it."""
    return [float(one.operations[operation]) for one in seen]
