"""Worker processes of a rank that the loader agent serves.

The rank requests samples, as it does for threads of its own. With each batch it sends a worker the sequence numbers of
the requests on the rank's ring. The worker waits there for the answers, decodes from the agent's memory, and marks on
the ring that it is done; then the rank releases the batch. The rank does so, too, when the batch has come back, or the
worker has ended. A worker reads by itself what the agent does not provide, and everything once the agent is gone.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from forebay import _core
from forebay.loader._agent import AgentRank
from forebay.loader._agent_source import PATIENCE_S, AgentBatch, Loan
from forebay.loader._batches import SampleBatch
from forebay.loader._joining import WAIT_S
from forebay.loader.dataset import Extent
from forebay.loader.order import Order
from forebay.loader.source import Request, Source, connect

__all__ = ["RingShare", "WorkerSeat", "WorkerServing"]

ROOM_LOOK_S = 0.001
"""Seconds between two looks for room on the ring: the agent takes less to make some."""

Seat = tuple[int, int, tuple[int, int], tuple[int, int]]
"""See `LoaderRank.seat`."""


class RingShare(NamedTuple):
    """The part of a rank's ring that a worker is sent with a batch.

    Attributes:
        seat: names by which the worker finds the rank's ring and the agent's memory.
        numbers: sequence numbers of the samples' requests; None of samples that the worker is to read itself.
        mark: the sequence number by which the worker says that it is done.
    """

    seat: Seat
    numbers: list[int | None]
    mark: int


class WorkerServing:
    """An epoch of a rank whose worker processes read through the agent: see `AgentSource.register`."""

    def __init__(self, agent: AgentRank, order: Order | None, locate: Callable[[int], Extent]) -> None:
        self._agent = agent
        # Its fallback reads nothing: workers read.
        self._source = agent.source(connect())
        self._has_room = True
        try:
            self._source.register(order, locate)
        except BaseException:
            self._source.close()
            raise
        self._rank = agent.rank
        self._seat = None if self._rank is None else self._rank.seat()

    def request(self, batch: SampleBatch) -> AgentBatch | None:
        """Requests a batch for a worker; None where the worker is to read the batch itself."""
        if self._agent.lost is not None:
            self._source.is_served = False
            self._agent.notices.lost(self._agent.lost)
        if not self._source.is_served:
            return None
        requested = self._source.request(batch.samples, batch.iteration)
        return requested if isinstance(requested, AgentBatch) else None

    def lend(self, requested: AgentBatch | None) -> tuple[RingShare | None, Loan | None]:
        """Lends a batch to the worker that is sent it now.

        The loan is kept until the batch comes back, or the worker has ended.
        """
        self._agent.end_done_loans()
        if requested is None or self._seat is None:
            return None, None
        self._pass_all_on(requested)
        if (native := requested.native.lend()) is not None:
            loan = Loan(requested, native)
            self._agent.add_loan(loan)
            return RingShare(self._seat, requested.native.numbers, loan.mark), loan
        requested.release()
        return None, None

    def _pass_all_on(self, requested: AgentBatch) -> None:
        """Passes the batch's requests on, as far as the ring has room.

        Once room did not come in time, it is waited for no more.
        """
        until = time.monotonic() + (WAIT_S if self._has_room else 0.0)
        while not (is_whole := self._source.pass_all_on(requested)) and time.monotonic() < until:
            time.sleep(ROOM_LOOK_S)
            self._agent.end_done_loans()
        self._has_room = is_whole
        if not is_whole:
            self._source.leave(requested)

    def back(self, loan: Loan | None, lost: str | None) -> None:
        """Takes back a batch, and the reason why the worker reads by itself; None as long as the agent serves it."""
        if loan is None:
            return
        loan.end()
        # Another agent may serve the rank by now.
        if lost is not None and self._rank is self._agent.rank:
            self._agent.give_up(lost)

    def close(self) -> None:
        """Ends the epoch. What workers have stays until they are done with it, or have ended."""
        self._source.close()


class WorkerSeat:
    """A worker process at its rank's ring."""

    def __init__(self) -> None:
        self._seat: Seat | None = None
        self._worker: _core.LoaderWorker | None = None
        self._why: str | None = None

    @property
    def lost(self) -> str | None:
        """The reason why the worker reads by itself; None as long as the agent serves."""
        return self._why if self._worker is None else self._worker.lost()

    def request(self, batch: SampleBatch, share: RingShare, fallback: Source) -> "LentBatch | None":
        """Returns a batch as the agent gives it, or the fallback; None where the agent serves no more."""
        if share.seat != self._seat:
            self._seat, self._worker, self._why = share.seat, None, None
            try:
                self._worker = _core.LoaderWorker(share.seat)
            except ConnectionError as error:
                self._why = str(error)
        return None if self._worker is None or self._worker.lost() else LentBatch(self._worker, batch, share, fallback)


class LentBatch(Request):
    """A batch that a worker was lent: see `Request`."""

    def __init__(self, worker: _core.LoaderWorker, batch: SampleBatch, share: RingShare, fallback: Source) -> None:
        self._worker = worker
        self._batch = batch
        self._share = share
        self._fallback = fallback
        self._direct: dict[int, Request] = {}
        self._memory = memoryview(worker)

    def at_hand(self, places: range) -> list[memoryview | None]:
        return [self._served(number, 0.0) for number in self._share.numbers[places.start : places.stop]]

    def read(self, place: int) -> memoryview:
        if place not in self._direct and (data := self._served(self._share.numbers[place], PATIENCE_S)) is not None:
            return data
        if (direct := self._direct.get(place)) is None:
            direct = self._direct[place] = self._fallback.request([self._batch.samples[place]], self._batch.iteration)
        return direct.read(0)

    def release(self) -> None:
        for direct in self._direct.values():
            direct.release()
        self._worker.done(self._share.mark)

    def _served(self, number: int | None, wait_s: float) -> memoryview | None:
        """Returns the agent's bytes of a sample; None if the worker is to read it itself."""
        until = time.monotonic() + wait_s
        while number is not None:
            left_s = until - time.monotonic()
            told = self._worker.wait(number, max(0.0, min(left_s, WAIT_S)))
            if told is not None:
                offset, length = told
                return None if offset < 0 else self._memory[offset : offset + length]
            if left_s <= 0:
                break
        return None
