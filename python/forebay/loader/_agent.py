"""A rank that this node's loader agent serves.

The agent fetches what all ranks of the node will use, keeps what is worth keeping, and puts the bytes into memory that
ranks map. The rank reads by itself whatever the agent can't provide, and everything once the agent is gone.
"""

import os
import threading
import weakref
from collections.abc import Callable, Mapping

from forebay import _core
from forebay._say import say
from forebay.loader._agent_source import AgentSource, Loan
from forebay.loader._joining import AgentJoining
from forebay.loader._notices import Notices
from forebay.loader._settings import AgentSettings
from forebay.loader._sharing import NodeSharing
from forebay.loader.dataset import Extent
from forebay.loader.order import Order
from forebay.loader.source import Source

__all__ = ["AgentRank", "cached_share"]

GAUGES = ("nodes", "reads_at_once", "hung", "rank_threads_most", "rank_decoders", "rank_decoders_most")
"""Figures that are reported as they are, not as the difference from the previous report."""


class AgentLink:
    """The connection of a rank to the agent, made again when the agent is gone.

    Attributes:
        rank: the rank as the agent serves it; None where no agent does.
    """

    def __init__(self, joining: AgentJoining, notices: Notices, sharing: NodeSharing) -> None:
        self._joining = joining
        self._notices = notices
        self._sharing = sharing
        self.rank: _core.LoaderRank | None = None
        self._why: str | None = None  # The reason why the agent does not serve.
        self._pid: int | None = None  # The process that has joined.
        self._is_joined = self._has_lost = False

    @property
    def lost(self) -> str | None:
        """The reason why the rank reads by itself; None as long as the agent serves."""
        if self._why is None and self.rank is not None:
            self._why = self.rank.lost()
        return self._why

    def begin_epoch(self, locate: Callable[[int], Extent], forget: Callable[[], None]) -> bool:
        """Joins the agent, or another one if the agent is gone; returns true if another agent serves the rank now.

        The first call waits for all ranks of the node. `forget` is called before another agent is joined.
        """
        if not self._is_joined:
            self._is_joined = True
            self._come(*self._joining.join(locate))
            return False
        if not self._is_gone(forget):
            return False
        self._notices.lost(self.lost)
        if (again := self._joining.rejoin()) is None:
            return False
        self._has_lost = False
        self._come(again, "")
        self._notices.again()
        return True

    def give_up(self, why: str) -> None:
        """Makes the rank read by itself from now on."""
        if self.lost is None:
            self._why = why

    def _come(self, rank: _core.LoaderRank | None, why: str) -> None:
        self.rank, self._why, self._pid = rank, why or None, os.getpid()
        if rank is None:
            return
        for note in rank.notes:
            say(note)
        self._sharing.begin(rank)

    def _is_gone(self, forget: Callable[[], None]) -> bool:
        """Returns true if the agent that served is gone, and another one may follow."""
        # A process that was forked is not the rank.
        if os.getpid() != self._pid:
            return False
        rank = self.rank
        # If a rank has left the loader, the ranks of the node will never be complete again.
        if rank is not None and rank.lost() is not None and not rank.gone():
            forget()
            self._why, self.rank, self._has_lost = rank.lost(), None, True
        return self._has_lost


class AgentRank:
    """A rank of a loader that the agent of this node serves, from its first epoch until it is closed or forgotten.

    Attributes:
        joining: registers the rank, and knows the numbers of extents.
        lock: guards the requests of the rank.
        notices: lines of the rank about the agent.
        serving: the source of the last epoch that has begun, while that epoch goes on.
    """

    def __init__(self, joining: AgentJoining) -> None:
        self.joining = joining
        self.notices = Notices(joining.place.rank)
        self.lock = threading.Lock()
        self.serving: AgentSource | None = None
        self._sharing = NodeSharing(joining.name, joining.place)
        self._link = AgentLink(joining, self.notices, self._sharing)
        self._passes = 0
        self._before: dict[str, int] = {}
        # Batches that worker processes have. They end with torch's iterator, which refers to them, too.
        self._loans: weakref.WeakSet[Loan] = weakref.WeakSet()

    @property
    def settings(self) -> AgentSettings:
        """The settings that have to be equal in all ranks."""
        return self.joining.settings

    @property
    def rank(self) -> _core.LoaderRank | None:
        """The rank as the agent serves it; None where no agent does."""
        return self._link.rank

    @property
    def lost(self) -> str | None:
        """The reason why the rank reads by itself; None as long as the agent serves."""
        return self._link.lost

    @property
    def references(self) -> int:
        """Objects that refer to the agent's memory."""
        return 0 if self.rank is None else self.rank.references

    def figures(self) -> dict[str, int]:
        """Returns the agent's counts for all ranks of the node so far; empty where no agent serves."""
        return {} if self.rank is None or self.lost is not None else dict(self.rank.figures() or [])

    def since(self) -> dict[str, int]:
        """Returns the agent's counts since the previous call; empty where no agent serves."""
        figures = self.figures()
        before, self._before = self._before, figures
        return {name: count - (0 if name in GAUGES else before.get(name, 0)) for name, count in figures.items()}

    def decodes(self, seconds: float, sample_bytes: int, threads: int) -> None:
        """Tells the agent the seconds of one thread for a sample, the size of samples, and this rank's own threads.

        With 0 threads, the rank decodes in processes: then the seconds are those of all together.
        """
        if self.rank is not None:
            self.rank.set_decoding(seconds, sample_bytes, threads)

    def decoders(self, own: int) -> int:
        """Returns the threads with which this rank is to decode: `own`, unless the agent has chosen another."""
        chosen = None if self.rank is None or not own else self.rank.decoders()
        return own if chosen is None else chosen

    def source(self, fallback: Source) -> AgentSource:
        """Returns the source for an epoch. The fallback reads what the agent does not, and closes with the source."""
        return AgentSource(self, fallback)

    def close(self) -> None:
        """Ends the rank. Memory that something still refers to stays until nothing does."""
        self._link.rank = None
        self._sharing.end()

    def begin_epoch(self, order: Order | None, locate: Callable[[int], Extent]) -> tuple[int, int]:
        """Begins an epoch; returns its number and that of its first iteration, as the agent counts.

        The very first epoch waits for all ranks of the node.
        """
        if self._link.begin_epoch(locate, self._forget):
            self._before = {}
        self.notices.lost(self.lost)
        rank = self.rank
        self.notices.gone([] if rank is None else rank.gone())
        with self.lock:
            number, first = self._passes, 0
            self._passes += 1
            if order is not None and self.settings.order != "unknown":
                # Where an epoch goes on, the agent counts from its beginning; after other ranks, or batches of another
                # size, that is a step off at most.
                first = order.used // (order.batch_size * order.world)
                number = number if order.is_drawn else order.number
            return (number if rank is None else rank.begin_epoch(number)), first

    def give_up(self, why: str) -> None:
        """Makes the rank read by itself: a worker process has found that the agent does not serve."""
        self._link.give_up(why)
        self.notices.lost(self.lost)

    def add_loan(self, loan: Loan) -> None:
        """Notes a batch that a worker process has."""
        self._loans.add(loan)

    def end_done_loans(self) -> None:
        """Releases the batches that worker processes are done with."""
        for loan in list(self._loans):
            if loan.is_done:
                self._loans.discard(loan)
                loan.end()

    def _forget(self) -> None:
        """Forgets the requests of an agent that is gone: they are no business of the next one's."""
        with self.lock:
            if (source := self.serving) is not None:
                source.serve_no_more()


def cached_share(since: Mapping[str, int]) -> str:
    """Returns words on the agent's counts of an epoch, for a person; empty where no agent serves."""
    if not since:
        return ""
    cached = since["from_memory"] + since["from_disk"]
    requests = cached + since["from_source"] + since["from_peers"]
    share = 100.0 * cached / requests if requests else 0.0
    peers = f", {since['peer_bytes'] / 1e6:,.1f} MB came from other nodes" if since["nodes"] else ""
    return f"; of this node's samples {share:.0f} % were cached{peers}, and {since['source_bytes'] / 1e6:,.1f} MB read from the source"
