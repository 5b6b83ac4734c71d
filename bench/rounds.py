"""Rounds of one program.

On the slow file system as it is, under Forebay, in a second run, and on the very copies that Forebay made.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.epochs import FRESHNESS, TTL_S, Against, LaterEpochs, RoundFigures, Workload, moved, of_files
from bench.peers import rsync
from bench.report import BenchReport
from bench.session import BenchSession, EpochFigures, ProgramError, environment, hand_over_hand, program, session, tiered
from bench.world import TierDirectory, TieringBench

TTL = FRESHNESS[0]
LINKED_S = 120.0


class Rounds:
    """Rounds of one kind; in each, every program is measured once, in turns with what it is compared with."""

    def __init__(self, world: TieringBench, kind: Workload, report: BenchReport) -> None:
        self.world = world
        self.kind = kind
        self.report = report
        self.found = RoundFigures()
        # Epochs of each program that make one sample.
        self.epochs = 2
        self.digests: set[int] = set()
        self.quota = 2 * sum(path.stat().st_size for path in kind.local.rglob("*") if path.is_file())

    def measure(self) -> None:
        """All rounds.

        Raises:
            ProgramError: not all epochs, wherever they read, read the same bytes.
        """
        self.calibrate()
        for number in range(self.world.size.pairs):
            print(f"{self.kind.name}: round {number + 1} of {self.world.size.pairs}", flush=True)
            self.round(number)
            self.report.note_load()
        if self.kind.pace_ms:
            self.more_first_epochs()
        self.rsync_first()
        if len(self.digests) != 1:
            raise ProgramError(f"not all epochs of {self.kind.name} read the same bytes")

    def calibrate(self) -> None:
        """Measures the number of epochs that make a sample long enough.

        Three epochs without us, on the source and on a plain local copy.
        """
        per_epoch = 0.0
        for name, root in {"as it is": self.kind.source, "on a local copy": self.kind.local}.items():
            with session(self.world, self.kind.words(root)) as running:
                epochs = self.note([running.epoch(pace_ms=self.kind.pace_ms), running.epoch(), running.epoch()])
            self.found.totals[name] = sum(epoch.seconds for epoch in epochs)
            per_epoch = statistics.mean(epoch.seconds for epoch in epochs[1:])
        self.epochs = max(2, math.ceil(self.world.size.seconds / per_epoch))

    def round(self, number: int) -> None:
        """Every program once."""
        freshness = FRESHNESS[number % 2]
        with self.world.tier() as tier, in_memory() as links:
            with self.start(tier, freshness) as running:
                first, untiered = self.first_epoch(running)
                later = self.later_epochs(running, tier, freshness, links, untiered)
            if number == 0:
                self.found.totals["tiered"] = first.seconds + sum(epoch.seconds for epoch in later[:2])
            self.second_run(tier, freshness, links)

    def more_first_epochs(self) -> None:
        """Measures more first epochs of a paced program: they differ between processes by more than the bar."""
        for number in range(self.world.size.pairs * (self.world.size.times_pairs - 1)):
            print(f"{self.kind.name}: one more first epoch, {number + 1}", flush=True)
            with self.world.tier() as tier, self.start(tier, FRESHNESS[number % 2]) as running:
                self.first_epoch(running)
            self.report.note_load()

    def start(self, tier: TierDirectory, freshness: str) -> contextlib.AbstractContextManager[BenchSession]:
        """The program under Forebay."""
        return session(self.world, tiered(self.world, tier, self.quota, freshness, self.kind.words(self.kind.source)), tier)

    def first_epoch(self, running: BenchSession) -> tuple[EpochFigures, EpochFigures]:
        """The first epoch, hand over hand with one from the source as it is."""
        roots = self.kind.source, self.world.as_it_is(self.kind.source)
        mine, untiered = hand_over_hand(running, roots, 1, self.kind.first_part, pace_ms=self.kind.pace_ms, apart=True)
        self.note([mine, untiered])
        self.found.first_ratio.append(mine.seconds / untiered.seconds)
        self.found.first_seconds.append(mine.seconds)
        self.found.untiered_seconds.append(untiered.seconds)
        self.found.settled_after_s.append(mine.settled_after_s)
        self.found.first_bytes.append(moved(mine).bytes / moved(untiered).bytes)
        self.found.untiered_bytes.append(moved(untiered).bytes)
        return mine, untiered

    def later_epochs(
        self, running: BenchSession, tier: TierDirectory, freshness: str, links: Path, untiered: EpochFigures
    ) -> list[EpochFigures]:
        """Epoch 2 and those after it, hand over hand with the copies by other names."""
        self.link_copies(tier, freshness, links)
        begun, before = time.monotonic(), self.world.traffic()
        mine, against = self.against(running, links)
        self.found.fits.append(against)
        # Enough runs are watched for one whole validity.
        if self.kind.watch_listings and freshness == TTL and len(self.found.listings) < self.world.size.runs:
            time.sleep(max(0.0, begun + TTL_S - time.monotonic()))
            per_ttl = TTL_S / (time.monotonic() - begun)
            window = self.world.traffic() - before
            self.found.listings.append(window.most("READDIRP") * per_ttl)
            self.found.window_excess.append(of_files(window.operations))
            self.found.window_bytes.append(window.bytes * per_ttl)
        record = running.end()
        self.found.fits_seen[freshness].append(self.seen(mine[:2], record, [untiered]))
        return mine

    def second_run(self, tier: TierDirectory, freshness: str, links: Path) -> None:
        """Another run on a warm tier; where names must be validated first, its epochs count from then on."""
        with self.start(tier, freshness) as running:
            if freshness == TTL:
                validating = running.epoch(watch=True)
                self.note([validating])
                self.found.again_first_bytes.append(moved(validating).bytes)
            mine, against = self.against(running, links)
            self.found.again.append(against)
            record = running.end()
        self.found.again_seen[freshness].append(self.seen(mine[:2], record, []))

    def against(self, running: BenchSession, links: Path) -> tuple[list[EpochFigures], Against]:
        """Epochs under Forebay, and what they took over those on the copies by other names."""
        roots = self.kind.source, links
        both = [hand_over_hand(running, roots, number, self.kind.part) for number in range(self.epochs)]
        mine, theirs = [one for one, _ in both], [other for _, other in both]
        self.note([*mine, *theirs])
        self.found.copies_seconds.extend(epoch.seconds for epoch in theirs)
        seconds = sum(epoch.seconds for epoch in mine), sum(epoch.seconds for epoch in theirs)
        self.found.agent_share.append(sum(epoch.agent_cpu_ms for epoch in mine) / 1000 / sum(seconds))
        turns = [statistics.median(turn for epoch in epochs for turn in epoch.turns_s) for epochs in (mine, theirs)]
        cpu_s = [sum(epoch.cpu_s for epoch in epochs) for epochs in (mine, theirs)]
        return mine, Against(seconds[0] / seconds[1], turns[0] / turns[1], cpu_s[0] / cpu_s[1])

    def link_copies(self, tier: TierDirectory, freshness: str, links: Path) -> None:
        """Fills `links`, by a run beside the one that is measured."""
        words = program("link_copies", self.kind.source, self.kind.local, tier.dir.resolve(), links)
        linking = tiered(self.world, tier, self.quota, freshness, words)
        ended = subprocess.run(linking, env=environment(tier), capture_output=True, text=True, timeout=LINKED_S, check=False)
        if ended.returncode != 0:
            raise ProgramError(f"link_copies, exit code {ended.returncode}: {ended.stderr.strip()}")
        said = json.loads(ended.stdout)
        self.found.not_copies.append(1 - said["copies"] / said["files"])

    def seen(self, epochs: Sequence[EpochFigures], record: object, untiered: Sequence[EpochFigures]) -> LaterEpochs:
        """Sums up what the source saw in watched epochs."""
        assert isinstance(record, dict)
        counters: dict[str, int] = record["counters"]
        traffic = [moved(epoch) for epoch in epochs]
        operations: Counter[str] = Counter()
        for one in traffic:
            operations.update(one.operations)
        return LaterEpochs(
            epochs=len(epochs),
            files=epochs[0].files,
            bytes=sum(one.bytes for one in traffic),
            untiered_bytes=statistics.median([moved(e).bytes for e in untiered] or self.found.untiered_bytes),
            operations=operations,
            dropped=counters["dropped_queue_full"] + counters["dropped_no_agent"],
        )

    def note(self, epochs: list[EpochFigures]) -> list[EpochFigures]:
        """Every epoch must have read the same bytes."""
        self.digests.update(epoch.digest for epoch in epochs)
        return epochs

    def rsync_first(self) -> None:
        """The other way to have local data: all of it is copied before the program begins."""
        copied_s = rsync(self.world, self.kind.source, self.world.place / f"rsynced-{self.kind.name}")
        self.found.totals["rsync first"] = copied_s + self.found.totals["on a local copy"]


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """A directory in tmpfs: its files cost no disk, also from cold caches."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-links-", dir="/dev/shm") as place:
        yield Path(place)
