"""Worker processes of a rank that the loader agent serves.

The rank asks, as for threads of its own, and sends a worker with each batch where the answers will be: on the rank's board. The worker
waits there, decodes from the agent's memory, and marks on the board that it is done; then the rank lets go of the batch. It does so, too,
when the batch has come back, or the worker has ended. What the agent does not give, and all once it is gone, a worker reads itself.
"""

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple

from forebay import _core
from forebay.loader._agent import PATIENCE_S, Agent
from forebay.loader._batches import Batch
from forebay.loader._joining import WAIT_S
from forebay.loader._uses import Held, Uses
from forebay.loader.dataset import Extent
from forebay.loader.order import Order
from forebay.loader.source import Request, Source, connect

__all__ = ["Lent", "Seated", "Serving", "Share"]

ROOM_LOOK_S = 0.001
"""How often it is looked whether the board has room: the agent takes less to make some."""

Seat = tuple[int, int, tuple[int, int], tuple[int, int]]
"""See `LoaderRank.seat`."""


class Share(NamedTuple):
    """What a worker is sent with a batch.

    Attributes:
        seat: where the rank's board and the agent's memory are.
        turns: of the samples; None of those that the worker is to read itself.
        mark: one of these, by which the worker says that it is done.
    """

    seat: Seat
    turns: list[int | None]
    mark: int


class Lent:
    """A batch that a worker has. Its bytes stay until the worker is done with them, or until nobody refers to this any more."""

    __slots__ = ("__weakref__", "held")

    def __init__(self, held: Held) -> None:
        self.held = held


class Serving:
    """An epoch of a rank whose worker processes read through the agent.

    Args:
        agent: of the rank.
        order: see `Source.register`.
        locate: the same.

    Raises:
        LoaderError: as `AgentSource.register` does.
    """

    def __init__(self, agent: Agent, order: Order | None, locate: Callable[[int], Extent]) -> None:
        self._agent = agent
        # By itself it reads nothing: workers do.
        self._source = agent.source(connect())
        self._has_room = True
        try:
            self._source.register(order, locate)
        except BaseException:
            self._source.close()
            raise
        self._seat = None if agent._rank is None else agent._rank.seat()

    def request(self, batch: Batch) -> Uses | None:
        """A worker will have this batch; None where it is to read that itself."""
        if self._agent.lost is not None:
            self._source._is_served = False
            self._agent._tell_lost()
        if not self._source._is_served:
            return None
        uses = self._source.request(batch.samples, batch.iteration)
        return uses if isinstance(uses, Uses) else None

    def lend(self, uses: Uses | None) -> tuple[Share | None, Lent | None]:
        """A worker is sent the batch now: what with it, and what to keep until the batch comes back, or the worker has ended."""
        self._agent._sweep()
        if uses is None or self._seat is None:
            return None, None
        self._ask_all(uses)
        mark = next((turn for turn in uses.turns if turn is not None), None)
        if mark is not None:
            lent = Lent(Held(uses, mark))
            if self._agent._lend(lent.held, lent):
                return Share(self._seat, list(uses.turns), mark), lent
        uses.release()
        return None, None

    def _ask_all(self, uses: Uses) -> None:
        """Asks for what was not asked for yet, as far as the board has room. Room that was waited for in vain is waited for no more."""
        until = time.monotonic() + (WAIT_S if self._has_room else 0.0)
        while True:
            with self._source._lock:
                self._source._ask()
                is_over = not uses.unasked or time.monotonic() >= until
                if is_over:
                    self._has_room = not uses.unasked
                    uses.unasked = []
            if is_over:
                return
            time.sleep(ROOM_LOOK_S)
            self._agent._sweep()

    def back(self, lent: Lent | None, lost: str | None) -> None:
        """A batch has come back.

        Args:
            lent: as `lend` gave it.
            lost: why the worker reads by itself.
        """
        if lent is None:
            return
        self._agent._back(lent.held)
        # There may be another agent by now.
        if lost is not None and lent.held.uses.rank is self._agent._rank:
            self._agent.give_up(lost)

    def close(self) -> None:
        """Ends it. What workers have stays until they are done with it, or have ended."""
        self._source.close()


class Seated:
    """A worker process before its rank's board."""

    def __init__(self) -> None:
        self._seat: Seat | None = None
        self._worker: _core.LoaderWorker | None = None
        self._why: str | None = None

    @property
    def lost(self) -> str | None:
        """Why it reads by itself; None as long as the agent serves."""
        return self._why if self._worker is None else self._worker.lost()

    def request(self, batch: Batch, share: Share, fallback: Source) -> "Shared | None":
        """A batch as the agent gives it; None where it gives nothing any more.

        Args:
            batch: that the worker was sent,
            share: and this with it.
            fallback: reads what the agent does not.
        """
        if share.seat != self._seat:
            self._seat, self._worker, self._why = share.seat, None, None
            try:
                self._worker = _core.LoaderWorker(share.seat)
            except ConnectionError as error:
                self._why = str(error)
        return None if self._worker is None or self._worker.lost() else Shared(self._worker, batch, share, fallback)


class Shared:
    """A batch of a worker: see `Request`."""

    def __init__(self, worker: _core.LoaderWorker, batch: Batch, share: Share, fallback: Source) -> None:
        self._worker = worker
        self._batch = batch
        self._share = share
        self._fallback = fallback
        self._direct: dict[int, Request] = {}
        memory = (ctypes.c_ubyte * worker.length).from_address(worker.address)
        # What is mapped stays so as long as there is any view of it.
        memory.worker = worker  # type: ignore[attr-defined]
        self._memory = memoryview(memory).cast("B").toreadonly()

    def at_hand(self, places: range) -> list[memoryview | None]:
        """See `Request.at_hand`."""
        return [self._served(turn, 0.0) for turn in self._share.turns[places.start : places.stop]]

    def read(self, place: int) -> memoryview:
        """See `Request.read`."""
        if place not in self._direct and (data := self._served(self._share.turns[place], PATIENCE_S)) is not None:
            return data
        if (direct := self._direct.get(place)) is None:
            direct = self._direct[place] = self._fallback.request([self._batch.samples[place]], self._batch.iteration)
        return direct.read(0)

    def release(self) -> None:
        """See `Request.release`."""
        for direct in self._direct.values():
            direct.release()
        self._worker.done(self._share.mark)

    def _served(self, turn: int | None, wait_s: float) -> memoryview | None:
        """What the agent gives within this time; None where the worker is to read it itself."""
        until = time.monotonic() + wait_s
        while turn is not None:
            left_s = until - time.monotonic()
            told = self._worker.wait(turn, max(0.0, min(left_s, WAIT_S)))
            if told is not None:
                offset, length = told
                return None if offset < 0 else self._memory[offset : offset + length]
            if left_s <= 0:
                break
        return None
