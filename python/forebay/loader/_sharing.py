"""The other nodes of a job, with which the agent of this node shares the samples of a loader."""

import contextlib
import os
import threading
import weakref

from forebay import _core
from forebay._launcher import job_environment
from forebay._say import LOG, say
from forebay.loader._job_store import job_store
from forebay.loader._place import RankPlace

__all__ = ["NodeSharing"]

MEET_S = 300.0
"""Seconds in which all nodes have to begin their first epoch, to share their samples."""
END_S = 2.0
"""Longest wait for a thread that speaks to the job's store, when the loader is closed."""


class NodeSharing:
    """Finds the other nodes in the background, and has the agent share the samples of a loader with them.

    Nobody waits for it: until the nodes have met, each node reads for itself. It does nothing in ranks that are not the
    first of their node.

    Args:
        name: the loader's within the job.
        place: the place of this rank.

    Raises:
        ValueError: a setting is invalid.
    """

    def __init__(self, name: str, place: RankPlace) -> None:
        self._lock = threading.Lock()
        self._rank: weakref.ref[_core.LoaderRank] | None = None
        self._nodes: _core.LoaderNodes | None = None
        self._is_first = place.rank == 0
        self._threads: list[threading.Thread] = []
        self._has_met = False
        self._why_alone: str | None = None
        self._ending: weakref.finalize[..., NodeSharing] | None = None
        settings = _core.NodeSettings.read(job_environment())
        has_others = place.local_rank == 0 and place.world > place.local_ranks
        if settings.is_off or not has_others:
            if has_others:
                self._why_alone = "FOREBAY_PEERS=off"
            return
        try:
            self._nodes = _core.LoaderNodes.find(settings, name, place.job, place.rank, place.local_ranks)
        except OSError as error:
            self._say(str(error))
        if self._nodes is not None:
            # Also when the program ends.
            self._ending = weakref.finalize(self, _leave, self._nodes, self._threads, os.getpid())
            self._why_alone = "the nodes have not all met yet"

    def begin(self, rank: _core.LoaderRank) -> None:
        """Shares the samples of an agent that serves this rank from now on, once the nodes have met."""
        with self._lock:
            self._rank = weakref.ref(rank)
            self._tell_agent()
            if self._nodes is None:
                return
            if not self._threads:
                thread = threading.Thread(target=self._meet, args=(self._nodes,), name="forebay-nodes", daemon=True)
                self._threads.append(thread)
                thread.start()
            elif self._has_met:
                self._share(self._nodes)

    def end(self) -> None:
        """Ends the search for other nodes, and removes the values by which they have met."""
        if self._ending is not None:
            self._ending()

    def _meet(self, nodes: _core.LoaderNodes) -> None:
        try:
            store = self._store(nodes)
            address, count = nodes.join(store, MEET_S)
        except OSError as error:
            # A loader that was closed meanwhile misses nothing.
            if not nodes.is_cancelled:
                self._say(str(error))
            return
        LOG.info("samples are shared with %d other nodes, on %s", count - 1, address)
        with self._lock:
            self._has_met, self._why_alone = True, None
            self._share(nodes)
        nodes.leave()

    def _store(self, nodes: _core.LoaderNodes) -> object | None:
        """Returns a client of the job's store if the nodes are to meet there."""
        if nodes.store is None:
            return None
        host, port, holds_secret = nodes.store
        if holds_secret and self._is_first:
            say(
                f"FOREBAY_PEERS_SECRET=store puts the secret of the job's nodes into the job's store until all have read it: "
                f"whoever reaches {host}:{port} meanwhile can read the job's samples; a file that all nodes have avoids that"
            )
        return job_store(host, port, MEET_S, lambda: nodes.is_cancelled)

    def _share(self, nodes: _core.LoaderNodes) -> None:
        rank = self._rank() if self._rank is not None else None
        if rank is not None:
            # An agent that is gone is missed where samples are read.
            with contextlib.suppress(OSError):
                nodes.share(rank)

    def _say(self, why: str) -> None:
        say(f"samples are not shared with the other nodes: {why}", "fallback")
        with self._lock:
            self._why_alone = why
            self._tell_agent()

    def _tell_agent(self) -> None:
        """Has `forebay top` say why this node is alone, if it is."""
        rank = self._rank() if self._rank is not None else None
        if rank is not None and self._why_alone is not None:
            with contextlib.suppress(OSError):
                rank.alone(self._why_alone)


def _leave(nodes: _core.LoaderNodes, threads: list[threading.Thread], process: int) -> None:
    # A process that was forked off the rank ends, too.
    if os.getpid() != process:
        return
    nodes.cancel()
    if nodes.store is not None and threads and threads[0] is not threading.current_thread():
        # It must not be within torch when the interpreter ends.
        threads[0].join(END_S)
    nodes.leave()
