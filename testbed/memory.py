"""Control groups that limit the memory of a program, the page cache of the files that it reads included."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.testbed import TestbedError

_EMPTY_S = 120.0
"""Seconds in which the processes of a group must have ended."""


def memory_groups() -> tuple[Path, str] | None:
    """Returns where control groups of memory can be made, and the file with their limit: cgroup v1, else v2."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (first / "memory.limit_in_bytes").exists():
        return (first, "memory.limit_in_bytes") if os.access(first, os.W_OK) else None
    with contextlib.suppress(OSError):
        (second / "cgroup.subtree_control").write_text("+memory")
        return second, "memory.max"
    return None


@contextlib.contextmanager
def memory_limit(name: str, limit_bytes: int) -> Iterator[Path]:
    """A control group of this name, until the block ends; its processes must have ended by then.

    Raises:
        TestbedError: there are no control groups of memory here, or processes stay in this one.
    """
    groups = memory_groups()
    if groups is None:
        raise TestbedError("a limit of memory needs root, and control groups of memory")
    group = groups[0] / name
    group.mkdir()
    try:
        # What does not fit is not to be found elsewhere.
        for swap in ("memory.swappiness", "memory.swap.max"):
            with contextlib.suppress(OSError):
                (group / swap).write_text("0")
        (group / groups[1]).write_text(str(limit_bytes))
        yield group
    finally:
        # What ended a moment ago is in it a little longer.
        deadline = time.monotonic() + _EMPTY_S
        while not _is_removed(group):
            if time.monotonic() > deadline:
                raise TestbedError(f"{group}: processes are still in this control group")
            time.sleep(0.01)


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def within(group: Path) -> list[str]:
    """Returns the words to put before a command so that it runs in the control group."""
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
