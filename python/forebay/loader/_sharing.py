"""The other nodes of a job, with which the agent of this node shares the samples of a loader."""

import contextlib
import os
import threading
import weakref
from pathlib import Path

from forebay import _core
from forebay._say import say
from forebay.loader._place import RankPlace

__all__ = ["NodeSharing", "is_shared"]

MEET_S = 300.0
"""Seconds in which all nodes have to begin their first epoch, to share their samples."""
CHOICES = ("auto", "off")
"""Values of FOREBAY_PEERS."""


def is_shared(place: RankPlace) -> bool:
    """Returns true if the nodes of a job are to share the samples of its loaders.

    Raises:
        ValueError: FOREBAY_PEERS is invalid.
    """
    choice = os.environ.get("FOREBAY_PEERS") or "auto"
    if choice not in CHOICES:
        raise ValueError(f"FOREBAY_PEERS={choice}: give one of {', '.join(CHOICES)}")
    return choice == "auto" and place.world > place.local_ranks


def directory() -> str | None:
    """Returns the directory in which nodes find each other; None if there is no home directory and none was given."""
    if given := os.environ.get("FOREBAY_PEERS_DIR"):
        return given
    state = os.environ.get("XDG_STATE_HOME", "")
    with contextlib.suppress(RuntimeError):
        kept = Path(state) if state.startswith("/") else Path.home() / ".local/state"
        # Unlike Path.exists, this holds a directory that may not be looked into for a missing one.
        if next(part for part in (kept, *kept.parents) if os.path.exists(part)) != Path("/"):  # noqa: PTH110
            return str(kept / "forebay/peers")
    return None


class NodeSharing:
    """Finds the other nodes in the background, and has the agent share the samples of a loader with them.

    Nobody waits for it: until the nodes have met, each node reads for itself. It does nothing in ranks that are not the
    first of their node.

    Args:
        name: the loader's within the job.
        place: the place of this rank.
    """

    def __init__(self, name: str, place: RankPlace) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._rank: weakref.ref[_core.LoaderRank] | None = None
        self._nodes: _core.LoaderNodes | None = None
        self._thread: threading.Thread | None = None
        self._directory: str | None = None
        self._has_met = False
        self._ending: weakref.finalize[..., NodeSharing] | None = None
        if place.local_rank != 0 or not is_shared(place):
            return
        self._directory = directory()
        try:
            self._nodes = _core.LoaderNodes.find(dict(os.environ), name)
        except ValueError as error:
            self._say(str(error))
        if self._nodes is not None and self._directory is None:
            self._nodes = None
            self._say("there is no home directory; set FOREBAY_PEERS_DIR to a directory that all nodes see")
        if self._nodes is not None and self._directory is not None:
            # Also when the program ends.
            self._ending = weakref.finalize(self, _leave, self._nodes, self._directory, os.getpid())

    def begin(self, rank: _core.LoaderRank) -> None:
        """Shares the samples of an agent that serves this rank from now on, once the nodes have met."""
        if self._nodes is None:
            return
        with self._lock:
            self._rank = weakref.ref(rank)
            if self._thread is None:
                self._thread = threading.Thread(target=self._meet, args=(self._nodes,), name="forebay-nodes", daemon=True)
                self._thread.start()
            elif self._has_met:
                self._share(self._nodes)

    def end(self) -> None:
        """Ends the search for other nodes, and removes what they have met by."""
        if self._ending is not None:
            self._ending()

    def _meet(self, nodes: _core.LoaderNodes) -> None:
        assert self._directory is not None
        try:
            nodes.join(self._directory, self._place.local_ranks, os.environ.get("FOREBAY_PEERS_INTERFACE") or None, MEET_S)
        except OSError as error:
            # A loader that was closed meanwhile misses nothing.
            if self._ending is not None and self._ending.alive:
                self._say(str(error))
            return
        with self._lock:
            self._has_met = True
            self._share(nodes)

    def _share(self, nodes: _core.LoaderNodes) -> None:
        rank = self._rank() if self._rank is not None else None
        if rank is not None:
            # An agent that is gone is missed where samples are read.
            with contextlib.suppress(OSError):
                nodes.share(rank)

    @staticmethod
    def _say(why: str) -> None:
        say(f"samples are not shared with the other nodes: {why}", "fallback")


def _leave(nodes: _core.LoaderNodes, directory: str, process: int) -> None:
    # A process that was forked off the rank ends, too.
    if os.getpid() == process:
        nodes.cancel()
        nodes.leave(directory)
