"""Batches of rows that need no decoding, put together natively out of the agent's memory: no Python runs for a row."""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from forebay import _core
from forebay.loader._agent import PATIENCE_S, Agent, AgentSource
from forebay.loader._batches import Part
from forebay.loader._errors import LoaderError
from forebay.loader._failures import Failure, failure
from forebay.loader._joining import WAIT_S
from forebay.loader._threads import Decoding, Pending, Threads
from forebay.loader.order import Order
from forebay.loader.rows import FixedRows
from forebay.loader.source import Request, Source

__all__ = ["Making", "RowRequest", "RowSource", "RowThreads"]


class Making(Protocol):
    """How the framework makes a batch."""

    def allocate(self, rows: int) -> tuple[Any, int]:
        """Memory for so many rows, and its address."""

    def only(self, batch: Any, rows: list[int]) -> Any:  # noqa: ANN401  (the framework's)
        """Some rows of a batch."""

    def finish(self, batch: Any) -> Any:  # noqa: ANN401  (the framework's)
        """The batch as it is handed to training."""


class RowRequest:
    """A batch of rows, requested of the agent as a whole: see `Request`. What is read row by row the rank reads itself."""

    __slots__ = ("_source", "direct", "first", "iteration", "rank", "samples")

    def __init__(self, source: "RowSource", samples: list[int], iteration: int) -> None:
        self._source = source
        self.samples = samples
        self.iteration = iteration
        self.first: int | None = None  # The turn of its first row, from when the agent is asked until it is told that it is over.
        self.rank: _core.LoaderRank | None = None  # By which it was asked.
        self.direct: list[Request] = []

    def at_hand(self, places: range) -> list[memoryview | None]:
        """See `Request.at_hand`."""
        return [None] * len(places)

    def read(self, place: int) -> memoryview:
        """See `Request.read`."""
        return self._source._read_row(self, place)

    def release(self) -> None:
        """See `Request.release`."""
        self._source._release_rows(self)


class RowSource(AgentSource):
    """An epoch's source that gives batches as a whole, beside single samples.

    Args:
        agent: of this node; one that knows of these rows.
        fallback: reads what the agent does not.
        rows: the dataset.

    Attributes:
        dataset: the same.
    """

    def __init__(self, agent: Agent, fallback: Source, rows: FixedRows) -> None:
        super().__init__(agent, fallback)
        self.dataset = rows
        # Batches that the agent was not asked for yet; those that it was; and those that were not requested yet, by iteration.
        self._coming: deque[RowRequest] = deque()
        self._asked: set[RowRequest] = set()
        self._rows_foreseen: dict[int, RowRequest] = {}

    def begin(self, order: Order | None) -> None:
        """An epoch begins: see `Source.register`."""
        try:
            self.register(order, self.dataset.locate)
        except BaseException:
            self.close()
            raise

    def request(self, samples: list[int], iteration: int) -> RowRequest:
        """See `Source.request`. Where the order is known, what an iteration uses is what the order says."""
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            if self._order is not None:
                self._look_ahead(iteration)
            if (foreseen := self._rows_foreseen.pop(iteration, None)) is not None:
                return foreseen
            request = RowRequest(self, samples, iteration)
            # A row that can't be is for who reads it to tell.
            if self._order is None and self._is_served and min(samples, default=-1) >= 0:
                self._coming.append(request)
                self._ask()
            return request

    def wait_for(self, request: RowRequest) -> None:
        """Waits until the agent has said of all rows of a batch where they are.

        Raises:
            LoaderError: the source is closed.
        """
        with self._lock:
            self._ask()
            first, rank = request.first, request.rank
        begun = time.monotonic()
        while first is not None and rank is not None and not rank.wait_all(first, len(request.samples), WAIT_S):
            if time.monotonic() - begun >= PATIENCE_S:
                return
            if self._closed:
                break
        if self._closed:
            raise LoaderError("the source is closed")
        self._agent._tell_lost()

    def gather(self, request: RowRequest, address: int) -> list[int]:
        """Copies what the agent has of a batch to memory, row by row.

        Args:
            request: was waited for.
            address: of memory for all of its rows.

        Returns:
            Places in the batch of rows that are to be read one by one.
        """
        first, rank = request.first, request.rank
        rows, row_bytes = len(request.samples), self.dataset.row_bytes
        if first is None or rank is None:
            return list(range(rows))
        return rank.gather(first, rows, row_bytes, address, rows * row_bytes)

    def _read_row(self, request: RowRequest, place: int) -> memoryview:
        if self._closed:
            raise LoaderError("the source is closed")
        self.direct_reads += 1
        direct = self._fallback.request([request.samples[place]], request.iteration)
        request.direct.append(direct)
        return direct.read(0)

    def _release_rows(self, request: RowRequest) -> None:
        with self._lock:
            if request.first is None:
                # It was asked for by nobody, and need not be any more.
                self._coming = deque(coming for coming in self._coming if coming is not request)
            else:
                self._step(request.iteration)
                self._let_go_of(request)
                self._asked.discard(request)
            if self._is_served and not self._closed:
                self._look_ahead(-1)
                self._ask()
        for direct in request.direct:
            direct.release()

    def _let_go_of(self, request: RowRequest) -> None:
        """The agent is told that a batch is over. With the lock held."""
        first, request.first = request.first, None
        if first is not None and (rank := request.rank) is not None:
            rank.release_all(first, len(request.samples))

    def _is_waiting(self) -> bool:
        """See `AgentSource`; by batches."""
        return bool(self._coming)

    def _foresee(self, iteration: int, samples: list[int]) -> None:
        """See `AgentSource`; by batches."""
        request = self._rows_foreseen[iteration] = RowRequest(self, samples, iteration)
        self._coming.append(request)

    def _ask(self) -> None:
        """See `AgentSource`; by batches."""
        rank = self._agent._rank
        while rank is not None and self._is_served and self._coming:
            request = self._coming[0]
            if len(request.samples) > rank.slots:
                # There will never be room for it: those after it would wait for ever.
                self._coming.popleft()
                self._agent._tell_of_size(len(request.samples), rank.slots)
                continue
            request.first = rank.ask(request.samples, self._pass, self._first + request.iteration)
            if request.first is None:
                return
            request.rank = rank
            self._asked.add(self._coming.popleft())
            if self._began is None:
                self._step(request.iteration)

    def _forget_all(self) -> None:
        """See `AgentSource`."""
        super()._forget_all()
        for request in self._asked:
            self._let_go_of(request)
        self._asked.clear()
        self._coming.clear()
        self._rows_foreseen.clear()


class RowThreads(Threads):
    """Makes batches of rows in threads, a batch each, and gives them in order: see `Threads`.

    Args:
        source: of the rows, begun.
        making: makes the batches.
        threads: at work.
        ahead: batches that are made beside the one that training has.
        timeout_s: of a batch; 0 for none.
        skip: whether a row that fails is left out, instead of failing its batch.
    """

    def __init__(self, source: RowSource, making: Making, *, threads: int, ahead: int, timeout_s: float, skip: bool) -> None:
        rows = source.dataset
        decoding = Decoding(rows, _no_generators, lambda made: making.finish(made[0]), is_copying=True, skip=skip)
        super().__init__(decoding, source, threads=threads, ahead=ahead, timeout_s=timeout_s)
        self._rows, self._rows_source, self._making, self._skip = rows, source, making, skip

    def _parts(self, samples: int) -> list[range]:
        return [range(samples)] if samples else []

    def _decode(self, pending: Pending, places: range, generator: Callable[[int], Any]) -> None:
        del generator
        request, fetched, count = pending.request, pending.fetched, len(places)
        assert isinstance(request, RowRequest)
        begun = time.perf_counter()
        pending.doing[0] = Part(places)
        self._rows_source.wait_for(request)
        between = time.perf_counter()
        made, address = self._making.allocate(count)
        missing = self._rows_source.gather(request, address)
        gathered = time.perf_counter()
        failures = self._read(pending, missing, address) if missing else {}
        ended = time.perf_counter()
        if failures and self._skip:
            made = self._making.only(made, [nth for nth in places if nth not in failures])
        # The rows are one thing from here on; none where none is left.
        pending.samples[:] = [made] if len(failures) < count else []
        pending.doing.pop(0, None)
        fetched.waited_s += between - begun + ended - gathered
        fetched.decoded_s += gathered - between
        fetched.read_bytes += (count - len(failures)) * self._rows.row_bytes
        fetched.failures += failures.values()

    def _read(self, pending: Pending, missing: list[int], address: int) -> dict[int, Failure]:
        """Reads rows that the agent does not have; those that failed, by their place in the batch."""
        failures: dict[int, Failure] = {}
        row_bytes = self._rows.row_bytes
        for nth in missing:
            if self._closing or (failures and not self._skip):
                break
            sample = pending.batch.samples[nth]
            pending.doing[0] = Part(range(nth, nth + 1))
            try:
                data = pending.request.read(nth)
                ctypes.memmove(address + nth * row_bytes, bytes(data), row_bytes)
            except MemoryError:
                raise
            except Exception as error:
                failures[nth] = failure(self._rows, sample, error)
        return failures


def _no_generators() -> Callable[[int], None]:
    """Nothing is drawn for a row."""
    return lambda _: None
