"""An iterator over an epoch of a loader."""

import os
import threading
import time
import weakref
from typing import Any

from forebay._first_step import tell_first_batch
from forebay.loader._batches import FetchedBatch, SampleBatch
from forebay.loader._failures import sample_error
from forebay.loader._report import Meter
from forebay.loader._reporter import LoaderReporter
from forebay.loader.source import Helper
from forebay.torch._cursor import EpochCursor
from forebay.torch._maker import BatchMaker
from forebay.torch._order import BegunEpoch, EpochPlace
from forebay.torch._processes import WorkOptions
from forebay.torch._work import EpochWork, InThreads

__all__ = ["EpochBatches"]


class EpochBatches:
    """The batches of an epoch, or of the rest of one. The loader's cursor and reporter follow them."""

    def __init__(
        self, maker: BatchMaker, options: WorkOptions, cursor: EpochCursor, reporter: LoaderReporter, begun: BegunEpoch, number: int
    ) -> None:
        self._maker, self._cursor, self._reporter = maker, cursor, reporter
        self._asked = time.perf_counter()
        self._begun, self._number, self._batches = begun, number, 0
        self._workers = options.num_workers
        self._is_over = False
        self._meter = Meter(
            number,
            workers=self._workers,
            processors=maker.processors,
            is_located=maker.located is not None,
            is_cached=maker.agent is not None,
        )
        self._work = maker.begin(options, begun, number, is_known=cursor.plan.is_known)
        # Also when the program ends, or forgets it halfway.
        self._close = weakref.finalize(self, _close_in, os.getpid(), self._work)

    def __iter__(self) -> "EpochBatches":
        return self

    def __next__(self) -> Any:  # noqa: ANN401  (whatever a batch is)
        while True:
            batch, fetched = self._next()
            self._batches += 1
            self._reporter.padding = self._begun.padding_of(batch.iteration)
            # Counted before it is handed out, so that a state that is taken while it is trained with has it.
            self._cursor.place = self._begun.place_after(self._batches)
            if not fetched.failed:
                tell_first_batch(self._asked)
                return fetched.value

    def _next(self) -> tuple[SampleBatch, FetchedBatch]:
        """Returns the next batch. A failed one is returned only if single samples that fail are left out."""
        if self._is_over:
            raise StopIteration
        asked = time.perf_counter()
        try:
            batch, fetched = next(self._work.results)
        except StopIteration:
            self._stop()
            self._cursor.place = EpochPlace(self._number + 1)
            self._reporter.end(self._meter.report())
            raise
        except BaseException:
            self._stop()
            raise
        maker, samples = self._maker, len(batch.samples)
        self._meter.had(samples, fetched, time.perf_counter() - asked)
        self._reporter.skipped = self._meter.skipped
        if maker.agent is not None and samples and not isinstance(self._work, InThreads):
            maker.agent.decodes(fetched.decoded_s / samples / self._workers, fetched.read_bytes // samples, 0)
        if fetched.failed and (maker.is_batching or not maker.is_skipping):
            self._stop()
            raise sample_error(fetched.failures, samples, skip=maker.is_skipping)
        return batch, fetched

    def _stop(self) -> None:
        self._is_over = True
        self._close()


def _close_in(pid: int, work: EpochWork) -> None:
    # In a process that was forked none of its threads are left, and locks may be as they were just then.
    if os.getpid() != pid:
        return
    if isinstance(threading.current_thread(), Helper):
        # Garbage is collected by whichever thread comes to it: one that was to end itself here perhaps, in the middle
        # of what it does.
        threading.Thread(target=work.close, name="forebay-close").start()
    else:
        work.close()
