"""The source of an epoch that asks the loader agent, and reads by itself where the agent does not serve."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from forebay import _core
from forebay.loader._errors import LoaderError
from forebay.loader._joining import WAIT_S
from forebay.loader.dataset import Extent
from forebay.loader.order import Order
from forebay.loader.source import Request, Source

if TYPE_CHECKING:
    from forebay.loader._agent import AgentRank

__all__ = ["PATIENCE_S", "AgentBatch", "AgentSource", "Loan"]

PATIENCE_S = 30.0
"""Seconds after which whoever waits for a sample reads it by himself, whatever the agent says."""
LOOK_STEPS = 2
"""Steps beyond what is needed that are requested in one go: requesting takes time, and training waits."""


class AgentBatch(Request):
    """The samples of a batch, requested of the agent: see `Request`."""

    __slots__ = ("_source", "direct", "iteration", "native", "samples")

    def __init__(self, source: "AgentSource", samples: list[int], iteration: int, native: _core.LoaderBatch) -> None:
        self._source = source
        self.samples = samples
        self.iteration = iteration
        self.native = native
        self.direct: dict[int, Request] = {}  # Samples that the rank reads itself, by place.

    def at_hand(self, places: range) -> list[memoryview | None]:
        return self._source._at_hand(self, places)

    def read(self, place: int) -> memoryview:
        return self._source._read(self, place)

    def gather(self, rows: Any, row_bytes: int) -> tuple[list[int], float]:  # noqa: ANN401  (a buffer)
        native = self.native
        # Most often all has come, and one pass over the samples is enough.
        if native.is_answered and not (missing := native.gather(rows, row_bytes)):
            return missing, 0.0
        begun = time.perf_counter()
        self._source._wait(self)
        waited_s = time.perf_counter() - begun
        return native.gather(rows, row_bytes), waited_s

    def release(self) -> None:
        self._source._release(self)


class Loan:
    """A batch that a worker process has.

    Its bytes stay until the worker is done with them, or until nothing refers to this any more.
    """

    __slots__ = ("__weakref__", "_native", "batch")

    def __init__(self, batch: AgentBatch, native: _core.LoaderLoan) -> None:
        self.batch = batch
        self._native = native

    @property
    def is_done(self) -> bool:
        """True once the worker is done with the batch."""
        return self._native.is_done

    @property
    def mark(self) -> int:
        """The sequence number by which the worker says that it is done."""
        return self._native.mark

    def end(self) -> None:
        """Ends the loan, and releases the batch."""
        self._native.end()
        self.batch.release()


class DirectBatch(Request):
    """A batch that the rank reads itself, which its source counts: see `Request`."""

    __slots__ = ("_request", "_source")

    def __init__(self, source: "AgentSource", request: Request) -> None:
        self._source = source
        self._request = request

    def at_hand(self, places: range) -> list[memoryview | None]:
        found = self._request.at_hand(places)
        self._source.direct_reads += sum(data is not None for data in found)
        return found

    def read(self, place: int) -> memoryview:
        self._source.direct_reads += 1
        return self._request.read(place)

    def release(self) -> None:
        self._request.release()


class Lookahead:
    """The batches of a known order that are requested before the loader asks for them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._next = 0
        self.batches: dict[int, AgentBatch] = {}  # By iteration, until the loader asks for them.

    def coming(self, least: int, has_room: Callable[[], bool]) -> Iterator[tuple[int, list[int]]]:
        """Gives iterations and their samples: all up to iteration `least`, and a few beyond it while there is room."""
        end = min(len(self._order), max(least, self._next - 1) + 1 + LOOK_STEPS)
        while self._next < end and (self._next <= least or has_room()):
            iteration, self._next = self._next, self._next + 1
            yield iteration, self._order.batch(iteration)


class AgentSource:
    """The source of an epoch, made by `AgentRank.source`: see `Source`. It closes its fallback.

    Attributes:
        direct_reads: samples that the rank has read itself.
        is_served: whether the agent serves this epoch.
    """

    is_lasting = True

    def __init__(self, agent: "AgentRank", fallback: Source) -> None:
        self._agent = agent
        self._fallback = fallback
        self._lock = agent.lock
        self._locate: Callable[[int], Extent] | None = None
        # The agent's number of the epoch, that of the first iteration, and the iteration that has begun.
        self._pass = self._first = 0
        self._began: int | None = None
        self._closed = False
        self._requested: set[AgentBatch] = set()
        self._waiting: deque[AgentBatch] = deque()  # For room on the ring.
        self._ahead: Lookahead | None = None
        self.is_served = False
        self.direct_reads = 0

    def register(self, order: Order | None, locate: Callable[[int], Extent]) -> None:
        """Raises `LoaderError` if ranks of this node disagree on what they load, or their settings are refused."""
        self._fallback.register(order, locate)
        number, first = self._agent.begin_epoch(order, locate)
        with self._lock:
            # The agent takes a rank's requests to be in the order of their use: of two epochs at the same time the rank
            # reads one itself.
            if (other := self._agent.serving) is not None:
                other.serve_no_more()
            self._agent.serving = self
            self._forget_all()
            self._locate, self._pass, self._first, self._began = locate, number, first, None
            self.is_served = self._agent.rank is not None and self._agent.lost is None
            settings = self._agent.settings
            if self.is_served and order is not None and settings.ahead > settings.window:
                self._ahead = Lookahead(order)
                self._look_ahead(0)

    def request(self, samples: list[int], iteration: int) -> Request:
        """See `Source.request`. Where the order is known, the samples of an iteration are those of the order."""
        made = self._made(samples, iteration) if self.is_served and self._ahead is None else None
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            batch: AgentBatch | None = None
            if self.is_served and self._ahead is not None:
                self._look_ahead(iteration)
                batch = self._ahead.batches.pop(iteration, None)
            elif self.is_served and made is not None:
                batch = made
                self._waiting.append(batch)
                self._pass_on()
            if batch is not None:
                self._requested.add(batch)
                return batch
        return DirectBatch(self, self._fallback.request(samples, iteration))

    def close(self) -> None:
        """See `Source.close`. The agent's memory that something still refers to stays until nothing does."""
        with self._lock:
            self._closed = True
            self._forget_all()
            if self._agent.serving is self:
                self._agent.serving = None
        self._fallback.close()

    def serve_no_more(self) -> None:
        """Makes the rank read the rest of the epoch itself. With the lock held."""
        self.is_served = False
        self._forget_all()

    def pass_all_on(self, batch: AgentBatch) -> bool:
        """Passes all requests of a batch on, as far as the ring has room for them; returns whether it had."""
        with self._lock:
            self._pass_on()
            return batch not in self._waiting

    def leave(self, batch: AgentBatch) -> None:
        """Leaves to whoever reads a batch those of its samples whose requests were not passed on."""
        with self._lock:
            if batch in self._waiting:
                self._waiting.remove(batch)

    def _at_hand(self, batch: AgentBatch, places: range) -> list[memoryview | None]:
        if self._waiting:
            with self._lock:
                self._pass_on()
        return [None] * len(places) if self._closed else batch.native.views(places.start, places.stop)

    def _read(self, batch: AgentBatch, place: int) -> memoryview:
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            self._pass_on()
        if place not in batch.direct and (data := self._served(batch, place)) is not None:
            return data
        if self._closed:
            raise LoaderError("the source is closed")
        self.direct_reads += 1
        if (direct := batch.direct.get(place)) is None:
            batch.native.exclude(place)
            direct = batch.direct[place] = self._fallback.request([batch.samples[place]], batch.iteration)
        return direct.read(0)

    def _wait(self, batch: AgentBatch) -> None:
        with self._lock:
            self._pass_on()
        begun = time.monotonic()
        while not self._closed and not batch.native.wait_all(WAIT_S):
            if time.monotonic() - begun >= PATIENCE_S:
                return
        if self._closed:
            raise LoaderError("the source is closed")
        self._agent.notices.lost(self._agent.lost)

    def _release(self, batch: AgentBatch) -> None:
        with self._lock:
            # Batches that were requested before another epoch began are forgotten already.
            if batch in self._requested:
                self._requested.discard(batch)
                self._begin_step(batch.iteration)
                batch.native.release()
            if self.is_served and not self._closed:
                self._look_ahead(-1)
                self._pass_on()
        for direct in batch.direct.values():
            direct.release()

    def _made(self, samples: list[int], iteration: int) -> AgentBatch | None:
        """Makes a batch of samples, which may be located elsewhere in each epoch.

        None where the agent can't take it.
        """
        rank = self._agent.rank
        if self._locate is None:
            raise LoaderError("nothing was registered")
        if rank is None:
            return None
        if len(samples) > rank.slots:
            # There will never be room for it, and the batches after it would wait for ever.
            self._agent.notices.too_large(len(samples), rank.slots)
            return None
        return AgentBatch(self, samples, iteration, self._agent.joining.batch(rank, samples, self._locate))

    def _served(self, batch: AgentBatch, place: int) -> memoryview | None:
        """Returns the agent's bytes of a sample; None where the rank is to read it itself."""
        native, begun = batch.native, time.monotonic()
        while not self._closed:
            if native.wait(place, WAIT_S):
                (view,) = native.views(place, place + 1)
                if view is None and self._agent.lost is not None:
                    self.is_served = False
                    self._agent.notices.lost(self._agent.lost)
                return view
            if time.monotonic() - begun >= PATIENCE_S:
                break
        return None

    def _look_ahead(self, least: int) -> None:
        """Requests all up to iteration `least`, and a little beyond it while the ring has room. With the lock held."""
        if (ahead := self._ahead) is None:
            return
        self._pass_on()
        for iteration, samples in ahead.coming(least, lambda: not self._waiting):
            if (batch := self._made(samples, iteration)) is not None:
                ahead.batches[iteration] = batch
                self._waiting.append(batch)
            self._pass_on()

    def _pass_on(self) -> None:
        """Passes requests on as far as the ring has room, in the order of their use. With the lock held."""
        while self._waiting:
            batch = self._waiting[0]
            is_whole = batch.native.pass_on(self._pass, self._first + batch.iteration, self._agent.settings.batch)
            if self._began is None and batch.native.first is not None:
                # Whatever is still held of the epoch before holds this one up no more.
                self._begin_step(batch.iteration)
            if not is_whole:
                return
            self._waiting.popleft()

    def _begin_step(self, iteration: int) -> None:
        """Tells the agent that a batch is put together: its step begins. With the lock held."""
        rank = self._agent.rank
        if rank is not None and (self._began is None or iteration > self._began):
            self._began = iteration
            rank.begin_step(self._pass, self._first + iteration)

    def _forget_all(self) -> None:
        """Forgets all requests. With the lock held."""
        self._waiting.clear()
        for batch in (*self._requested, *(self._ahead.batches.values() if self._ahead is not None else ())):
            batch.native.release()
        self._requested.clear()
        self._ahead = None
