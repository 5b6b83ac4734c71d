"""Measures the cache of several nodes against its bars: `make bench-peers`. Needs root; about 20 minutes on two cores.

A node is a network namespace with a host name, directories and an agent of its own. Nodes are joined by links of 1
Gbit/s; each has a mount of its own of one source, which the nodes' mounts share the bandwidth of. Bytes are those that
the source's servers count.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command
from bench.report import BenchReport, What
from bench.session import PROGRAMS, ProgramError
from testbed import datasets
from testbed.nodes import JobNode, nodes
from testbed.testbed import SlowFs, drop_caches, have_fuse, slowfs

RATE = "1gbit"
SOURCE_MBPS = 20.0
SOURCE = {"open_ms": 0.2, "meta_us": 100, "read_us": 100, "slots": 64, "attr_ttl_ms": 60_000, "threads": 64}
FILE_KB = 120
BATCH = 8
EPOCHS = 4
PROGRAM_S = 300
TIME_OVER_BYTES = 0.1


@dataclass(frozen=True)
class NodesSize:
    """Files of the source, and runs of each scenario."""

    files: int
    runs: int
    pairs: int


FULL = NodesSize(files=512, runs=3, pairs=5)
QUICK = NodesSize(files=96, runs=1, pairs=1)


@dataclass(frozen=True)
class NodesBench:
    """The files of the source."""

    size: NodesSize
    photos: Path

    @functools.cached_property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.photos.rglob("*") if path.is_file())


@dataclass(frozen=True)
class JobRun:
    """A job's epochs.

    Attributes:
        source_bytes: bytes that the source's servers read, all epochs together.
        read_bytes: bytes that agents and ranks read from the source, by epoch.
        link_bytes: bytes that nodes sent each other, all epochs together.
        took_s: seconds, by epoch.
        peer_bytes: bytes of samples that came from other nodes.
    """

    source_bytes: int
    read_bytes: list[int]
    link_bytes: int
    took_s: list[float]
    peer_bytes: int


def run_job(world: NodesBench, count: int, share: float, *, together: bool = True) -> JobRun:
    """Runs a job on `count` nodes, each of which may keep `share` of the data."""
    with nodes(count, rate=RATE) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        mounts = [stack.enter_context(_mounted(world, node, count)) for node in made]
        drop_caches()
        cache = f"ram={int(share * world.total_bytes) // 1000}kB"
        lines = _ended(_started(made, cache, together=together))
        source_bytes = sum(mount.stats()["bytes_read"] for mount in mounts)
        link_bytes = sum(node.sent_bytes() for node in made)
    last = [line for line in lines if line["epoch"] == EPOCHS - 1]
    if together and any(line["figures"].get("nodes") != count for line in last):
        raise ProgramError(f"nodes did not share their samples: {last}")
    so_far = [sum(line["figures"]["source_bytes"] for line in lines if line["epoch"] == epoch) for epoch in range(EPOCHS)]
    return JobRun(
        source_bytes=source_bytes,
        read_bytes=[now - before for before, now in zip([0, *so_far], so_far, strict=False)],
        link_bytes=link_bytes,
        took_s=[max(line["took_s"] for line in lines if line["epoch"] == epoch) for epoch in range(EPOCHS)],
        peer_bytes=sum(line["figures"]["peer_bytes"] for line in last),
    )


def _mounted(world: NodesBench, node: JobNode, count: int) -> SlowFs:
    node.source.mkdir()
    return slowfs(world.photos, node.source, allow_other=None, readdirplus=True, mbps=SOURCE_MBPS / count, **SOURCE)


def _started(made: list[JobNode], cache: str, *, together: bool) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FOREBAY_PEERS": "auto" if together else "off"}
    program = [str(PROGRAMS / "nodes_epochs.py"), str(made[0].data), cache, str(EPOCHS), str(BATCH)]
    started = []
    for node in made:
        shape = ["--nnodes", str(len(made)), "--nproc-per-node", "1", "--node-rank", str(node.number)]
        first = ["--master-addr", made[0].address, "--master-port", port]
        words = [sys.executable, "-m", "torch.distributed.run", *shape, *first, *program]
        started.append(node.start(words, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return started


def _ended(started: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    done = [program.communicate(timeout=PROGRAM_S) for program in started]
    if any(program.returncode for program in started):
        raise ProgramError("\n".join(error for _, error in done)[-3000:])
    return [json.loads(line) for output, _ in done for line in output.splitlines()]


def fits(count: int, world: NodesBench, report: BenchReport) -> None:
    """All nodes together have room for all samples, and none has alone."""
    scenario = f"fits-{count}: {count} nodes, each keeps {1.1 / count:.2f} of the data"
    runs = [_noted(report, run_job(world, count, 1.1 / count)) for _ in range(world.size.runs)]
    bound = f"bound 1.00; {_links(world, runs)}"
    read = [run.source_bytes / world.total_bytes for run in runs]
    report.count(What(scenario, "source bytes of all epochs", "x S", 1.02, "S"), read, bound)
    later = [sum(run.read_bytes[1:]) / world.total_bytes for run in runs]
    report.count(What(scenario, "source bytes after epoch 1", "x S", 0.0, "0"), later, "bound 0")


def short(count: int, world: NodesBench, report: BenchReport) -> None:
    """All nodes together have room for 0.6 of the samples."""
    scenario = f"short-{count}: {count} nodes, all together keep 0.6 of the data"
    runs = [_noted(report, run_job(world, count, 0.6 / count)) for _ in range(world.size.runs)]
    epochs = [read / world.total_bytes for run in runs for read in run.read_bytes[1:]]
    # A node's window is memory beside its cache: W is nought.
    note = f"bound 0.40 (S - N x C); {_links(world, runs)}"
    report.count(What(scenario, "source bytes of a later epoch", "x S", 1.03 * 0.4, "S"), epochs, note)


def time(world: NodesBench, report: BenchReport) -> None:
    """Epochs bound by the source, with the other node's cache and without, alternately."""
    scenario = "time: 2 nodes, each keeps 0.3 of the data"
    ratios, shares = [], []
    for number in range(world.size.pairs):
        order = (True, False) if number % 2 == 0 else (False, True)
        runs = {together: _noted(report, run_job(world, 2, 0.3, together=together)) for together in order}
        ratios.append(sum(runs[True].took_s[1:]) / sum(runs[False].took_s[1:]))
        shares.append(sum(runs[True].read_bytes[1:]) / sum(runs[False].read_bytes[1:]))
    share = statistics.median(shares)
    what = What(scenario, "later epochs, over those of nodes alone", "x", round(share + TIME_OVER_BYTES, 3), "FOREBAY_PEERS=off")
    report.time(what, ratios, f"bound {share:.3f}, the ratio of source bytes")


def _noted(report: BenchReport, run: JobRun) -> JobRun:
    report.note_load()
    return run


def _links(world: NodesBench, runs: list[JobRun]) -> str:
    sent = statistics.median(run.link_bytes / world.total_bytes for run in runs)
    came = statistics.median(run.peer_bytes / world.total_bytes for run in runs)
    return f"in {EPOCHS} epochs nodes gave each other {came:.2f} x S, by links {sent:.2f} x S"


SCENARIOS: dict[str, Callable[[NodesBench, BenchReport], None]] = {
    "fits-2": functools.partial(fits, 2),
    "fits-4": functools.partial(fits, 4),
    "short-2": functools.partial(short, 2),
    "short-4": functools.partial(short, 4),
    "time": time,
}


@contextlib.contextmanager
def world(size: NodesSize, place: Path) -> Iterator[NodesBench]:
    """Makes the files, in memory of the machine's own page cache."""
    photos = place / f"forebay-bench-nodes-{size.files}"
    if not photos.exists():
        datasets.photos(photos, size.files, size_kb=FILE_KB)
    yield NodesBench(size, photos)


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for the data (default: %(default)s)")  # noqa: S108
    args = parser.parse_args()
    report = BenchReport("nodes", tuple(SCENARIOS), quick=args.quick)
    wanted = command.wanted(parser, args.only, report)
    if os.geteuid() != 0 or (reason := have_fuse()):
        print(f"bench-peers: {'root is needed' if os.geteuid() else reason}", file=sys.stderr)
        return 1
    if args.quick:
        print("quick: to see that all works; it proves nothing")
    return command.run(report, wanted, SCENARIOS, world(QUICK if args.quick else FULL, args.place))


if __name__ == "__main__":
    sys.exit(main())
