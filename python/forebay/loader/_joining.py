"""Registers a rank with the loader agent of its node, and waits until all ranks of the node have registered."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from forebay import _core
from forebay._say import LOG, say
from forebay.loader._errors import LoaderError
from forebay.loader._nodes import own_processors
from forebay.loader._paths import is_object, store_variables
from forebay.loader._place import RankPlace
from forebay.loader._settings import AgentSettings, Kept, kept
from forebay.loader.dataset import Extent
from forebay.loader.rows import FixedRows

__all__ = ["WAIT_S", "AgentJoining", "encoded"]

WAIT_S = 0.5
"""Seconds after which a wait is interrupted, to see whether the source was closed or the agent is gone."""
GATHER_S = 120.0
"""Seconds in which the other ranks of the node have to begin their first epoch."""
SILENT_S = 5.0
"""Seconds of waiting for other ranks after which a line says so."""
REJOIN_S = 5.0
"""Seconds to wait for the other ranks after the agent was lost, while a rank can read by itself."""


@dataclass
class AgentJoining:
    """The registration of a rank of a loader with the agent.

    Attributes:
        name: name of the loader within the job: the same in all of its ranks, and no other loader's.
        samples: samples of the dataset.
        settings: settings that have to be equal in all ranks.
        place: the place of this rank.
        cache: the user's `cache=`: see `kept`.
        rows: the dataset, if its samples are rows.
        table: the extents of the dataset's samples, as the agent is told.
    """

    name: str
    samples: int
    settings: AgentSettings
    place: RankPlace
    cache: tuple[str, ...]
    rows: FixedRows | None = None
    table: _core.LoaderTable = field(default_factory=_core.LoaderTable)
    # Of a rank that joins again, and waits for the others.
    _registering: _core.LoaderRegistering | None = None

    def join(self, locate: Callable[[int], Extent]) -> tuple[_core.LoaderRank | None, str]:
        """Joins the agent, which is started if none runs. Returns the rank, or None and the reason.

        Raises `LoaderError` in all ranks of the node if they disagree, or the agent refuses their settings.
        """
        found = kept(self.cache)
        if found.directory is None:
            return None, found.why or "it could not be started"
        self._fill(locate)
        if self.table.extents == 0:
            return None, "no sample can be located"
        try:
            try:
                return self._gathered(self._registered(found))
            except _core.AgentRefusedError:
                raise
            except ConnectionError:
                # An agent that nobody needs ends, and this one may just have done so: then another is started.
                if kept(self.cache).directory is None:
                    raise
            return self._gathered(self._registered(found))
        except _core.AgentRefusedError as error:
            LOG.warning("refused: %s", error)
            raise LoaderError(str(error)) from None
        except ConnectionError as error:
            return None, str(error)

    def batch(self, rank: _core.LoaderRank, samples: list[int], locate: Callable[[int], Extent]) -> _core.LoaderBatch:
        """Makes a batch of samples. A sample that can't be located, or is not a row, fails when it is read."""
        if self.rows is not None:
            return rank.row_batch(samples, len(self.rows))
        return rank.batch(self.table.find_all(samples, locate, encoded))

    def rejoin(self) -> _core.LoaderRank | None:
        """Joins another agent after the first one is gone. Returns None if that fails for now: call it again later.

        The other ranks may notice only at their next epoch that the agent is gone, and wait in this epoch for what this
        rank computes. So this rank does not wait long for them; its registration with the new agent stays.
        """
        until = time.monotonic()
        try:
            if self._registering is None:
                found = kept(self.cache)
                if found.directory is None:
                    return None
                self._registering = self._registered(found)
                until += REJOIN_S
            while (rank := self._registering.wait(WAIT_S)) is None and time.monotonic() < until:
                pass
        except (OSError, ValueError):
            # Also where a disk is not there any more: training goes on without.
            rank = self._registering = None
        if rank is not None:
            self._registering = None
        return rank

    def _fill(self, locate: Callable[[int], Extent]) -> None:
        if self.rows is not None:
            path, offset, row_bytes, mark = self.rows.locate(0)
            self.table.add_rows(encoded(path), offset, row_bytes or 0, len(self.rows), mark)
            return
        for sample in range(self.samples):
            try:
                extent = locate(sample)
                self.table.add(encoded(extent.path), extent.offset, extent.length, extent.mark)
            except Exception:  # noqa: S112  (who reads it is told)
                continue

    def _registered(self, found: Kept) -> _core.LoaderRegistering:
        assert found.directory is not None
        descriptor = self.table.seal() if self.place.local_rank == 0 else None
        # A running agent may be of another job, with another environment.
        variables = store_variables() if descriptor is not None and self.table.has_objects else None
        try:
            return _core.LoaderRegistering(found.directory, self._described(found), descriptor, variables)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _gathered(self, registering: _core.LoaderRegistering) -> tuple[_core.LoaderRank | None, str]:
        begun, was_told = time.monotonic(), False
        while (rank := registering.wait(WAIT_S)) is None:
            waited = time.monotonic() - begun
            if waited >= SILENT_S and not was_told:
                was_told = True
                say(self._awaited())
            if waited >= GATHER_S:
                return None, (
                    f"not all {self.place.local_ranks} ranks of this node have begun an epoch of this loader, or a disk of cache= was not "
                    f"opened, within {GATHER_S:.0f} s; all have to make their loaders in the same order"
                )
        return rank, ""

    def _awaited(self) -> str:
        others = self.place.local_ranks - 1
        ranks = "other rank" if others == 1 else f"other {others} ranks"
        gathering = f"the {ranks} of this node to begin an epoch of this loader, or for " if others else ""
        return f"waiting for {gathering}a disk of cache=; after {GATHER_S:.0f} s this rank reads by itself"

    def _described(self, found: Kept) -> str:
        place = self.place
        settings: dict[str, Any] = asdict(self.settings)
        sampler_drop_last, drop_last = settings.pop("drop_last")
        deal = {
            "samples": settings.pop("uses"),
            "batch": settings.pop("batch"),
            "world": place.world,
            "sampler_drop_last": sampler_drop_last,
            "drop_last": drop_last,
        }
        room = {
            "window_bytes": settings.pop("window_bytes"),
            "memory_bytes": found.memory_bytes,
            "disks": [{"dir": directory, "bytes": size} for directory, size in found.disks],
        }
        profile = [{"bytes": size, "threads": threads, "seconds": seconds} for size, threads, seconds in settings.pop("profile")]
        threads = {"tau": settings.pop("thread_tau"), "steps": settings.pop("thread_steps"), "profile": profile}
        alike = settings | {
            "dataset": self.table.digest,
            "ahead": self.settings.ahead,
            "extents": self.table.extents,
            "deal": deal,
            "room": room,
            "threads": threads,
        }
        return json.dumps(
            {
                "loader": f"{place.name}/{self.name}",
                "rank": place.rank,
                "local_rank": place.local_rank,
                "local_ranks": place.local_ranks,
                "processors": own_processors(),
                "alike": alike,
            }
        )


def encoded(path: str) -> bytes:
    """Returns a path as the agent, which runs in another directory, can use it."""
    path = os.fspath(path)
    is_absolute = path.startswith("/") or is_object(path)
    return _bytes_of(path if is_absolute else f"{Path.cwd()}/{path}")


@lru_cache(maxsize=16)
def _bytes_of(path: str) -> bytes:
    """Returns a path as bytes. It is cached, since samples that follow each other often lie in one file."""
    return os.fsencode(path)
