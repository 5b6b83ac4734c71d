"""Events of a session's forks, for the record of the `forebay run` that it is part of.

A JSON line each, in a file beside the run's page:

    {"what": "taken", "job": "trunk", "rank": 0, "ranks": 2, "epoch": 3, "step": 1200, "bytes": 102400, "copied": 4096,
     "aside": 8192, "at": 1795432621.25, "stall_s": 0.002, "window_s": 0.3, "closing_s": 0.001, "before_s": 0.31,
     "after_s": 0.33}
    {"what": "became", "job": "trunk.1", "parent": "trunk", "rank": 0, "ranks": 2, "epoch": 3, "step": 1200, "bytes":
    102400,
     "digest": "9f...", "changes": {"lr": 0.01}, "parent_ranks": 2, "verified": "digest", "asked_at": 1795432620.5,
     "state_at": 1795432621.25, "loaded_at": 1795432621.5, "exists_at": 1795432621.5}

Times of day are seconds since 1970. `crates/cli/src/run/forks.rs` reads them.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from forebay import _run_events
from forebay.clone._source import Fork

__all__ = ["CloneTimes", "ForkEvents", "tell"]


@dataclass(frozen=True)
class CloneTimes:
    """Times at which a rank of a clone reached each stage, as times of day in seconds.

    Attributes:
        asked_at: beginning of the wait for the parent's next point.
        state_at: arrival of the state.
        loaded_at: end of loading, with every entry checked.
        exists_at: end of the clone's creation: all ranks had loaded, and passed any shadow verification.
        bytes: bytes of the state.
    """

    asked_at: float
    state_at: float
    loaded_at: float
    exists_at: float
    bytes: int

    def existing(self) -> "CloneTimes":
        """Returns the times of a clone that exists only now."""
        return replace(self, exists_at=time.time())


def tell(what: str, facts: Mapping[str, object]) -> None:
    """Writes one event as a line, in one piece; does nothing unless the process is part of a run that records events.

    Args:
        what: `taken` or `became`.
        facts: the other fields.
    """
    _run_events.record("forks", {"what": what, **facts})


@dataclass
class _Taken:
    """A state that was taken; complete once the next step has ended.

    Attributes:
        job: name of the job.
        rank: number of the rank.
        ranks: number of the job's ranks.
        epoch: epoch as the job counts.
        step: step as the job counts.
        bytes: bytes of the state.
        copied: bytes that were copied at the point.
        at: time of day of the point.
        stall_s: seconds for which training stood still at the point.
        before_s: seconds of the step before, if known.
        aside: bytes that were copied before the next update, since a clone had not read them.
        window_s: seconds of the read lease; None if there was none.
        closing_s: seconds for which training stood still at the end of the lease.
        after_s: seconds of the next step without `closing_s`, if known.
    """

    job: str
    rank: int
    ranks: int
    epoch: int
    step: int
    bytes: int
    copied: int
    at: float
    stall_s: float
    before_s: float | None
    aside: int = 0
    window_s: float | None = None
    closing_s: float = 0.0
    after_s: float | None = None


class ForkEvents:
    """Records each fork of a rank, with the durations of the steps before and after it."""

    def __init__(self, job: str, rank: int, ranks: int) -> None:
        self._whose = (job, rank, ranks)
        self._is_asked = _run_events.event_log("forks") is not None
        self._ended: float | None = None
        self._taken: _Taken | None = None

    def passed(self, epoch: int, fork: Fork | None) -> None:
        """Notes the end of a step boundary, with the fork there, if there was one."""
        if not self._is_asked:
            return
        now = time.perf_counter()
        stall_s = fork.stall_s if fork else 0.0
        step_s = None if self._ended is None else now - stall_s - self._ended
        if self._taken is not None and step_s is not None:
            step_s -= self._taken.closing_s
            self._taken.after_s = step_s
            self.close()
        if fork is not None:
            at = time.time() - stall_s
            self._taken = _Taken(*self._whose, epoch, fork.step, fork.length, fork.copied, at, stall_s, step_s)
        self._ended = now

    def closed(self, stall_s: float, aside: int) -> None:
        """Notes the end of a read lease, with the seconds of its stall and the bytes copied."""
        if self._taken is None or self._ended is None:
            return
        self._taken.window_s = time.perf_counter() - stall_s - self._ended
        self._taken.closing_s, self._taken.aside = stall_s, aside

    def close(self) -> None:
        """Writes the pending event."""
        taken, self._taken = self._taken, None
        if taken is not None:
            tell("taken", asdict(taken))
