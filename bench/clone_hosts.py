"""Measures clones on other hosts against their bars: `make bench-clone-hosts`. Needs root; about ten minutes.

A host is a network namespace with directories of its own, joined to the others by a link of 1 Gbit/s. Bytes are those
that the links count. A clone's readiness is the time from the fork's point until `session()` returns; raw TCP carries
as many bytes between the same hosts, alternately.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command
from bench.clone_forks import listed, of_stall_bar, stall
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import ProgramError, environment
from testbed.nodes import JobNode, nodes

FOREBAY = Path(sys.executable).with_name("forebay")
RATE = "1gbit"
JOB = "trunk"
PROGRAM_S = 300.0
RANKS = 2
PORT = 29511
"""Port at which ranks on several hosts meet, on a host of their own."""
CLONES = 4
AHEAD = 60
"""Steps until a fork for several clones, which all have to be there by then."""
READY_OF_TCP = 1.05
READY_OF_SHARD_AND_GATHER = 1.10
"""A shard and the gather are as many bytes into a host as the state, which raw TCP carries."""
BYTES_OF_STATE = 1.05
CPU_S_A_GIB = 0.5
GIB = 1 << 30
SEND = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 20))
    connection.close()
"""
TAKE = """
import socket, sys, time
begun = time.monotonic()
room = bytearray(1 << 20)
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    while connection.recv_into(room):
        pass
print(time.monotonic() - begun)
"""


@dataclass(frozen=True)
class HostsSize:
    """MiB of a state, and runs of each scenario."""

    mib: int
    runs: int


FULL = HostsSize(mib=256, runs=9)
QUICK = HostsSize(mib=64, runs=1)


@dataclass(frozen=True)
class HostsBench:
    """Hosts, the first of which is the job's, and the size of what is measured."""

    hosts: list[JobNode]
    size: HostsSize


@dataclass(frozen=True)
class HostFork:
    """A fork with its clones. Times in seconds, of the rank or clone that fared worst.

    Attributes:
        ready_s: from the point until the last rank of the last clone could go on.
        stall_s: time that training stood still.
        step_s: a step without a fork.
        cpu_s: CPU time of `forebay clone serve`.
        bytes: bytes of the state that all ranks hold together, each replicated entry once.
        sent: bytes that the job's host sent.
    """

    ready_s: float
    stall_s: float
    step_s: float
    cpu_s: float
    bytes: int
    sent: int


def program(ranks: int, mib: int) -> list[str]:
    """Words that start a job or a clone."""
    words = ["-m", "bench.programs.host_fork", str(mib)]
    return (
        [sys.executable, *words]
        if ranks == 1
        else [sys.executable, *["-m", "torch.distributed.run", "--standalone"], f"--nproc-per-node={ranks}", *words]
    )


def start(host: JobNode, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Starts a program on a host, with its output in a pipe."""
    kept = {name: value for name, value in environment(None).items() if name != "HOME"}
    own = {**kept, "OMP_NUM_THREADS": "1", "FOREBAY_JOB": JOB}
    return host.start(words, own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@contextlib.contextmanager
def job(bench: HostsBench, ranks: int) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], Path]]:
    """The job and its server, with the ticket, until the block ends."""
    host = bench.hosts[0]
    ticket = host.shared / "ticket"
    with start(host, program(ranks, bench.size.mib), stdin=subprocess.PIPE) as trains:
        try:
            deadline = time.monotonic() + PROGRAM_S
            while not steps(host):
                if trains.poll() is not None or time.monotonic() > deadline:
                    raise ProgramError(f"the job does not train: {trains.communicate()[1]}")
                time.sleep(0.5)
            with start(host, [str(FOREBAY), "clone", "serve", JOB, "--listen", host.address, "--ticket", str(ticket)]) as server:
                try:
                    assert server.stdout
                    if not server.stdout.readline():
                        raise ProgramError(server.communicate()[1])
                    yield trains, server, ticket
                finally:
                    server.terminate()
        finally:
            assert trains.stdin
            trains.stdin.close()
            trains.wait(PROGRAM_S)


def steps(host: JobNode) -> int:
    """Step of the job, 0 before it trains."""
    with start(host, [str(FOREBAY), "clone", "ls", "--json"]) as listing:
        lines = listing.communicate()[0].splitlines()
    return next((found["step"] or 0 for found in map(json.loads, lines) if found["job"] == JOB), 0)


def cpu_s(process: subprocess.Popen[str]) -> float:
    """CPU seconds that a process has taken so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    """The next lines that the ranks of a job print."""
    assert process.stdout
    found: list[dict[str, Any]] = []
    decoder = json.JSONDecoder()
    while len(found) < count:
        line = process.stdout.readline()
        if not line:
            raise ProgramError(f"the program has ended: {process.communicate()[1][-2000:]}")
        at = 0
        while (at := line.find('{"rank"', at)) >= 0:
            value, at = decoder.raw_decode(line, at)
            found.append(value)
    return found


def fork(bench: HostsBench, running: tuple[subprocess.Popen[str], subprocess.Popen[str], Path], ranks: int, clones: int) -> HostFork:
    """Forks a job into clones on as many hosts.

    Raises:
        ProgramError: a clone does not come to be, or goes on otherwise than the job.
    """
    trains, server, ticket = running
    host = bench.hosts[0]
    at = "next" if clones == 1 else str(steps(host) + AHEAD)
    cpu, sent = cpu_s(server), host.sent_bytes()
    words = [str(FOREBAY), "clone", JOB, "--at", at, "--from", host.address, "--ticket", str(ticket), "--", *program(ranks, bench.size.mib)]
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(start(other, words)) for other in bench.hosts[1 : clones + 1]]
        became = [lines_of(one, ranks) for one in made]
        points = lines_of(trains, ranks)
    taken = host.sent_bytes() - sent
    mine = {line["rank"]: line for line in points}
    for one in (line for lines in became for line in lines):
        if one["losses"] != mine[one["rank"]]["losses"]:
            raise ProgramError(f"rank {one['rank']} of a clone goes on otherwise than the job's")
    ready = max(line["ready_at"] for lines in became for line in lines) - max(line["point_at"] for line in points)
    stall_s, step_s = max(line["stall_s"] for line in points), min(line["step_s"] for line in points)
    return HostFork(ready, stall_s, step_s, cpu_s(server) - cpu, bench.size.mib << 20, taken)


def tcp_s(bench: HostsBench) -> float:
    """Seconds in which raw TCP carries as many bytes."""
    source, target = bench.hosts[:2]
    with start(source, [sys.executable, "-c", SEND, source.address, str(bench.size.mib)]) as sends:
        assert sends.stdout
        port = sends.stdout.readline().strip()
        with start(target, [sys.executable, "-c", TAKE, source.address, port]) as takes:
            return float(takes.communicate()[0])


def one_rank(bench: HostsBench, report: BenchReport) -> None:
    """A job of one rank, and its clone."""
    found, ratios = measured(bench, report, 1)
    report.time(What("1 rank", "readiness / raw TCP", "", READY_OF_TCP, "socket, 1 MiB at a time"), ratios)
    cost(report, "1 rank", found)


def two_ranks(bench: HostsBench, report: BenchReport) -> None:
    """A job of two ranks on one host, and its clone."""
    found, ratios = measured(bench, report, RANKS)
    report.time(What("2 ranks", "readiness / raw TCP", "", None, "socket, 1 MiB at a time"), ratios)
    cost(report, "2 ranks", found)


def many_clones(bench: HostsBench, report: BenchReport) -> None:
    """Clones of one point on four hosts."""
    with job(bench, 1) as running:
        found = [fork(bench, running, 1, CLONES)]
    report.once(What("4 clones", "readiness", "s"), found[0].ready_s)
    report.count(What("4 clones", "sent / state", "", BYTES_OF_STATE), [one.sent / one.bytes for one in found])


@contextlib.contextmanager
def job_of_hosts(
    bench: HostsBench, sources: Sequence[JobNode]
) -> Iterator[tuple[list[subprocess.Popen[str]], list[subprocess.Popen[str]], Path]]:
    """A job with a rank on each of several hosts, and its servers, with the ticket that names all."""
    ticket = sources[0].shared / "ticket"
    with contextlib.ExitStack() as stack:
        trains = [
            stack.enter_context(start(host, launched(bench, sources, number), stdin=subprocess.PIPE)) for number, host in enumerate(sources)
        ]
        stack.callback(lambda: [one.stdin.close() for one in trains if one.stdin])
        deadline = time.monotonic() + PROGRAM_S
        while not all(steps(host) for host in sources):
            if any(one.poll() is not None for one in trains) or time.monotonic() > deadline:
                raise ProgramError("the job does not train")
            time.sleep(0.5)
        servers = []
        for host in sources:
            words = [str(FOREBAY), "clone", "serve", JOB, "--listen", host.address, "--ticket", str(ticket)]
            servers.append(stack.enter_context(start(host, words)))
            stack.callback(servers[-1].terminate)
            if not (servers[-1].stdout and servers[-1].stdout.readline()):
                raise ProgramError(servers[-1].communicate()[1])
        yield trains, servers, ticket


def point_of(job: subprocess.Popen[str], losses: dict[str, float]) -> dict[str, Any]:
    """Returns the line of a job's rank about the fork whose clone has these losses. One before may have failed."""
    while (line := lines_of(job, 1)[0])["losses"].keys() != losses.keys():
        pass
    if line["losses"] != losses:
        raise ProgramError(f"rank {line['rank']} of a clone goes on otherwise than the job's")
    return line


def launched(bench: HostsBench, hosts: Sequence[JobNode], number: int) -> list[str]:
    """Words that start the rank of a job, or of a clone, on one of its hosts."""
    where = [f"--nnodes={len(hosts)}", "--nproc-per-node=1", f"--node-rank={number}", f"--master-addr={hosts[0].address}"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *where, f"--master-port={PORT}"]
    return [*launcher, "-m", "bench.programs.host_fork", str(bench.size.mib)]


def two_hosts(bench: HostsBench, report: BenchReport) -> None:
    """A job of two ranks on two hosts, and its clone on two others. A part is what one rank has to send."""
    sources, others = bench.hosts[:RANKS], bench.hosts[RANKS : 2 * RANKS]
    ready, sent = [], []
    for _ in range(bench.size.runs):
        base = tcp_s(bench)
        with contextlib.ExitStack() as stack:
            trains, servers, ticket = stack.enter_context(job_of_hosts(bench, sources))
            made = []
            for number, host in enumerate(others):
                words = [str(FOREBAY), "clone", JOB, "--ticket", str(ticket), "--group", "bench", "--", *launched(bench, others, number)]
                made.append(stack.enter_context(start(host, words)))
            became = sorted((line for one in made for line in lines_of(one, 1)), key=lambda line: int(line["rank"]))
            points = [point_of(one, line["losses"]) for one, line in zip(trains, became, strict=True)]
            ready.append((max(line["ready_at"] for line in became) - max(line["point_at"] for line in points)) / base)
            for server in servers:
                server.terminate()
                told = server.communicate()[1]
                sent.append(int(told.rpartition(" bytes of its state were sent")[0].rpartition(" ")[2]) / ((bench.size.mib << 20) / RANKS))
        report.note_load()
    report.time(What("2 + 2 hosts", "readiness / raw TCP", "", READY_OF_SHARD_AND_GATHER, "socket, 1 MiB at a time"), ready)
    report.count(What("2 + 2 hosts", "sent by a rank / its shard", "", BYTES_OF_STATE), sent)


def measured(bench: HostsBench, report: BenchReport, ranks: int) -> tuple[list[HostFork], list[float]]:
    """Forks, alternately with raw TCP, and the ratios of both times."""
    found, ratios = [], []
    with job(bench, ranks) as running:
        for _ in range(bench.size.runs):
            base = tcp_s(bench)
            found.append(fork(bench, running, ranks, 1))
            ratios.append(found[-1].ready_s / base)
            report.note_load()
    return found, ratios


def cost(report: BenchReport, scenario: str, found: Sequence[HostFork]) -> None:
    """Readiness, and what a fork cost the job's host."""
    report.time(What(scenario, "readiness", "s"), [one.ready_s for one in found])
    report.count(What(scenario, "sent / state", "", BYTES_OF_STATE), [one.sent / one.bytes for one in found])
    note = (
        f"a step takes {statistics.median(one.step_s for one in found) * 1e3:,.0f} ms; stall, ms: {listed([one.stall_s for one in found])}"
    )
    report.time(stall(scenario), [of_stall_bar(one.stall_s, one.step_s) for one in found], note)
    report.time(What(scenario, "CPU of serve / GiB", "s", CPU_S_A_GIB), [one.cpu_s * GIB / one.bytes for one in found])


SCENARIOS: dict[str, Callable[[HostsBench, BenchReport], None]] = {
    "1 rank": one_rank,
    "2 ranks": two_ranks,
    "2 + 2 hosts": two_hosts,
    "4 clones": many_clones,
}


@contextlib.contextmanager
def world(size: HostsSize, place: Path) -> Iterator[HostsBench]:
    """Makes the hosts, and removes them."""
    with nodes(CLONES + 1, rate=RATE, where=str(place)) as hosts:
        yield HostsBench(hosts, size)


BENCH = command.RootBench(
    "bench-clone-hosts",
    "clone_hosts",
    __doc__,
    (Part.FORKS, Part.PEERS),
    place=command.IN_MEMORY,
    place_help="directory of the hosts' files",
    lacks=lambda: None,
)


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
