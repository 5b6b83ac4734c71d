"""Tells this process's `forebay run` of its first batch and its first step boundary."""

import time
from pathlib import Path

from forebay import _core
from forebay._run_events import run_page

__all__ = ["tell_first_batch", "tell_first_step"]

# A process that is forked later is not another rank: it has this, too.
_told: set[str] = set()


def tell_first_batch(asked: float) -> None:
    """Tells the run once that this process has its first batch.

    Args:
        asked: time of the request for it, as `time.perf_counter` has it.
    """
    if page := _first("batch"):
        _core.tell_first_batch(page, max(round((time.perf_counter() - asked) * 1e9), 0))


def tell_first_step() -> None:
    """Tells the run once that this process is at its first step boundary."""
    if page := _first("step"):
        _core.tell_first_step(page)


def _first(what: str) -> Path | None:
    if what in _told:
        return None
    _told.add(what)
    return run_page()
