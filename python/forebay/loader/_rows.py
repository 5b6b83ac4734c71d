"""Batches of rows that need no decoding, put together natively out of the agent's memory: no Python runs for a row."""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from forebay.loader._agent import PATIENCE_S, WAIT_S, Agent, AgentSource
from forebay.loader._batches import Batch, Failure, failure
from forebay.loader._errors import LoaderError
from forebay.loader._threads import Decoding, Pending, Threads
from forebay.loader.order import Order
from forebay.loader.rows import FixedRows
from forebay.loader.source import Source

__all__ = ["Making", "RowSource", "RowThreads"]


class Making(Protocol):
    """How the framework makes a batch."""

    def allocate(self, rows: int) -> tuple[Any, int]:
        """Memory for so many rows, and its address."""

    def only(self, batch: Any, rows: list[int]) -> Any:  # noqa: ANN401  (the framework's)
        """Some rows of a batch."""

    def finish(self, batch: Any) -> Any:  # noqa: ANN401  (the framework's)
        """The batch as it is handed to training."""


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
        # Of batches that the agent was not asked for yet, iteration and samples; of those that it was, the first turn, and how many.
        self._coming: deque[tuple[int, list[int]]] = deque()
        self._turns: dict[int, tuple[int, int]] = {}

    def begin(self, order: Order | None) -> None:
        """An epoch begins: see `Source.register`."""
        try:
            self.register(order, self.dataset.locate)
        except BaseException:
            self.close()
            raise

    def request_batch(self, batch: Batch) -> None:
        """This rank will use a batch: see `Source.request`."""
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            if self._order is not None:
                self._look_ahead(batch.iteration)
            # A row that can't be is for who reads it to tell.
            elif self._is_served and min(batch.samples, default=-1) >= 0:
                self._coming.append((batch.iteration, batch.samples))
                self._ask()

    def wait_for(self, batch: Batch) -> None:
        """Waits until the agent has said of all rows of a batch where they are.

        Raises:
            LoaderError: the source is closed.
        """
        with self._lock:
            self._ask()
            asked = self._turns.get(batch.iteration)
        rank, begun = self._agent._rank, time.monotonic()
        while asked is not None and rank is not None and not rank.wait_all(*asked, WAIT_S):
            if time.monotonic() - begun >= PATIENCE_S:
                return
            if self._closed:
                break
        if self._closed:
            raise LoaderError("the source is closed")
        self._agent._tell_lost()

    def gather(self, batch: Batch, address: int) -> list[int]:
        """Copies what the agent has of a batch to memory, row by row.

        Args:
            batch: was waited for.
            address: of memory for all of its rows.

        Returns:
            Places in the batch of rows that are to be read one by one.
        """
        asked, rank = self._turns.get(batch.iteration), self._agent._rank
        rows, row_bytes = len(batch.samples), self.dataset.row_bytes
        if asked is None or rank is None:
            return list(range(rows))
        return rank.gather(*asked, row_bytes, address, rows * row_bytes)

    def release_batch(self, batch: Batch) -> None:
        """The loader is done with a batch, had or not."""
        with self._lock:
            asked, rank = self._turns.pop(batch.iteration, None), self._agent._rank
            if asked is None:
                # It was asked for by nobody, and need not be any more.
                self._coming = deque(coming for coming in self._coming if coming[0] != batch.iteration)
            elif rank is not None:
                self._step(batch.iteration)
                rank.release_all(*asked)
            if self._is_served and not self._closed:
                self._look_ahead(-1)
                self._ask()

    def _is_waiting(self) -> bool:
        """See `AgentSource`; by batches."""
        return bool(self._coming)

    def _foresee(self, iteration: int, samples: list[int]) -> None:
        """See `AgentSource`; by batches."""
        self._coming.append((iteration, samples))

    def _ask(self) -> None:
        """See `AgentSource`; by batches."""
        rank = self._agent._rank
        while rank is not None and self._is_served and self._coming:
            iteration, samples = self._coming[0]
            if len(samples) > rank.slots:
                # There will never be room for it: those after it would wait for ever.
                self._coming.popleft()
                self._agent._tell_of_size(len(samples), rank.slots)
                continue
            first = rank.ask(samples, self._pass, self._first + iteration)
            if first is None:
                return
            self._turns[iteration] = (first, len(samples))
            self._coming.popleft()
            if self._began is None:
                self._step(iteration)

    def _forget_all(self) -> None:
        """See `AgentSource`."""
        super()._forget_all()
        if (rank := self._agent._rank) is not None:
            for first, count in self._turns.values():
                rank.release_all(first, count)
        self._turns.clear()
        self._coming.clear()


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

    def _request(self, batch: Batch) -> None:
        self._rows_source.request_batch(batch)

    def _release(self, batch: Batch) -> None:
        self._rows_source.release_batch(batch)

    def _parts(self, samples: int) -> list[range]:
        return [range(samples)] if samples else []

    def _decode(self, pending: Pending, part: range, generator: Callable[[int], Any]) -> None:
        del generator
        batch, fetched, count = pending.batch, pending.fetched, len(part)
        begun = time.perf_counter()
        pending.doing[part.start] = (batch.samples[0], False)
        self._rows_source.wait_for(batch)
        between = time.perf_counter()
        made, address = self._making.allocate(count)
        missing = self._rows_source.gather(batch, address)
        gathered = time.perf_counter()
        failures = self._read(pending, missing, address) if missing else {}
        ended = time.perf_counter()
        if failures and self._skip:
            made = self._making.only(made, [nth for nth in part if nth not in failures])
        # The rows are one thing from here on; none where none is left.
        pending.samples[:] = [made] if len(failures) < count else []
        pending.doing.pop(part.start, None)
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
            pending.doing[0] = (sample, False)
            try:
                data = self._rows_source.read(sample)
                ctypes.memmove(address + nth * row_bytes, bytes(data), row_bytes)
            except MemoryError:
                raise
            except Exception as error:
                failures[nth] = failure(self._rows, sample, error)
            finally:
                self._rows_source.release(sample)
        return failures


def _no_generators() -> Callable[[int], None]:
    """Nothing is drawn for a row."""
    return lambda _: None
