"""A client of torch's store of keys and values for a job."""

import time
from collections.abc import Callable
from datetime import timedelta

__all__ = ["job_store"]

CONNECT_S = 10.0
"""Time for one attempt to reach the store."""
ANSWER_S = 10.0
"""Longest wait for an answer of the store."""
PAUSE_S = 0.5
"""Pause after an attempt that failed."""


def job_store(host: str, port: int, wait_s: float, is_unwanted: Callable[[], bool]) -> object:
    """Blocks until the job's store can be reached, and returns a client of it. It never makes a store.

    Raises:
        OSError: torch is missing, or the store did not answer within `wait_s`, or before the store became unwanted.
    """
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError as error:
        raise OSError(f"nodes can't meet in the job's store: {error}; set FOREBAY_PEERS_DIR to a directory that all nodes see") from error
    deadline = time.monotonic() + wait_s
    why: Exception | None = None
    while not is_unwanted() and time.monotonic() < deadline:
        # The launcher makes the store, or the first rank does, later.
        try:
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=CONNECT_S), wait_for_workers=False)
        except RuntimeError as error:
            why = error
            time.sleep(PAUSE_S)
            continue
        store.set_timeout(timedelta(seconds=ANSWER_S))
        return store
    reason = str(why).partition("\n")[0] if why is not None else "the loader was closed"
    raise OSError(f"the job's store at {host}:{port} can't be reached: {reason}; set FOREBAY_PEERS_DIR to a directory that all nodes see")
