"""Samples of a batch that the loader agent was asked for, and the memory of its that something refers to."""

import itertools
import weakref
from typing import TYPE_CHECKING

from forebay import _core
from forebay.loader.source import Request

if TYPE_CHECKING:
    from forebay.loader._agent import AgentSource

__all__ = ["Direct", "Held", "Uses"]


class Uses:
    """The samples of a batch, requested of the agent: see `Request`."""

    __slots__ = (
        "_source",
        "direct",
        "extents",
        "finished",
        "held",
        "holds",
        "iteration",
        "rank",
        "released",
        "samples",
        "turns",
        "unasked",
    )

    def __init__(self, source: "AgentSource", samples: list[int], iteration: int, extents: list[int | None]) -> None:
        self._source = source
        self.samples = samples
        self.iteration = iteration
        self.turns: list[int | None] = [None] * len(samples)  # None until the agent was asked.
        self.rank: _core.LoaderRank | None = None  # By which it was asked.
        self.extents = extents  # By its numbers; None of those that it does not know, which the rank is to read itself.
        self.unasked = [place for place, extent in enumerate(extents) if extent is not None]
        self.held: set[Held] = set()
        self.holds = 0  # That there ever were,
        self.finished = itertools.count(1)  # and those that have ended: counted where nothing may be locked.
        self.direct: dict[int, Request] = {}  # What the rank reads itself, by place.
        self.released = False

    def at_hand(self, places: range) -> list[memoryview | None]:
        """See `Request.at_hand`."""
        return self._source._at_hand(self, places)

    def read(self, place: int) -> memoryview:
        """See `Request.read`."""
        return self._source._read(self, place)

    def release(self) -> None:
        """See `Request.release`."""
        self._source._release(self)


class Direct:
    """A batch that the rank reads itself: see `Request`."""

    __slots__ = ("_request", "_source")

    def __init__(self, source: "AgentSource", request: Request) -> None:
        self._source = source
        self._request = request

    def at_hand(self, places: range) -> list[memoryview | None]:
        """See `Request.at_hand`."""
        found = self._request.at_hand(places)
        self._source.direct_reads += sum(data is not None for data in found)
        return found

    def read(self, place: int) -> memoryview:
        """See `Request.read`."""
        self._source.direct_reads += 1
        return self._request.read(place)

    def release(self) -> None:
        """See `Request.release`."""
        self._request.release()


class Held:
    """Memory of the agent's that something refers to.

    Args:
        uses: a batch's.
        mark: the turn by which a worker process says that it is done with all of the batch; None where this process looks at it.
    """

    __slots__ = ("mark", "memory", "places", "uses")

    def __init__(self, uses: Uses, mark: int | None = None) -> None:
        self.uses = uses
        self.mark = mark
        # Those of the samples that lie there.
        self.places: list[int] = [] if mark is None else list(range(len(uses.samples)))
        self.memory: weakref.ref[object] | None = None  # It is over with this.
