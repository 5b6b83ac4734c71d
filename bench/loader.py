"""Measures the loader against its bars: `make bench-loader`, or some scenarios with --only. Needs root.

All of it takes about 100 minutes on two cores. A call begins nothing new after half an hour; the next one measures what
is missing. Every row says in its note what its bound is. Exit code 0: every bar is known to hold. 1: one is missed,
undecided, or not measured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import command
from bench.loader_cpu import cpu, missing_peers
from bench.loader_imbalance import imbalance
from bench.loader_memory import memory
from bench.loader_network import network
from bench.loader_policies import OTHERS, policies
from bench.loader_small import WANTED, small
from bench.loader_warm import warm
from bench.loader_world import BANDWIDTH, FULL, GLUSTER, LATENCY, QUICK, LoaderBench, lacking, world
from bench.parts import Part
from bench.report import BenchReport, commit

Scenario = Callable[[LoaderBench, BenchReport], None]

SCENARIOS: dict[str, Scenario] = {
    **{f"warm-{kind}": functools.partial(warm, kind) for kind in (LATENCY, BANDWIDTH, GLUSTER)},
    "warm-balanced": functools.partial(warm, BANDWIDTH, is_balanced=True),
    **{f"policies-{other}": functools.partial(policies, other) for other in OTHERS},
    "imbalance": imbalance,
    "imbalance-fill": functools.partial(imbalance, fill=True),
    "cpu": cpu,
    **{f"small-{how}": functools.partial(small, how) for how in WANTED},
    "memory": memory,
    "network": network,
}


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    parser.add_argument("--pairs", type=int, metavar="N", help=f"pairs of each timed figure (default: {FULL.pairs})")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for the data (default: %(default)s)")  # noqa: S108
    args = parser.parse_args()
    if args.pairs is not None and args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: give 1 or more")
    report = BenchReport("loader", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.LOADER,)))
    wanted = command.wanted(parser, args.only, report)
    if reason := lacking(missing_peers()):
        print(f"bench-loader: {reason}", file=sys.stderr)
        return 1
    command.hide("bench.loader")
    if args.quick:
        print("quick: to see that all works; it proves nothing")
    size = QUICK if args.quick else FULL
    return command.run(report, wanted, SCENARIOS, world(replace(size, pairs=args.pairs or size.pairs), args.place), args.minutes)


if __name__ == "__main__":
    sys.exit(main())
