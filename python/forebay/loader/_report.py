"""Reports of epochs: the time, the bottleneck, and the setting that would help."""

import heapq
import os
import time
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from forebay.loader._batches import FetchedBatch
from forebay.loader._failures import SampleFailure

__all__ = ["EpochReport", "Meter", "TrainingWait", "WaitTimeline"]

BOUND_BY_TRAINING = 0.05
"""Share of an epoch: if training waits less, no loader would make it noticeably faster."""

WAITS_KEPT = 10
WAIT_TOLD_S = 1.0
"""Seconds: an epoch's line names the longest wait if it is longer."""
SPAN_S = 0.1
SPANS = 64
"""Most spans in an epoch's timeline, each at least `SPAN_S` seconds long."""


class TrainingWait(NamedTuple):
    """A wait of training for a batch.

    Attributes:
        seconds: length of the wait.
        at_s: seconds from the epoch's beginning to the wait's.
        of: the cause of most of it.
    """

    seconds: float
    at_s: float
    of: Literal["source", "decoding"]


@dataclass
class WaitTimeline:
    """The waits of an epoch over time, in spans of equal length, which grow with the epoch.

    Attributes:
        span_s: length of a span in seconds.
        source_s: seconds of each span in which training waited for the source.
        decode_s: seconds of each span in which training waited for decoding.
    """

    span_s: float = SPAN_S
    source_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)

    def add(self, at_s: float, source_s: float, decode_s: float) -> None:
        """Adds a wait of training that began `at_s` seconds after the epoch."""
        while at_s >= self.span_s * SPANS:
            self.span_s *= 2
            self.source_s, self.decode_s = _paired(self.source_s), _paired(self.decode_s)
        span = int(at_s / self.span_s)
        for waited, seconds in ((self.source_s, source_s), (self.decode_s, decode_s)):
            waited.extend([0.0] * (span + 1 - len(waited)))
            waited[span] += seconds


def _paired(waited: list[float]) -> list[float]:
    return [sum(waited[at : at + 2]) for at in range(0, len(waited), 2)]


@dataclass(frozen=True)
class EpochReport:
    """An epoch of one rank, or the rest of an epoch that was begun before.

    Attributes:
        epoch: number of the epoch.
        samples: samples that were handed to training, padding included.
        skipped: samples that failed and were left out.
        seconds: time from the first request to the end.
        source_wait_s: seconds that training waited for the source.
        decode_wait_s: seconds that training waited for decoding and for putting batches together.
        ideal_s: seconds of the epoch with a loader that is always ready: training alone, or decoding alone on all of
            this rank's processors if that is longer.
        read_bytes: bytes of the samples; None if the dataset does not locate them.
        workers: threads or processes that decoded; 0 if training's own thread did.
        processors: processors that this rank may use.
        first_skipped: the first sample that was left out.
        begun_at: begin of the epoch, in seconds since 1970.
        waits: the longest waits of training, the longest first.
        course: the waits over time.
        is_cached: whether a cache of the node answered requests for samples.
    """

    epoch: int
    samples: int
    skipped: int
    seconds: float
    source_wait_s: float
    decode_wait_s: float
    ideal_s: float
    read_bytes: int | None
    workers: int
    processors: int
    first_skipped: SampleFailure | None = None
    begun_at: float = 0.0
    waits: tuple[TrainingWait, ...] = ()
    course: WaitTimeline = field(default_factory=WaitTimeline)
    is_cached: bool = False

    @property
    def bound_by(self) -> str:
        """The bottleneck of the epoch: `training`, `source` or `decoding`."""
        if self.source_wait_s + self.decode_wait_s < BOUND_BY_TRAINING * self.seconds:
            return "training"
        return "source" if self.source_wait_s >= self.decode_wait_s else "decoding"

    def __str__(self) -> str:
        """Returns a line for a person."""
        ratio = self.seconds / self.ideal_s if self.ideal_s > 0 else 1.0
        said = f"epoch {self.epoch}: {self.samples:,} samples in {self.seconds:.1f} s, {ratio:.2f} times the ideal ({self.ideal_s:.1f} s); "
        said += f"waited {self.source_wait_s:.1f} s for the source, {self.decode_wait_s:.1f} s for decoding; {self._advice()}"
        if self.waits and self.waits[0].seconds >= WAIT_TOLD_S:
            longest = self.waits[0]
            of = "the source" if longest.of == "source" else longest.of
            said += f"; the longest wait was {longest.seconds:.1f} s for {of}, {longest.at_s:.0f} s in"
        if self.first_skipped:
            said += f"; {self.skipped:,} skipped, the first: {self.first_skipped}"
        return said

    def _advice(self) -> str:
        if self.bound_by == "training":
            return "bound by training: no loader would gain much"
        if self.bound_by == "source":
            rate = f" ({self.read_bytes / self.seconds / 1e6:,.1f} MB/s)" if self.read_bytes else ""
            if self.is_cached:
                return f"bound by the source{rate}: a larger cache= would help once it is filled"
            if "FOREBAY_RUN" in os.environ:
                return f"bound by the source{rate}: a larger --tier or --ram would help once it is filled"
            return f"bound by the source{rate}: would be helped by copies on local disk, `forebay run -- ...` or cache="
        if self.workers < self.processors:
            return f"bound by decoding: num_workers={self.processors} would help (now {self.workers})"
        return (
            f"bound by decoding, with num_workers={self.workers} on {self.processors} processors: more processors for each rank would help"
        )


class Meter:
    """The counts of an epoch while it goes on, from which `EpochReport` is made."""

    def __init__(self, epoch: int, *, workers: int, processors: int, is_located: bool, is_cached: bool = False) -> None:
        self._epoch = epoch
        self._is_cached = is_cached
        self._workers = workers
        self._processors = processors
        self._is_located = is_located
        self._begun, self._begun_at = time.perf_counter(), time.time()
        self._waits: list[TrainingWait] = []
        self._course = WaitTimeline()
        self._source_wait_s = self._decode_wait_s = self._decoded_s = 0.0
        self._samples = self._read_bytes = self.skipped = 0
        self.first_skipped: SampleFailure | None = None

    def had(self, samples: int, fetched: FetchedBatch, waited_s: float) -> None:
        """Counts a batch of `samples`, with those that failed, and the wait of training for it.

        The wait is put down to source and decoding in the shares of the batch's own times.
        """
        worked_s = fetched.waited_s + fetched.decoded_s
        of_source = waited_s * (fetched.waited_s / worked_s if worked_s > 0 else 0.0)
        at_s = max(0.0, time.perf_counter() - self._begun - waited_s)
        self._course.add(at_s, of_source, waited_s - of_source)
        wait = TrainingWait(waited_s, at_s, "source" if of_source >= waited_s - of_source else "decoding")
        if len(self._waits) < WAITS_KEPT:
            heapq.heappush(self._waits, wait)
        else:
            heapq.heappushpop(self._waits, wait)
        self._source_wait_s += of_source
        self._decode_wait_s += waited_s - of_source
        self._decoded_s += fetched.decoded_s
        self._read_bytes += fetched.read_bytes
        self._samples += samples - len(fetched.failures)
        self.skipped += len(fetched.failures)
        if fetched.failures and self.first_skipped is None:
            # Without the exception, whose traceback keeps the frames of the loader.
            self.first_skipped = replace(fetched.failures[0], error=None)

    def report(self) -> EpochReport:
        """Returns the report of the epoch so far."""
        seconds = time.perf_counter() - self._begun
        return EpochReport(
            epoch=self._epoch,
            samples=self._samples,
            skipped=self.skipped,
            seconds=seconds,
            source_wait_s=self._source_wait_s,
            decode_wait_s=self._decode_wait_s,
            ideal_s=max(seconds - self._source_wait_s - self._decode_wait_s, self._decoded_s / self._processors),
            read_bytes=self._read_bytes if self._is_located else None,
            workers=self._workers,
            processors=self._processors,
            first_skipped=self.first_skipped,
            begun_at=self._begun_at,
            waits=tuple(sorted(self._waits, reverse=True)),
            course=self._course,
            is_cached=self._is_cached,
        )
