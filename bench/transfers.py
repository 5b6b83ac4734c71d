"""Measures ranges between two nodes beside other libraries: `make bench-transfers`. Needs root; about ten minutes.

A node is a network namespace. 100 KB go from one to the other again and again, by one or eight requesters, with
Forebay's data plane (TLS, a digest of each range), a bare TCP socket, gloo, mpi4py, NIXL and Mooncake, alternately.
CPU is that of both sides.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command
from bench.parts import Part
from bench.report import ROOT, BenchReport, What, commit
from bench.session import PROGRAMS, ProgramError
from testbed.nodes import JobNode, nodes, remote_shell

COMPARE = ROOT / "target/release/examples/compare"
RANGES = PROGRAMS / "ranges.py"
RATE = "1gbit"
LENGTH = 100_000
REQUESTERS = 8
PORT = 29700
PROGRAM_S = 120
OF_TCP = 0.98
OF_OTHERS = 0.25
OF_MPI_CPU = 0.25


@dataclass(frozen=True)
class TransferSize:
    """Rounds of each comparison, and seconds of each measurement."""

    rounds: int
    seconds: float


FULL = TransferSize(rounds=9, seconds=3.0)
QUICK = TransferSize(rounds=1, seconds=1.0)


@dataclass(frozen=True)
class Transfer:
    """Ranges a second, and CPU seconds of both sides for a range."""

    ranges_per_s: float
    cpu_s: float


def _said(program: subprocess.Popen[str], end: str | None = None) -> dict[str, Any]:
    """Returns the last line of a program, as JSON, once it has ended."""
    said, errors = program.communicate(end, timeout=PROGRAM_S)
    if program.returncode:
        raise ProgramError(errors[-2000:])
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _start(node: JobNode, *words: object) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "UCX_NET_DEVICES": node.name}
    return node.start([str(word) for word in words], environment, **pipes)


def by_compare(made: list[JobNode], way: str, requesters: int, seconds: float) -> Transfer:
    """Measures Forebay's data plane, or a bare socket."""
    there, here = made
    address = f"{there.address}:{PORT}"
    server = _start(there, COMPARE, "serve", way, LENGTH, address)
    assert server.stdout
    if server.stdout.readline() != "ready\n":
        raise ProgramError(server.communicate(timeout=PROGRAM_S)[1][-2000:])
    asked = _said(_start(here, COMPARE, "ask", way, LENGTH, requesters, seconds, address))
    served = _said(server, "")
    return Transfer(asked["ranges"] / asked["seconds"], (asked["cpu_s"] + served["cpu_s"]) / asked["ranges"])


def by_others(made: list[JobNode], way: str, requesters: int, seconds: float) -> Transfer:
    """Measures another library by its Python interface."""
    there, here = made
    for left in ("nixl", "mooncake"):
        (there.shared / left).unlink(missing_ok=True)

    def words(side: str, node: JobNode) -> list[object]:
        return [sys.executable, RANGES, side, way, there.address, PORT, node.address, LENGTH, requesters, seconds, there.shared]

    if way == "mpi":
        mpiexec: list[object] = [Path(sys.executable).with_name("mpiexec"), "-launcher", "ssh", "-launcher-exec", remote_shell(made)]
        # Both nodes are on one machine, whose memory MPICH would use.
        mpiexec += ["-genv", "MPIR_CVAR_NOLOCAL", "1", "-genv", "UCX_TLS", "tcp", "-genv", "UCX_NET_DEVICES", "all"]
        together = _start(there, *mpiexec, "-hosts", f"{there.address},{here.address}", "-ppn", 1, "-n", 2, *words("serve", there))
        said, errors = together.communicate(timeout=PROGRAM_S)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        if together.returncode or len(lines) != len(made):
            raise ProgramError(errors[-2000:])
        (asked,) = [line for line in lines if "ranges" in line]
        (served,) = [line for line in lines if "ranges" not in line]
    else:
        server = _start(there, *words("serve", there))
        asked = _said(_start(here, *words("ask", here)))
        served = _said(server, "")
    return Transfer(asked["ranges"] / asked["seconds"], (asked["cpu_s"] + served["cpu_s"]) / asked["ranges"])


def measured(size: TransferSize, report: BenchReport, ways: list[str], requesters: int, rate: str | None) -> dict[str, list[Transfer]]:
    """Measures all ways in each round, the last one first in every second."""
    found: dict[str, list[Transfer]] = {way: [] for way in ways}
    with nodes(2, rate=rate) as made:
        for number in range(size.rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                measure = by_compare if way in ("tcp", "peers") else by_others
                found[way].append(measure(made, way, requesters, size.seconds))
            report.note_load()
    return found


def _rates(found: dict[str, list[Transfer]], way: str, other: str) -> list[float]:
    return [one.ranges_per_s / two.ranges_per_s for one, two in zip(found[way], found[other], strict=True)]


def _words(found: dict[str, list[Transfer]]) -> str:
    def words(way: str, of: list[Transfer]) -> str:
        rate = statistics.median(one.ranges_per_s for one in of) * LENGTH / 1e6
        return f"{way} {rate:.1f} MB/s, {statistics.median(one.cpu_s for one in of) * 1e6:.0f} us of CPU a range"

    return "; ".join(words(way, of) for way, of in found.items())


def link(requesters: int, size: TransferSize, report: BenchReport) -> None:
    """Compares with a bare socket at 1 Gbit/s."""
    found = measured(size, report, ["tcp", "peers"], requesters, RATE)
    what = What(f"link-{requesters}: 1 Gbit/s, {requesters} requesters", "a bare socket's rate over ours", "x", round(1 / OF_TCP, 4), "TCP")
    report.time(what, _rates(found, "tcp", "peers"), _words(found))


def others(size: TransferSize, report: BenchReport) -> None:
    """Compares with other libraries, as fast as this machine goes."""
    found = measured(size, report, ["peers", "gloo", "nixl", "mooncake"], REQUESTERS, None)
    for way in ("gloo", "nixl", "mooncake"):
        what = What(f"others: no limit, {REQUESTERS} requesters", f"the rate of {way} over ours", "x", OF_OTHERS, way)
        report.time(what, _rates(found, way, "peers"), _words(found))


def mpi(size: TransferSize, report: BenchReport) -> None:
    """Compares with mpi4py at 1 Gbit/s."""
    found = measured(size, report, ["peers", "mpi"], REQUESTERS, RATE)
    scenario = f"mpi: 1 Gbit/s, {REQUESTERS} requesters"
    what = What(scenario, "the rate of mpi4py over ours", "x", round(1 / OF_TCP, 4), "mpi4py")
    report.time(what, _rates(found, "mpi", "peers"), _words(found))
    cpu = [ours.cpu_s / theirs.cpu_s for ours, theirs in zip(found["peers"], found["mpi"], strict=True)]
    report.time(What(scenario, "our CPU a range over that of mpi4py", "x", OF_MPI_CPU, "mpi4py"), cpu)


SCENARIOS: dict[str, Callable[[TransferSize, BenchReport], None]] = {
    "link-1": lambda size, report: link(1, size, report),
    "link-8": lambda size, report: link(REQUESTERS, size, report),
    "others": others,
    "mpi": mpi,
}


@contextlib.contextmanager
def world(size: TransferSize) -> Iterator[TransferSize]:
    """Passes the size on: each scenario makes its own nodes."""
    yield size


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    args = parser.parse_args()
    report = BenchReport("transfers", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.PEERS,)))
    wanted = command.wanted(parser, args.only, report)
    if os.geteuid() != 0:
        print("bench-transfers: root is needed", file=sys.stderr)
        return 1
    return command.run(report, wanted, SCENARIOS, world(QUICK if args.quick else FULL), args.minutes)


if __name__ == "__main__":
    sys.exit(main())
