"""Processes of a job's ranks on this node, and what they say."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

TOGETHER_S = 300
"""Seconds for all ranks to come to the end of a step, or to begin."""


def of_ranks(count: int, rank: Callable[[int, Barrier, Queue[Any]], None]) -> list[Any]:
    """Runs `rank` in a process for each of `count` ranks, and returns all that they put into the queue.

    Ends this program with the code of the first rank that fails.
    """
    context = multiprocessing.get_context("fork")
    together = context.Barrier(count)
    said: Queue[Any] = context.Queue()
    ranks = [context.Process(target=_as_rank, args=(rank, number, count, together, said)) for number in range(count)]
    for process in ranks:
        process.start()
    found: list[Any] = []
    while any(process.is_alive() for process in ranks) or not said.empty():
        while not said.empty():
            found.append(said.get())
        if any(process.exitcode for process in ranks):
            break
        time.sleep(0.05)
    for process in ranks:
        if any(each.exitcode for each in ranks):
            process.terminate()
        process.join()
    if failed := next((process.exitcode for process in ranks if process.exitcode), 0):
        sys.exit(abs(failed))
    return found


def _as_rank(rank: Callable[[int, Barrier, Queue[Any]], None], number: int, count: int, together: Barrier, said: Queue[Any]) -> None:
    """Calls `rank` with the variables by which torchrun tells a rank its place."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "bench"}
    os.environ |= {name: str(value) for name, value in place.items()}
    rank(number, together, said)
