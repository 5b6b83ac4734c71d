"""Costs of the preload library to a program.

An open or a stat that a copy answers, one that is none of our business, and a process's start.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.report import BenchReport, What
from bench.session import PROGRAMS, ProgramError, environment, run_once, tiered
from bench.whole import folder_bytes
from bench.world import TierDirectory, TieringBench

SCENARIO = "micro: opens and starts"
HIT_US_MAX = 1.5
RELATIVE_US_MAX = HIT_US_MAX + 0.6
STAT_HIT_US_MAX = 0.5
FOREIGN_US_MAX = 0.1
START_INSTRUCTIONS_MAX = 300_000
FOREIGN = "/etc/os-release"


def micro(world: TieringBench, report: BenchReport) -> None:
    """Opens and stats by CPU time, starts by instructions."""
    open_cost, start = compiled(world.place, "open_cost"), compiled(world.place, "start")
    directory = sorted(path for path in world.files.iterdir() if path.is_dir())[0]
    with world.tier() as tier:
        opens(world, tier, [str(open_cost), str(directory), str(tier.dir)], report)
        starts(world, tier, start, sorted(directory.iterdir())[0], report)


def compiled(place: Path, name: str) -> Path:
    """Compiles a C program of ours into `place`/bin, which exists; returns its path."""
    binary = place / "bin" / name
    subprocess.run(["cc", "-O2", "-Wall", "-o", binary, PROGRAMS / f"{name}.c", "-ldl"], check=True)
    return binary


def opens(world: TieringBench, tier: TierDirectory, words: Sequence[str], report: BenchReport) -> None:
    """Interleaved rounds of one process; each round gives one difference."""
    quota = 2 * folder_bytes(world.local_files)
    rounds, _ = run_once(world, tiered(world, tier, quota, "immutable", [*words, FOREIGN, str(world.size.micro_rounds)]), tier)
    report.note_load()

    def beyond(kind: str, baseline: str) -> list[float]:
        return [(one[kind] - one[baseline]) / 1000 for one in rounds]

    copy, plain = "opening the copy by its own name, without the library", "the same open without the library"
    report.time(What(SCENARIO, "an open that hits, absolute path", "us of CPU more", HIT_US_MAX, copy), beyond("hit", "copy"))
    report.time(What(SCENARIO, "an open that hits, relative path", "us of CPU more", RELATIVE_US_MAX, copy), beyond("relative", "copy"))
    report.time(What(SCENARIO, "a foreign open", "us of CPU more", FOREIGN_US_MAX, plain), beyond("foreign", "plain"))
    copy, plain = "asking what the copy is by its own name, without the library", "the same stat without the library"
    what = What(SCENARIO, "a stat that a copy answers, absolute path", "us of CPU more", STAT_HIT_US_MAX, copy)
    report.time(what, beyond("stat_hit", "stat_copy"))
    report.time(What(SCENARIO, "a foreign stat", "us of CPU more", FOREIGN_US_MAX, plain), beyond("stat_foreign", "stat_plain"))
    report.time(What(SCENARIO, "opening and closing the copy", "us of CPU"), [one["copy"] / 1000 for one in rounds])
    report.time(What(SCENARIO, "asking what the copy is", "us of CPU"), [one["stat_copy"] / 1000 for one in rounds])


def starts(world: TieringBench, tier: TierDirectory, start: Path, cached: Path, report: BenchReport) -> None:
    """Instructions that the library adds to a process which does nothing, or makes one open."""
    quota = 2 * folder_bytes(world.local_files)
    cases = {"does nothing": [], "makes one foreign open": [FOREIGN], "makes one open that hits": [str(cached)]}
    for name, arguments in cases.items():
        words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(start), *arguments]
        more = [
            float(instructions(tiered(world, tier, quota, "immutable", words), tier) - instructions(words, None))
            for _ in range(world.size.runs)
        ]
        metric = f"start of a process that {name}"
        report.count(What(SCENARIO, metric, "instructions more", START_INSTRUCTIONS_MAX, "without the library"), more)


def instructions(words: Sequence[str], tier: TierDirectory | None) -> int:
    """Returns the instructions that callgrind counts."""
    ended = subprocess.run(words, env=environment(tier), capture_output=True, text=True, timeout=120, check=False)
    collected = re.search(r"Collected\s*:\s*(\d+)", ended.stderr)
    if ended.returncode != 0 or not collected:
        raise ProgramError(f"valgrind, exit code {ended.returncode}: {ended.stderr.strip()}")
    return int(collected[1])
