"""The course of an epoch: what it reads, and how fast it went on. Plain functions; no framework."""

from __future__ import annotations

import os
from collections.abc import Sequence


def listed(root: str, first: int | None = None) -> list[str]:
    """Every file below a directory, by the order of their own names, whatever directory each lies in.

    Or the first so many.
    """
    found = sorted((name, os.path.join(place, name)) for place, _, names in os.walk(root) for name in names)  # noqa: PTH118
    return [path for _, path in found[:first]]


def rates(ends: Sequence[float], samples: Sequence[int]) -> list[float]:
    """Samples a second, in equal parts of about a second each.

    Args:
        ends: when each batch was done with, in seconds since the epoch began; rising.
        samples: how many each batch had. They count evenly over the time since the batch before was done with.
    """
    parts = max(1, round(ends[-1]))
    width = ends[-1] / parts
    done = [0.0] * parts
    begin = 0.0
    for end, count in zip(ends, samples, strict=True):
        for part in range(min(parts - 1, int(begin / width)), min(parts - 1, int(end / width)) + 1):
            within = min(end, (part + 1) * width) - max(begin, part * width)
            done[part] += count * max(0.0, within) / (end - begin)
        begin = end
    return [count / width for count in done]


def machine_cpu_s() -> float:
    """The processor time that all of this machine's processes have taken since it started."""
    with open("/proc/stat") as file:  # noqa: PTH123
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
