"""NUMA nodes: a thread that stays on one has the memory that it wrote nearby."""

import contextlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from forebay._launcher import local_rank_and_ranks

__all__ = ["homes", "own_processors", "stay"]

NODES = Path("/sys/devices/system/node")


def stay(number: int) -> None:
    """Binds the calling thread, the `number`th of its kind, to one of this rank's NUMA nodes if it has several."""
    if near := _homes():
        # Processors may have been taken away since.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, near[number % len(near)])


def own_processors() -> list[int]:
    """Returns the processors of the NUMA node that this rank stays on; empty if it has several or there is one only."""
    near = _homes()
    return sorted(near[0]) if len(near) == 1 else []


def homes(environment: Mapping[str, str] = os.environ, root: Path = NODES) -> list[set[int]]:
    """Returns the processors of each of this rank's NUMA nodes; empty if the rank may use one node only.

    Ranks that the launcher did not bind share the nodes in order, as machines have their GPUs: of eight ranks on two
    nodes the first four get the first.
    """
    allowed = os.sched_getaffinity(0)
    nodes = []
    for path in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        # A node may have memory only.
        with contextlib.suppress(OSError, ValueError):
            if near := _listed((path / "cpulist").read_text()) & allowed:
                nodes.append(near)
    if len(nodes) < 2:
        return []
    if (local := local_rank_and_ranks(environment)) is None:
        return nodes
    rank, ranks = local
    first, end = (number * len(nodes) // ranks for number in (rank, rank + 1))
    return nodes[first : max(end, first + 1)]


def _listed(text: str) -> set[int]:
    """Returns the processors of a list as the kernel writes it: `0-3,8`."""
    runs = [run.partition("-") for run in text.strip().split(",") if run]
    return {number for first, _, last in runs for number in range(int(first), int(last or first) + 1)}


@cache
def _homes() -> list[set[int]]:
    return homes()
