"""Decoding in threads, for datasets that draw random numbers from the generator that they are given."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay._say import say
from forebay.loader._batches import FAILED, BatchPart, FetchedBatch, SampleBatch, decoded
from forebay.loader._errors import LoaderError
from forebay.loader._rows import RowBatches, gathered
from forebay.loader._tasks import TaskQueue
from forebay.loader.dataset import Located
from forebay.loader.source import CLOSE_WAIT_S, Helper, Request, Source

if TYPE_CHECKING:
    from forebay.loader._agent import AgentRank

__all__ = ["READ_AHEAD", "Decoding", "Pending", "Threads"]

READ_AHEAD = 8
"""Batches that are requested from the source beyond those that are being decoded.

The source bounds their bytes by its window.
"""
PARTS = 2
"""Pieces for each thread that a batch is cut into.

Each costs a pass through the queue; a single one would wait for the slowest sample.
"""
STALL_S = 30.0
"""Seconds after which a line says which sample a batch waits for, and again after twice the time."""


@dataclass(frozen=True)
class Decoding:
    """The way from bytes to batches.

    Attributes:
        dataset: decodes samples.
        generators: gives each thread a function from a key to a generator that is seeded with it.
        assemble: makes a batch of samples.
        is_copying: `assemble` copies the samples' bytes, instead of referring to them.
        skip: whether a sample that fails is left out, instead of failing its batch.
        rows: puts batches together as a whole; None where samples are decoded one by one.
    """

    dataset: Located
    generators: Callable[[], Callable[[int], Any]]
    assemble: Callable[[list[Any]], Any]
    is_copying: bool
    skip: bool
    rows: RowBatches | None = None


class Pending:
    """A batch that is being decoded."""

    def __init__(self, batch: SampleBatch, request: Request, parts: int) -> None:
        self.batch = batch
        self.request = request
        self.samples: list[Any] = [FAILED] * len(batch.samples)
        self.fetched = FetchedBatch()
        self.parts = parts
        # Parts that threads work on, by their first place.
        self.doing: dict[int, BatchPart] = {}
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.lock = threading.Lock()


class Threads:
    """Makes batches in threads, several concurrently, and gives them in order. `close` ends its source, too.

    Args:
        decoding: the way from bytes to batches.
        source: the registered source of the samples' bytes.
        threads: number of threads that decode, if the agent does not choose another.
        ahead: batches that are decoded, or being decoded, beside the one that training has.
        timeout_s: seconds for a batch; 0 for no limit.
        agent: the rank as the agent serves it, which may move threads between the ranks of a node; None without one.
    """

    def __init__(
        self, decoding: Decoding, source: Source, *, threads: int, ahead: int, timeout_s: float = 0.0, agent: "AgentRank | None" = None
    ) -> None:
        self._decoding = decoding
        self._source = source
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._requested: deque[tuple[SampleBatch, Request]] = deque()
        self._pending: deque[Pending] = deque()
        self._own = threads
        self._agent = agent
        self._tasks: TaskQueue[tuple[Pending, range]] = TaskQueue(self._at_work)
        self._closing = False
        self._threads: list[Helper] = []
        self._start_threads()

    def batches(self, batches: Iterator[SampleBatch]) -> Iterator[tuple[SampleBatch, FetchedBatch]]:
        """Begins the epoch, and yields its batches in order; raises `LoaderError` if one exceeds the timeout."""
        self._top_up(batches)
        return self._results(batches)

    def _results(self, batches: Iterator[SampleBatch]) -> Iterator[tuple[SampleBatch, FetchedBatch]]:
        while self._pending:
            pending = self._pending[0]
            self._wait(pending)
            if pending.error is not None:
                raise pending.error
            self._pending.popleft()
            self._top_up(batches)
            yield pending.batch, pending.fetched

    def close(self) -> None:
        """Ends threads and source; waits at most a second for those that can't be ended."""
        self._closing = True
        for pending in list(self._pending):
            for part in list(pending.doing.values()):
                part.is_over = True
        self._tasks.close()
        self._source.close()
        until = time.monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _at_work(self) -> int:
        """Returns the number of threads that may work at present."""
        return self._own if self._agent is None else self._agent.decoders(self._own)

    def _start_threads(self) -> None:
        """Starts the threads that the present number lacks. Those above it stay, and are parked."""
        for number in range(len(self._threads), self._at_work()):
            self._threads.append(Helper("forebay-decode", number, self._work))

    def _wait(self, pending: Pending) -> None:
        begun, told_s = time.monotonic(), STALL_S
        while True:
            waited_s = time.monotonic() - begun
            if pending.done.wait(min(told_s, self._timeout_s or told_s) - waited_s):
                return
            if self._timeout_s and time.monotonic() - begun >= self._timeout_s:
                raise LoaderError(f"a batch took longer than timeout={self._timeout_s} seconds{self._stalled_at(pending)}")
            if time.monotonic() - begun >= told_s:
                say(f"no batch for {told_s:.0f} s{self._stalled_at(pending)}")
                told_s *= 2

    def _stalled_at(self, pending: Pending) -> str:
        """Returns words for the sample that a batch waits for."""
        for part in list(pending.doing.values()):
            if (done := len(part.samples)) == len(part.places):
                continue
            index = pending.batch.samples[part.places[done]]
            try:
                path = self._decoding.dataset.locate(index).path
            except Exception:
                path = "that can't be located"
            what = "the source does not give" if part.is_waiting else "decoding"
            return f": {what} sample {index} ({path}){'' if part.is_waiting else ' goes on'}"
        return ""

    def _top_up(self, batches: Iterator[SampleBatch]) -> None:
        while len(self._requested) + len(self._pending) < self._ahead + READ_AHEAD and (batch := next(batches, None)):
            self._requested.append((batch, self._source.request(batch.samples, batch.iteration)))
        while self._requested and len(self._pending) < self._ahead:
            self._begin(*self._requested.popleft())

    def _parts(self, samples: int) -> list[range]:
        """Returns the parts of a batch that threads take as tasks."""
        if self._decoding.rows is not None:
            return [range(samples)] if samples else []
        size = -(-samples // (self._at_work() * PARTS)) or 1
        return [range(start, min(start + size, samples)) for start in range(0, samples, size)]

    def _begin(self, batch: SampleBatch, request: Request) -> None:
        self._start_threads()
        parts = self._parts(len(batch.samples))
        pending = Pending(batch, request, len(parts))
        self._pending.append(pending)
        for part in parts:
            self._tasks.put((pending, part))
        if not parts:
            self._finish(pending)

    def _work(self) -> None:
        generator: Callable[[int], Any] | None = None
        while (task := self._tasks.take()) is not None:
            pending, part = task
            try:
                # In here, so that its errors reach training, too.
                generator = generator or self._decoding.generators()
                self._decode(pending, part, generator)
            except BaseException as error:
                pending.error = error
            with pending.lock:
                pending.parts -= 1
                is_last = pending.parts == 0
            if is_last:
                self._finish(pending)
            # A thread that waits would keep the batch's memory.
            del task, pending
            self._tasks.done()

    def _decode(self, pending: Pending, places: range, generator: Callable[[int], Any]) -> None:
        decoding = self._decoding
        # Batches fail whole, unless samples may be skipped. Only its own failures end a part: which one is named must
        # not depend on timing.
        fetched = FetchedBatch()
        part = pending.doing[places.start] = BatchPart(places)
        # Who closes looks at what is being done after it has said so.
        if self._closing:
            part.is_over = True
        batch, request = pending.batch, pending.request
        if decoding.rows is not None:
            pending.samples[:] = gathered(decoding.rows, request, batch.samples, part, fetched, skip=decoding.skip)
        else:
            are_bytes_kept = decoding.is_copying or self._source.is_lasting
            decoded(decoding.dataset, request, batch, part, generator, fetched, are_bytes_kept=are_bytes_kept, skip=decoding.skip)
            pending.samples[places.start : places.start + len(part.samples)] = part.samples
        pending.doing.pop(places.start, None)
        with pending.lock:
            pending.fetched.add(fetched)

    def _finish(self, pending: Pending) -> None:
        fetched = pending.fetched
        fetched.failures.sort(key=lambda failed: pending.batch.samples.index(failed.index))
        samples = [sample for sample in pending.samples if sample is not FAILED]
        pending.samples.clear()
        fetched.settle(samples, skip=self._decoding.skip)
        try:
            if not (self._closing or fetched.failed or pending.error):
                begun = time.perf_counter()
                fetched.value = self._decoding.assemble(samples)
                fetched.decoded_s += time.perf_counter() - begun
        except BaseException as error:
            pending.error = error
        if self._agent is not None and (count := len(pending.batch.samples)):
            self._agent.decodes(fetched.decoded_s / count, fetched.read_bytes // count, self._own)
        # Samples may be views of the source's memory until here.
        del samples
        pending.request.release()
        pending.done.set()
