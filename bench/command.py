"""Shared parts of all benchmark commands.

They choose the scenarios, measure one after the other, and clear up.

Each scenario's figures are written as soon as they are known. Once half an hour is over no further scenario is begun. A
later call measures what is missing, or what is named, and keeps the rest, as long as what is measured did not change
(`bench.parts`). Exit code 0: every bar is known to hold. 1: one is missed, undecided, or not measured. 2: an unknown
option.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from bench.parts import Part
from bench.report import LOAD_MAX, BenchReport, commit
from testbed.testbed import have_fuse

HIDDEN = "BENCH_IS_HIDDEN"
IN_MEMORY = Path("/dev/shm")  # noqa: S108
World = TypeVar("World")
# A call ends within about half an hour; the next one goes on.
MINUTES = 30.0


def parser(description: str | None, scenarios: Iterable[str]) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parsing = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsing.add_argument("--only", metavar="A,B", help=f"scenarios to measure, of {', '.join(scenarios)} (default: what is missing)")
    parsing.add_argument("--quick", action="store_true", help="few runs of little data, to see that all works: proves nothing, exits 1")
    told = "begin no scenario after N minutes; the next call goes on (default: %(default)g)"
    parsing.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help=told)
    return parsing


def wanted(parsing: argparse.ArgumentParser, only: str | None, report: BenchReport) -> list[str]:
    """The scenarios to measure: those named, else those of which `report` finds nothing from earlier calls."""
    report.load()
    names = only.split(",") if only else report.missing()
    if unknown := [name for name in names if name not in report.scenarios]:
        parsing.error(f"there is no scenario {', '.join(unknown)}")
    return names


@dataclass(frozen=True)
class RootBench:
    """A benchmark that needs root, and a directory for its data.

    `target` is its Make target, `report` the name of its figures. `lacks` returns what is missing on this machine.
    `parts` are those whose changes make its figures void.
    """

    target: str
    report: str
    description: str | None
    parts: tuple[Part, ...]
    place: Path = Path("/var/tmp")  # noqa: S108
    place_help: str = "local directory for the data"
    lacks: Callable[[], str | None] = have_fuse
    load_max: float = LOAD_MAX


def run_as_root(
    bench: RootBench,
    scenarios: Mapping[str, Callable[[World, BenchReport], None]],
    world: Callable[[bool, Path], AbstractContextManager[World]],
) -> int:
    """Reads the options, measures in `world(quick, place)`, and returns the exit code.

    It is 1 if this machine lacks something.
    """
    parsing = parser(bench.description, scenarios)
    parsing.add_argument("--place", type=Path, default=bench.place, help=f"{bench.place_help} (default: %(default)s)")
    args = parsing.parse_args()
    report = BenchReport(bench.report, tuple(scenarios), quick=args.quick, commit=commit(bench.parts), load_max=bench.load_max)
    names = wanted(parsing, args.only, report)
    if reason := "root is needed" if os.geteuid() else bench.lacks():
        print(f"{bench.target}: {reason}", file=sys.stderr)
        return 1
    if args.quick:
        print("quick: to see that all works; it proves nothing")
    return run(report, names, scenarios, world(args.quick, args.place), args.minutes)


def hide(module: str) -> None:
    """Goes on in a mount namespace of its own, in which no other program reads the slow file system."""
    if os.environ.pop(HIDDEN, None) is None:
        own = [sys.executable, "-m", module, *sys.argv[1:]]
        os.environ[HIDDEN] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *own])  # noqa: S606


def run(
    report: BenchReport,
    names: Iterable[str],
    scenarios: Mapping[str, Callable[[World, BenchReport], None]],
    world: AbstractContextManager[World],
    minutes: float = MINUTES,
) -> int:
    """Measures in `world`, which is only made if there is something to measure; prints the table; the exit code.

    No scenario is begun after `minutes`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    todo = list(names)
    begun = time.monotonic()
    try:
        if todo:
            with world as everything:
                print(f"ready after {time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
                for place, name in enumerate(todo):
                    if time.monotonic() - begun > minutes * 60:
                        print(f"{minutes:g} minutes are over. Left for the next call: {', '.join(todo[place:])}", flush=True)
                        break
                    measure(name, scenarios[name], everything, report)
    except KeyboardInterrupt:
        print("\ninterrupted; what was made is removed, and finished scenarios are kept")
        return 130
    report.table()
    return report.verdict()


def measure(name: str, scenario: Callable[[World, BenchReport], None], world: World, report: BenchReport) -> None:
    """One scenario. That it fails must not lose an hour of others: it then counts as not measured."""
    begun = time.monotonic()
    report.begin(name)
    try:
        scenario(world, report)
    except Exception:
        report.void(name)
        print(f"{name} failed after {time.monotonic() - begun:.0f} s:", flush=True)
        traceback.print_exc()
        return
    report.save()
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Once: clearing up takes seconds, and a second Ctrl-C would leave a mount behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
