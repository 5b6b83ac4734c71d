"""What an epoch took, what bounded it, and which knob would help."""

import os
import time
from dataclasses import dataclass

from forebay.loader._batches import Failure, Fetched

__all__ = ["EpochReport", "Meter"]

BOUND_BY_TRAINING = 0.05
"""If training waited for less than this share of the epoch, no loader would make it noticeably faster."""


@dataclass(frozen=True)
class EpochReport:
    """An epoch of one rank, or what was left of it when it began.

    Attributes:
        epoch: its number.
        samples: that were handed to training, padding included.
        skipped: samples that failed and were left out.
        seconds: from the first request to the end.
        source_wait_s: of these, how long training waited for a batch because the source did.
        decode_wait_s: the same because of decoding and putting together.
        ideal_s: what the epoch would have taken with a loader that is always ready: training alone, or decoding alone on all of this rank's
            processors if that is longer.
        read_bytes: of the samples; None where the dataset does not say where they lie.
        workers: threads or processes that decoded; 0 if training's own thread did.
        processors: that this rank may use.
        first_skipped: the first of those samples.
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
    first_skipped: Failure | None = None

    @property
    def bound_by(self) -> str:
        """`training`, `source` or `decoding`: what has to become faster for the epoch to become so."""
        if self.source_wait_s + self.decode_wait_s < BOUND_BY_TRAINING * self.seconds:
            return "training"
        return "source" if self.source_wait_s >= self.decode_wait_s else "decoding"

    def __str__(self) -> str:
        """A line for a person."""
        ratio = self.seconds / self.ideal_s if self.ideal_s > 0 else 1.0
        said = f"epoch {self.epoch}: {self.samples:,} samples in {self.seconds:.1f} s, {ratio:.2f} times the ideal ({self.ideal_s:.1f} s); "
        said += f"waited {self.source_wait_s:.1f} s for the source, {self.decode_wait_s:.1f} s for decoding; {self._advice()}"
        if self.first_skipped:
            said += f"; {self.skipped:,} skipped, the first: {self.first_skipped}"
        return said

    def _advice(self) -> str:
        if self.bound_by == "training":
            return "bound by training: no loader would gain much"
        if self.bound_by == "source":
            rate = f" ({self.read_bytes / self.seconds / 1e6:,.1f} MB/s)" if self.read_bytes else ""
            if "FOREBAY_RUN" in os.environ:
                return f"bound by the source{rate}: a larger --tier or --ram would help once it is filled"
            return f"bound by the source{rate}: would be helped by copies on local disk, `forebay run -- ...`"
        if self.workers < self.processors:
            return f"bound by decoding: num_workers={self.processors} would help (now {self.workers})"
        return (
            f"bound by decoding, with num_workers={self.workers} on {self.processors} processors: more processors for each rank would help"
        )


class Meter:
    """Counts during an epoch.

    Args:
        epoch: its number.
        workers: as `EpochReport` has it.
        processors: the same.
        is_located: whether read bytes are known.
    """

    def __init__(self, epoch: int, *, workers: int, processors: int, is_located: bool) -> None:
        self._epoch = epoch
        self._workers = workers
        self._processors = processors
        self._is_located = is_located
        self._begun = time.perf_counter()
        self._source_wait_s = self._decode_wait_s = self._decoded_s = 0.0
        self._samples = self._read_bytes = self.skipped = 0
        self.first_skipped: Failure | None = None

    def had(self, samples: int, fetched: Fetched, waited_s: float) -> None:
        """A batch came, for which training waited. What the batch itself waited for gets the blame, in the same shares.

        Args:
            samples: of the batch, with those that failed.
            fetched: what became of it.
            waited_s: seconds.
        """
        worked_s = fetched.waited_s + fetched.decoded_s
        of_source = waited_s * (fetched.waited_s / worked_s if worked_s > 0 else 0.0)
        self._source_wait_s += of_source
        self._decode_wait_s += waited_s - of_source
        self._decoded_s += fetched.decoded_s
        self._read_bytes += fetched.read_bytes
        self._samples += samples - len(fetched.failures)
        self.skipped += len(fetched.failures)
        if fetched.failures and self.first_skipped is None:
            self.first_skipped = fetched.failures[0]

    def report(self) -> EpochReport:
        """What was counted until now."""
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
        )
