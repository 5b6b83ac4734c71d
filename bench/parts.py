"""Parts of the tree that only some benchmarks measure.

What a benchmark found stays valid while the parts that it measures stay what they are. A path that no part names
belongs to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MEASURED = ("crates", "python", "bench", "papers", "testbed", "Cargo.toml", "Cargo.lock")
# Prints or draws what was measured.
PAGES = ("bench/*_page.py", "papers/*_page.py")


class Part(Enum):
    """A part that other benchmarks do not measure, as paths from the root; `*` stands for any characters."""

    TIERING = (
        "crates/agent/src/tiering",
        "crates/audit",
        "crates/preload",
        "python/forebay/_first_step.py",
        "bench/cold.py",
        "bench/imports.py",
        "bench/listings.py",
        "bench/micro.py",
        "bench/tiering.py",
        "bench/programs/open_cost.c",
        "bench/programs/read_cold.py",
        "bench/programs/read_part.py",
        "bench/programs/read_shards.py",
        "bench/programs/start.c",
        "papers/monarch*",
    )
    LOADER = (
        "crates/agent/src/samples",
        "crates/images",
        "crates/objects",
        "python/forebay/dali.py",
        "python/forebay/loader",
        "bench/loader*",
        "bench/threads.py",
        "bench/programs/decode_threads.py",
        "bench/programs/loader*",
        "bench/programs/lobster*",
        "bench/programs/thread_ranks.py",
        "papers/lobster*",
    )
    FORKS = (
        "crates/agent/src/forks",
        "crates/cli/src/clone*",
        "crates/state",
        "crates/tensorflow",
        "python/forebay/clone",
        "python/forebay/keras",
        "bench/clone*",
        "bench/programs/clone*",
        "bench/programs/host_*",
        "bench/programs/keras_early.py",
        "papers/deepclone*",
    )
    PEERS = ("crates/peers", "bench/nodes*", "bench/programs/rank*", "bench/programs/step_ranks.py", "bench/transfers.py")
    SIMULATOR = ("crates/sim", "bench/plan.py", "bench/simulator.py")


def paths(parts: Iterable[Part]) -> tuple[str, ...]:
    """The paths that a benchmark of `parts` measures, as pathspecs of git."""
    measured = set(parts)
    others = (path for part in Part if part not in measured for path in part.value)
    return (*MEASURED, *(f":(exclude){path}" for path in (*PAGES, *others)))
