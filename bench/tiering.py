"""Measures tiering against its bars: `make bench-tiering`, or some scenarios with --only. Needs root.

All of it takes about 105 minutes. A call begins nothing new after half an hour; the next one measures what is missing.
Exit code 0: every bar is known to hold. 1: one is missed, undecided, or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import command
from bench.catalogue import catalogue
from bench.half import half
from bench.listings import listings
from bench.micro import micro
from bench.part import part
from bench.parts import Part
from bench.report import BenchReport, commit
from bench.whole import files, shards
from bench.workers import workers
from bench.world import FULL, QUICK, TieringBench, world
from testbed.testbed import have_gluster

# Eight workers, and the file system that they read, on two cores: 4.2 by themselves.
WORKERS_LOAD_MAX = 5.0
SCENARIOS: dict[str, Callable[[TieringBench, BenchReport], None]] = {
    "files": files,
    "shards": shards,
    "half": half,
    "part": part,
    "workers": workers,
    "micro": micro,
    "listings": listings,
    "catalogue": catalogue,
}


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    parser.add_argument("--pairs", type=int, metavar="N", help=f"pairs of each timed figure (default: {FULL.pairs})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"what each half of a pair takes at least (default: {FULL.seconds:.0f})")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for data and tiers (default: %(default)s)")  # noqa: S108
    parser.add_argument("--target", type=Path, help="measure the build in this Cargo target directory instead of the installed package")
    args = parser.parse_args()
    if reason := have_gluster():
        print(f"bench-tiering: {reason}", file=sys.stderr)
        return 1
    command.hide("bench.tiering")
    report = BenchReport(
        "tiering", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.TIERING,)), load_max_of={"workers": WORKERS_LOAD_MAX}
    )
    wanted = command.wanted(parser, args.only, report)
    size = QUICK if args.quick else FULL
    size = replace(size, pairs=args.pairs or size.pairs, seconds=args.seconds or size.seconds)
    return command.run(report, wanted, SCENARIOS, world(size, args.place, args.target), args.minutes)


if __name__ == "__main__":
    sys.exit(main())
