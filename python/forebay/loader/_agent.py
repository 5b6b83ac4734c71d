"""A source of samples that asks this node's loader agent, and reads by itself where that does not serve.

The agent fetches what all ranks of the node will use, keeps what is worth it, and puts the bytes into memory that ranks map: what `read`
gives is a view of that, without a copy. Whatever the agent can't do, and all once it is gone, the rank reads itself.
"""

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from forebay import _core
from forebay._say import say
from forebay.loader._errors import LoaderError
from forebay.loader._joining import WAIT_S, Joining, encoded
from forebay.loader._place import Place
from forebay.loader._settings import AgentSettings
from forebay.loader._uses import Direct, Held, Uses
from forebay.loader.dataset import Extent
from forebay.loader.order import Order
from forebay.loader.rows import FixedRows
from forebay.loader.source import Request, Source

__all__ = ["PATIENCE_S", "Agent", "AgentSource"]

PATIENCE_S = 30.0
"""Who has waited for so long for a sample reads it himself, whatever the agent says."""
LOOK_STEPS = 2
"""Steps beyond what is needed that are asked for at once: asking takes time, and training waits."""
LEVELS = ("reads_at_once", "hung", "rank_threads_most")
"""Figures that are no counts."""
VIEWED_BYTES = 64 << 10
"""Of small samples so many bytes are held as one where anybody keeps a view: to hold each by itself takes longer than many a decode."""


# With views of the agent's memory: what is mapped stays mapped as long as any of them is there.
_in_use: set["Agent"] = set()


class Agent:
    """A rank of a loader, before the agent of this node: from its first epoch until it is closed or forgotten.

    Args:
        name: of the loader within the job: the same in all of its ranks, and no other's.
        samples: of the dataset.
        settings: what all ranks want alike.
        place: of this rank.
        cache: where samples are kept: see `kept`.
        rows: what the dataset is, if its samples are rows.
    """

    def __init__(
        self, name: str, samples: int, settings: AgentSettings, place: Place, cache: Sequence[str], rows: FixedRows | None = None
    ) -> None:
        self._settings = settings
        self._place = place
        self._joining = Joining(name, samples, settings, place, cache, rows)
        self._lock = threading.Lock()
        self._rank: _core.LoaderRank | None = None
        self._why: str | None = None  # It does not serve.
        self._pid: int | None = None  # Of the process that has joined.
        self._was_told = self._was_told_of_size = False
        self._telling = threading.Lock()
        self._gone_told = 0  # Ranks.
        self._is_joined = self._has_lost = self._closed = False
        self._passes = 0
        self._held: set[Held] = set()
        self._lent: set[Held] = set()  # Of these what worker processes have.
        # Written to by finalizers, which may run anywhere: nothing is locked there.
        self._finished: deque[Held] = deque()
        self._before: dict[str, int] = {}
        # The epoch that it serves: the last one that has begun, if that goes on.
        self._serving: AgentSource | None = None

    @property
    def lost(self) -> str | None:
        """Why the rank reads by itself; None as long as the agent serves."""
        if self._why is None and self._rank is not None:
            self._why = self._rank.lost()
        return self._why

    def figures(self) -> dict[str, int]:
        """What was done for all ranks of the node so far; empty where no agent serves."""
        return {} if self._rank is None or self.lost is not None else dict(self._rank.figures() or [])

    def since(self) -> dict[str, int]:
        """What was done since this was asked last; empty where no agent serves."""
        figures = self.figures()
        before, self._before = self._before, figures
        return {name: count - (0 if name in LEVELS else before.get(name, 0)) for name, count in figures.items()}

    @staticmethod
    def told(since: Mapping[str, int]) -> str:
        """The same in words for a person."""
        if not since:
            return ""
        cached = since["from_memory"] + since["from_disk"]
        uses = cached + since["from_source"]
        share = 100.0 * cached / uses if uses else 0.0
        return f"; of this node's samples {share:.0f} % were cached, and {since['source_bytes'] / 1e6:,.1f} MB read from the source"

    def decodes(self, seconds: float) -> None:
        """This rank's threads together take so long to decode a sample."""
        if self._rank is not None:
            self._rank.set_decoding(seconds)

    def source(self, fallback: Source) -> "AgentSource":
        """The source for an epoch.

        Args:
            fallback: reads what the agent does not. It is closed with the source.
        """
        return AgentSource(self, fallback)

    def close(self) -> None:
        """Ends it. Memory that something still refers to stays until nothing does."""
        with self._lock:
            self._closed = True
        self._drain()

    def _begin(self, order: Order | None, locate: Callable[[int], Extent]) -> tuple[int, int]:
        """An epoch begins: what the agent calls it, and its first iteration. The very first waits for all ranks of the node."""
        if not self._is_joined:
            self._is_joined = True
            rank, why = self._joining.join(locate)
            self._come(rank, why)
        elif self._has_lost_it():
            self._tell_lost()
            if (again := self._joining.rejoin()) is not None:
                self._has_lost, self._before, self._gone_told, self._was_told = False, {}, 0, False
                self._come(again, "")
                say(f"the loader agent serves rank {self._place.rank} again")
        self._tell()
        with self._lock:
            number, first = self._passes, 0
            self._passes += 1
            if order is not None and self._settings.order != "unknown":
                # Where an epoch goes on, the agent counts from its beginning; after other ranks, or batches of another size, that is a
                # step off at most.
                first = order.used // (order.batch_size * order.world)
                number = number if order.is_drawn else order.number
            return (number if self._rank is None else self._rank.begin_epoch(number)), first

    def _come(self, rank: _core.LoaderRank | None, why: str) -> None:
        self._rank, self._why, self._pid = rank, why or None, os.getpid()
        for note in rank.notes if rank is not None else []:
            say(note)

    def _has_lost_it(self) -> bool:
        """Whether the agent that served is gone, so that there is to be another."""
        rank = self._rank
        # What was forked is no rank.
        if os.getpid() != self._pid:
            return False
        # Where one has left the loader, ranks will not be all again.
        if rank is not None and rank.lost() is not None and not rank.gone():
            with self._lock:
                # What was asked of it is no business of another's.
                if (source := self._serving) is not None:
                    source._is_served = False
                    source._forget_all()
                self._why, self._rank, self._has_lost = rank.lost(), None, True
        return self._has_lost

    def give_up(self, why: str) -> None:
        """A worker process has found that the agent does not serve."""
        if self.lost is None:
            self._why = why
        self._tell_lost()

    def _tell_lost(self) -> None:
        """Says it as soon as anybody finds that the agent does not serve, and once."""
        if (lost := self.lost) is None:
            return
        # All threads that decode find it at the same time.
        with self._telling:
            was_told, self._was_told = self._was_told, True
        if not was_told:
            say(f"the loader agent does not serve rank {self._place.rank}, which reads for itself: {lost}")

    def _tell(self) -> None:
        self._tell_lost()
        gone = [] if self._rank is None else self._rank.gone()[self._gone_told :]
        self._gone_told += len(gone)
        for rank in gone:
            say(f"rank {rank} has left this loader; the loader agent goes on for the others")

    def _tell_of_size(self, rows: int, most: int) -> None:
        if not self._was_told_of_size:
            self._was_told_of_size = True
            say(
                f"a batch has {rows:,} rows, and the loader agent takes {most:,} at once: such batches are read row by row; "
                "give smaller ones, or batch_size= in place of a sampler of batches"
            )

    def _viewed(self, uses: Uses, first: int, told: Sequence[tuple[int, int] | None]) -> list[memoryview | None]:
        """Views of the agent's memory.

        Args:
            uses: a batch's.
            first: place in it of the first sample.
            told: offset and length of each sample's bytes; None where there is nothing.

        Returns:
            One of each sample; None where there is nothing, and of all if they were let go meanwhile.
        """
        rank = uses.rank
        views: list[memoryview | None] = [None] * len(told)
        if rank is None:
            return views
        held: list[tuple[Held, ctypes.Array[ctypes.c_ubyte]]] = []
        room = 0
        for nth, lies in enumerate(told):
            if lies is None:
                continue
            offset, length = lies
            if length == 0:
                views[nth] = memoryview(b"")
                continue
            if length > room:
                # An object of its own for each that is held: it is what views of views refer to in the end.
                memory = (ctypes.c_ubyte * rank.length).from_address(rank.address)
                whole = memoryview(memory).cast("B").toreadonly()
                one = Held(uses)
                held.append((one, memory))
                room = VIEWED_BYTES
            room -= length
            one.places.append(first + nth)
            views[nth] = whole[offset : offset + length]
        with self._lock:
            if uses.released:
                return [None] * len(told)
            for one, memory in held:
                self._hold(one, memory)
        return views

    def _hold(self, held: Held, memory: object) -> None:
        """Bytes stay as long as anything refers to `memory`. With the lock held."""
        _in_use.add(self)
        held.memory = weakref.ref(memory, partial(self._view_is_gone, held))
        self._held.add(held)
        held.uses.held.add(held)
        held.uses.holds += 1

    def _lend(self, held: Held, lent: object) -> bool:
        """A worker process has a batch, for as long as anything refers to `lent`, or until it is done; if it was not let go meanwhile."""
        with self._lock:
            if held.uses.released:
                return False
            self._hold(held, lent)
            self._lent.add(held)
            return True

    def _sweep(self) -> None:
        """Lets go of what worker processes are done with."""
        with self._lock:
            lent = list(self._lent)
        for held in lent:
            rank = held.uses.rank
            if rank is None or held.mark is None or rank.is_done(held.mark):
                self._back(held)

    def _back(self, held: Held) -> None:
        """A worker process looks at a batch no more."""
        with self._lock:
            is_lent = held in self._lent
        if is_lent:
            self._view_is_gone(held, None)
            held.uses.release()

    def _view_is_gone(self, held: Held, _: object) -> None:
        self._finished.append(held)
        uses = held.uses
        # Before its batch is over, nothing is given back; then the views of a batch often end one after the other, and the agent need be
        # told only once. Those of a batch of which some stay are given back when another one is over.
        if next(uses.finished) >= uses.holds and uses.released:
            self._drain()

    def _drain(self) -> None:
        """Gives back what finalizers have seen the end of. Whoever holds the lock does it before long."""
        while self._lock.acquire(blocking=False):
            try:
                self._collect()
                if not self._held:
                    _in_use.discard(self)
                    if self._closed:
                        self._rank = None
            finally:
                self._lock.release()
            if not self._finished:
                return

    def _collect(self) -> None:
        """The same, with the lock held."""
        over: dict[Uses, list[int]] = {}
        while self._finished:
            held = self._finished.popleft()
            uses, held.memory = held.uses, None
            self._held.discard(held)
            self._lent.discard(held)
            uses.held.discard(held)
            if uses.released:
                over.setdefault(uses, []).extend(held.places)
        for uses, places in over.items():
            self._give_back(uses, places)

    def _let_go(self, uses: Uses) -> None:
        """A batch is over. With the lock held. What a finalizer sees the end of at this very time is given back by `_drain`."""
        self._collect()
        uses.released = True
        self._give_back(uses, range(len(uses.samples)))
        # What is looked at still holds nothing else up. A worker may wait for answers: their places are not another's before it is done.
        viewed = {place for held in uses.held if held.mark is None for place in held.places}
        if uses.rank is not None and (held := [turn for place in viewed if (turn := uses.turns[place]) is not None]):
            uses.rank.hold(held)

    def _give_back(self, uses: Uses, places: Iterable[int]) -> None:
        """Tells the agent of uses that are over and that nobody looks at. With the lock held."""
        rank, turns = uses.rank, uses.turns
        seen = {place for held in uses.held for place in held.places}
        if rank is not None and (over := [turn for place in places if place not in seen and (turn := turns[place]) is not None]):
            rank.release(over)


class AgentSource:
    """An epoch's source: see `Source`. Made by `Agent.source`."""

    is_lasting = True

    def __init__(self, agent: Agent, fallback: Source) -> None:
        self._agent = agent
        self._fallback = fallback
        self._lock = agent._lock
        self._locate: Callable[[int], Extent] | None = None
        self._pass = self._first = 0
        self._began: int | None = None
        self._is_served = False
        self._closed = False
        self._requested: set[Uses] = set()
        self._unasked: deque[Uses] = deque()
        # Where it looks ahead by itself: the order, its next iteration, and what was not requested yet, by iteration.
        self._order: Order | None = None
        self._next = 0
        self._foreseen: dict[int, Uses] = {}
        self.direct_reads = 0
        """Samples that were read by the rank itself."""

    def register(self, order: Order | None, locate: Callable[[int], Extent]) -> None:
        """See `Source.register`.

        Raises:
            LoaderError: ranks of this node disagree on what they load, or it can't be done as it was asked for.
        """
        self._fallback.register(order, locate)
        begun, first = self._agent._begin(order, locate)
        with self._lock:
            # The agent takes what a rank asks for to be in the order of its use: of two epochs at once one is read by the rank itself.
            if (other := self._agent._serving) is not None:
                other._is_served = False
                other._forget_all()
            self._agent._serving = self
            self._forget_all()
            self._locate, self._pass, self._first, self._began = locate, begun, first, None
            self._is_served = self._agent.lost is None
            settings = self._agent._settings
            if self._is_served and settings.ahead > settings.window:
                self._order = order
                self._look_ahead(0)
        # What the program still had of the epoch before, and has let go since.
        self._agent._drain()

    def request(self, samples: list[int], iteration: int) -> Request:
        """See `Source.request`. Where the order is known, what an iteration uses is what the order says."""
        extents = self._extents(samples) if self._is_served and self._order is None else []
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            uses: Uses | None = None
            if self._is_served and self._order is not None:
                self._look_ahead(iteration)
                uses = self._foreseen.pop(iteration, None)
            elif self._is_served:
                uses = Uses(self, samples, iteration, extents)
                self._unasked.append(uses)
                self._ask()
            if uses is not None:
                self._requested.add(uses)
                return uses
        return Direct(self, self._fallback.request(samples, iteration))

    def close(self) -> None:
        """See `Source.close`. The agent's memory that something still refers to stays until nothing does."""
        with self._lock:
            self._closed = True
            self._forget_all()
            if self._agent._serving is self:
                self._agent._serving = None
        self._fallback.close()
        self._agent._drain()

    def _at_hand(self, uses: Uses, places: range) -> list[memoryview | None]:
        with self._lock:
            self._ask()
            rank, turns = uses.rank, uses.turns[places.start : places.stop]
        if rank is None or self._closed:
            return [None] * len(places)
        return self._agent._viewed(uses, places.start, rank.look_all(turns))

    def _read(self, uses: Uses, place: int) -> memoryview:
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            self._ask()
        if place not in uses.direct and (data := self._served(uses, place)) is not None:
            return data
        if self._closed:
            raise LoaderError("the source is closed")
        self.direct_reads += 1
        if (direct := uses.direct.get(place)) is None:
            direct = uses.direct[place] = self._fallback.request([uses.samples[place]], uses.iteration)
        return direct.read(0)

    def _release(self, uses: Uses) -> None:
        with self._lock:
            # What was requested before another epoch began is forgotten already.
            if uses in self._requested:
                self._requested.discard(uses)
                self._step(uses.iteration)
                self._agent._let_go(uses)
            if self._is_served and not self._closed:
                self._look_ahead(-1)
                self._ask()
        for direct in uses.direct.values():
            direct.release()
        self._agent._drain()

    def _extents(self, samples: list[int]) -> list[int | None]:
        """Extents by the agent's numbers, in each epoch perhaps others; None where the rank is to read a sample itself."""
        locate = self._locate
        if locate is None:
            raise LoaderError("nothing was registered")
        # Where something is wrong with a sample, who reads it will be told.
        return self._agent._joining.table.find_all(samples, locate, encoded)

    def _served(self, uses: Uses, place: int) -> memoryview | None:
        """What the agent has; None where the rank is to read it itself."""
        rank, turn, begun = uses.rank, uses.turns[place], time.monotonic()
        while rank is not None and turn is not None and not self._closed:
            told = rank.wait(turn, WAIT_S)
            if told is not None:
                if told[0] >= 0:
                    return self._agent._viewed(uses, place, [told])[0]
                if self._agent.lost is not None:
                    self._is_served = False
                    self._agent._tell_lost()
                return None
            if time.monotonic() - begun >= PATIENCE_S:
                return None
        return None

    def _look_ahead(self, least: int) -> None:
        """Asks for all up to iteration `least`, and a little beyond it where the board has room. With the lock held."""
        order = self._order
        if order is None:
            return
        self._ask()
        end = min(len(order), max(least, self._next - 1) + 1 + LOOK_STEPS)
        while self._next < end and (self._next <= least or not self._is_waiting()):
            self._foresee(self._next, order.batch(self._next))
            self._next += 1
            self._ask()

    def _is_waiting(self) -> bool:
        """Whether there are requests for which the board had no room."""
        return bool(self._unasked)

    def _foresee(self, iteration: int, samples: list[int]) -> None:
        """What an iteration reads is to be asked for."""
        uses = self._foreseen[iteration] = Uses(self, samples, iteration, self._extents(samples))
        self._unasked.append(uses)

    def _ask(self) -> None:
        """Passes requests on, a batch at once at most, as far as the board has room. With the lock held."""
        rank, most = self._agent._rank, self._agent._settings.batch
        while rank is not None and self._unasked:
            uses = self._unasked[0]
            left = [place for place in uses.unasked if place not in uses.direct] if uses.direct else uses.unasked
            wanted, uses.unasked = left[:most], left
            if uses.released or not wanted:
                self._unasked.popleft()
                continue
            extents = [extent for place in wanted if (extent := uses.extents[place]) is not None]
            first = rank.ask(extents, self._pass, self._first + uses.iteration)
            if first is None:
                return
            uses.rank = rank
            for turn, place in enumerate(wanted, first):
                uses.turns[place] = turn
            uses.unasked = left[most:]
            if self._began is None:
                # Whatever is still held of the epoch before holds this one up no more.
                self._step(uses.iteration)

    def _step(self, iteration: int) -> None:
        """A batch is put together: its step begins. With the lock held."""
        rank = self._agent._rank
        if rank is not None and (self._began is None or iteration > self._began):
            self._began = iteration
            rank.begin_step(self._pass, self._first + iteration)

    def _forget_all(self) -> None:
        """With the lock held."""
        self._unasked.clear()
        for uses in (*self._requested, *self._foreseen.values()):
            self._agent._let_go(uses)
        self._requested.clear()
        self._foreseen.clear()
        self._order, self._next = None, 0
