"""Measures tiering against its bars: `make bench-tiering`, or some scenarios with --only. Needs root.

Each scenario's figures are written as soon as they are known; a later call for the same commit measures what is missing, or what is
named, and keeps the rest. Exit code 0: every bar is known to hold. 1: one is missed, undecided, or not measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from bench.catalogue import catalogue
from bench.half import half
from bench.micro import micro
from bench.part import part
from bench.report import Report
from bench.whole import files, shards
from bench.workers import workers
from bench.world import FULL, QUICK, World, world
from testbed.testbed import have_gluster

HIDDEN = "BENCH_TIERING_IS_HIDDEN"
SCENARIOS: dict[str, Callable[[World, Report], None]] = {
    "files": files,
    "shards": shards,
    "half": half,
    "part": part,
    "workers": workers,
    "micro": micro,
    "catalogue": catalogue,
}


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="A,B", help=f"scenarios to measure, of {', '.join(SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="few runs of little data, to see that all works: proves nothing, exits 1")
    parser.add_argument("--pairs", type=int, metavar="N", help=f"pairs of each timed figure (default: {FULL.pairs})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"what each half of a pair takes at least (default: {FULL.seconds:.0f})")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for data and tiers (default: %(default)s)")  # noqa: S108
    parser.add_argument("--target", type=Path, help="measure the build in this Cargo target directory instead of the installed package")
    args = parser.parse_args()
    if reason := have_gluster():
        print(f"bench-tiering: {reason}", file=sys.stderr)
        return 1
    hide()
    report = Report(quick=args.quick)
    report.load()
    done = {row.scenario.split(":")[0] for row in report.rows}
    wanted = args.only.split(",") if args.only else [name for name in SCENARIOS if name not in done]
    if unknown := [name for name in wanted if name not in SCENARIOS]:
        parser.error(f"there is no scenario {', '.join(unknown)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        if wanted:
            measure(wanted, report, args)
    except KeyboardInterrupt:
        print("\ninterrupted; what was made is removed, and finished scenarios are kept", file=sys.stderr)
        return 130
    report.table()
    return report.verdict(list(SCENARIOS))


def hide() -> None:
    """Goes on in a mount namespace of its own, so that nobody else's program finds the slow file system, reads there and is counted."""
    if os.environ.pop(HIDDEN, None) is None:
        own = [sys.executable, "-m", "bench.tiering", *sys.argv[1:]]
        os.environ[HIDDEN] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *own])  # noqa: S606


def measure(wanted: list[str], report: Report, args: argparse.Namespace) -> None:
    """Makes the world, and measures in it."""
    begun = time.monotonic()
    size = QUICK if args.quick else FULL
    if args.pairs:
        size = replace(size, pairs=args.pairs)
    if args.seconds:
        size = replace(size, seconds=args.seconds)
    with world(size, args.place, args.target) as everything:
        print(f"ready after {time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
        for name in wanted:
            begun = time.monotonic()
            SCENARIOS[name](everything, report)
            report.save()
            print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Once: clearing up takes seconds, and a second Ctrl-C would leave a mount behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
