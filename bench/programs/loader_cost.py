"""CPU and memory that a program and all its children take."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Processor time so far, of this process, of what it has started, and of what of that has ended."""
    children: dict[int, list[int]] = {}
    taken: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                # Its name, in brackets, may have anything in it.
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(entry.name)
            children.setdefault(int(fields[1]), []).append(pid)
            # Its own, and that of its children that were waited for.
            taken[pid] = sum(map(int, fields[11:15]))
    mine = [os.getpid()]
    for pid in mine:
        mine.extend(children.get(pid, []))
    return sum(taken[pid] for pid in mine) / TICKS


def resident_mib() -> float:
    """Resident memory of this process; memory that it shares counts in part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
