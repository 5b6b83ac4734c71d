"""Measures the cache of several nodes against its bars: `make bench-peers`. Needs root; takes about 40 minutes.

A node is a network namespace with a host name, directories and an agent of its own. Nodes are joined by links of 1
Gbit/s; each has a mount of its own of one source, which the nodes' mounts share the bandwidth of. Bytes are those that
the source's servers count.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import command, nodes_imbalance
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import ProgramError
from testbed import datasets, epochs, reading
from testbed.nodes import JobNode, nodes
from testbed.testbed import SlowFs, drop_caches, slowfs

FOREBAY = Path(sys.executable).with_name("forebay")
RATE = "1gbit"
SOURCE_MBPS = 20.0
SOURCE = {"open_ms": 0.2, "meta_us": 100, "read_us": 100, "slots": 64, "attr_ttl_ms": 60_000, "threads": 64}
FILE_KB = 120
BATCH = 8
EPOCHS = 4
PROGRAM_S = 300
FILE_THREADS = 4
"""Threads of a process that read files."""
WINDOW_PART = 16
"""Divisor of a tier that gives the room for other nodes' files alone."""
TIME_OVER_BYTES = 0.1


@dataclass(frozen=True)
class NodesSize:
    """Files of the source, runs of each scenario, steps of an epoch of ranks in step, and megabytes of a large file."""

    files: int
    runs: int
    pairs: int
    steps: int
    large_mb: int


FULL = NodesSize(files=512, runs=3, pairs=5, steps=20, large_mb=256)
QUICK = NodesSize(files=96, runs=1, pairs=1, steps=12, large_mb=16)


@dataclass(frozen=True)
class NodesBench:
    """The files of the source, and a local directory for the files of nodes."""

    size: NodesSize
    photos: Path
    place: Path

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
        words = [str(made[0].data), cache, str(EPOCHS), "0", "--batch-size", str(BATCH)]
        lines = _ended(epochs.start(made, words, {"FOREBAY_PEERS": "auto" if together else "off"}))
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


def _ended(started: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    done = [program.communicate(timeout=PROGRAM_S) for program in started]
    if any(program.returncode for program in started):
        raise ProgramError("\n".join(error for _, error in done)[-3000:])
    return [json.loads(line) for output, _ in done for line in output.splitlines()]


def run_files(world: NodesBench, count: int, share: float, *, together: bool = True) -> JobRun:
    """Runs `forebay run` with an unmodified program on `count` nodes, each with a tier for `share` of the data."""
    with nodes(count, rate=RATE, where=str(world.place)) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        meeting = made[0].shared / "meeting"
        meeting.mkdir()
        mounts = [stack.enter_context(_mounted(world, node, count)) for node in made]
        drop_caches()
        started = [_reader(world, node, count, share, meeting, together=together) for node in made]
        marks: list[tuple[int, float]] = []

        def mark(epoch: str) -> None:
            if together and epoch == "0":
                _wait_until_shared(made)
            ended = time.monotonic()
            reading.wait_for_copies(made)
            # Else this machine's memory answers what the source is to.
            drop_caches()
            marks.append((sum(mount.stats()["bytes_read"] for mount in mounts), ended))
            begun.append(time.monotonic())

        begun: list[float] = []
        reading.lead(meeting, count, EPOCHS, mark)
        for program in started:
            program.communicate(timeout=PROGRAM_S)
        link_bytes = sum(node.sent_bytes() for node in made)
        records = [json.loads(path.read_text()) for node in made for path in node.root.glob("state/runs/*.json")]
    if any(program.returncode for program in started) or len(records) != count:
        raise ProgramError("a program failed")
    return JobRun(
        source_bytes=marks[-1][0] - marks[0][0],
        read_bytes=[after[0] - before[0] for before, after in itertools.pairwise(marks)],
        link_bytes=link_bytes,
        took_s=[after[1] - began for began, after in zip(begun, marks[1:], strict=False)],
        peer_bytes=sum(record["agent"]["from_peers_bytes"] for record in records),
    )


@dataclass(frozen=True)
class TogetherRun:
    """Files that all nodes have opened at the same moment.

    Attributes:
        source_bytes: bytes that each node's server of the source read.
        sent_bytes: bytes that each node sent to others.
        took_s: seconds until all nodes had read all files.
        waited_in_vain: copies that did not come in time, of all nodes.
    """

    source_bytes: list[int]
    sent_bytes: list[int]
    took_s: float
    waited_in_vain: int


AnyRun = TypeVar("AnyRun", JobRun, TogetherRun)


def run_together(world: NodesBench, count: int, files: int) -> TogetherRun:
    """Has all nodes open the same large files at the same moment, and read all of them."""
    large = _large_files(world, files)
    with nodes(count, rate=RATE, where=str(world.place)) as made, contextlib.ExitStack() as stack:
        made[0].data.mkdir()
        meeting = made[0].shared / "meeting"
        meeting.mkdir()
        mounts = [stack.enter_context(_mounted(large, node, count)) for node in made]
        # Each reads all files: part 0 of 1.
        started = [_reader(large, node, count, 1.3, meeting, parts=1, times=1, threads=files) for node in made]
        marks: list[float] = []

        def mark(epoch: str) -> None:
            marks.append(time.monotonic())
            if epoch == "0":
                _wait_until_shared(made)
                drop_caches()
                before.extend(mount.stats()["bytes_read"] for mount in mounts)
                sent_before.extend(node.sent_bytes() for node in made)
                marks[0] = time.monotonic()

        before: list[int] = []
        sent_before: list[int] = []
        reading.lead(meeting, count, 1, mark)
        for program in started:
            program.communicate(timeout=PROGRAM_S)
        lines = reading.lines(meeting)
        read = [mount.stats()["bytes_read"] - earlier for mount, earlier in zip(mounts, before, strict=True)]
        sent = [node.sent_bytes() - earlier for node, earlier in zip(made, sent_before, strict=True)]
        records = [json.loads(path.read_text()) for node in made for path in node.root.glob("state/runs/*.json")]
    digests = {(line["name"], line["digest"]) for line in lines}
    if any(program.returncode for program in started) or len(lines) != count * files or len(digests) != files:
        raise ProgramError("a program failed, or has read other bytes than the others")
    return TogetherRun(read, sent, marks[1] - marks[0], sum(record["agent"]["left_to_source"] for record in records))


def _large_files(world: NodesBench, files: int) -> NodesBench:
    """Returns a bench whose files are few and large."""
    place = world.place / f"forebay-bench-nodes-large-{files}-{world.size.large_mb}"
    if not place.exists():
        place.mkdir()
        for number in range(files):
            (place / f"weights-{number}").write_bytes(os.urandom(world.size.large_mb * 1_000_000))
        # Younger files are not copied: their times may not show their next change.
        time.sleep(2.1)
    return NodesBench(world.size, place, world.place)


def _reader(
    world: NodesBench,
    node: JobNode,
    count: int,
    share: float,
    meeting: Path,
    *,
    together: bool = True,
    parts: int | None = None,
    times: int = EPOCHS,
    threads: int = FILE_THREADS,
) -> subprocess.Popen[str]:
    tier = node.root / "tier"
    tier.mkdir()
    job = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": str(count), "PET_NODE_RANK": str(node.number)}
    job |= {"MASTER_ADDR": "10.99.0.1", "MASTER_PORT": "29400", "FOREBAY_PEERS": "auto" if together else "off"}
    quota = f"{tier}={int(share * world.total_bytes) // 1000}kB"
    program = [
        sys.executable,
        str(reading.PROGRAM),
        str(node.data),
        str(meeting),
        str(node.number),
        str(parts or count),
        str(times),
        str(threads),
    ]
    words = [str(FOREBAY), "run", "--source", str(node.data), "--tier", quota, "--", *program]
    return node.start(words, os.environ | job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_until_shared(made: list[JobNode]) -> None:
    until = time.monotonic() + PROGRAM_S
    while not reading.is_shared(made):
        if time.monotonic() > until:
            raise ProgramError("the nodes do not share their files")
        time.sleep(0.05)


def files_fit(count: int, world: NodesBench, report: BenchReport) -> None:
    """All nodes together have room for all files, and none has alone."""
    share = 1.25 / count
    scenario = f"files-fit-{count}: forebay run on {count} nodes, each keeps {share:.2f} of the data"
    runs = [_noted(report, run_files(world, count, share)) for _ in range(world.size.runs)]
    bound = f"bound 1.00; W is {share / WINDOW_PART:.3f} x S; {_links(world, runs)}"
    read = [run.source_bytes / world.total_bytes for run in runs]
    report.count(What(scenario, "source bytes of all epochs", "x S", 1.02, "S"), read, bound)
    later = [sum(run.read_bytes[1:]) / world.total_bytes for run in runs]
    report.count(What(scenario, "source bytes after epoch 1", "x S", 0.0, "0"), later, "bound 0")


def files_short(count: int, world: NodesBench, report: BenchReport) -> None:
    """All nodes together have room for 0.6 of the files."""
    share = 0.6 / count
    scenario = f"files-short-{count}: forebay run on {count} nodes, all together keep 0.6 of the data"
    runs = [_noted(report, run_files(world, count, share)) for _ in range(world.size.runs)]
    later = [read / world.total_bytes for run in runs for read in run.read_bytes[1:]]
    window = 0.6 / WINDOW_PART
    note = f"bound 0.40 (S - N x C); N x W is {window:.3f} x S; {_links(world, runs)}"
    report.count(What(scenario, "source bytes of a later epoch", "x S", round(1.03 * 0.4 + window, 3), "S"), later, note)


def files_together(count: int, files: int, world: NodesBench, report: BenchReport) -> None:
    """All nodes open the same large files at the same moment, cold."""
    mb = world.size.large_mb
    scenario = f"files-together-{files}: {count} nodes open {files} x {mb} MB at the same moment, cold"
    total = files * mb * 1_000_000
    runs = [_noted(report, run_together(world, count, files)) for _ in range(world.size.runs)]
    left = max(run.waited_in_vain for run in runs)
    shares = [round(read / total, 2) for read in runs[-1].source_bytes]
    note = f"bound 1.00; at most {left} copies did not come in time; read by each node: {shares}"
    report.count(What(scenario, "source bytes", "x S", 1.02, "S"), [sum(run.source_bytes) / total for run in runs], note)
    if files == 1:
        # The owner is the node that has read the source. Of several files nodes send others' pieces, too.
        sent = [run.sent_bytes[run.source_bytes.index(max(run.source_bytes))] / total for run in runs]
        report.count(What(scenario, "bytes that the owner sends", "x the file", 1.7, "the file"), sent, "by its link")
    # One owner has the part of the source's rate that its node's mount has.
    base = total / (SOURCE_MBPS * 1e6 / (count if files == 1 else 1))
    report.count(What(scenario, "time", "x S / B", 1.8, "S / B"), [run.took_s / base for run in runs], f"S / B is {base:.1f} s")


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
    later = [read / world.total_bytes for run in runs for read in run.read_bytes[1:]]
    # A node's window is memory beside its cache: W is nought.
    note = f"bound 0.40 (S - N x C); {_links(world, runs)}"
    report.count(What(scenario, "source bytes of a later epoch", "x S", 1.03 * 0.4, "S"), later, note)


def time_of(run: Callable[..., JobRun], scenario: str, world: NodesBench, report: BenchReport) -> None:
    """Epochs bound by the source, with what the other node keeps and without, alternately."""
    ratios, shares = [], []
    for number in range(world.size.pairs):
        order = (True, False) if number % 2 == 0 else (False, True)
        runs = {together: _noted(report, run(world, 2, 0.3, together=together)) for together in order}
        ratios.append(sum(runs[True].took_s[1:]) / sum(runs[False].took_s[1:]))
        shares.append(sum(runs[True].read_bytes[1:]) / sum(runs[False].read_bytes[1:]))
    share = statistics.median(shares)
    what = What(scenario, "later epochs, over those of nodes alone", "x", round(share + TIME_OVER_BYTES, 3), "FOREBAY_PEERS=off")
    report.time(what, ratios, f"bound {share:.3f}, the ratio of source bytes")


def imbalance(world: NodesBench, report: BenchReport) -> None:
    """Ranks in step, of which two have a slower source."""
    nodes_imbalance.imbalance(world.place, world.size.runs, world.size.steps, report)


def _noted(report: BenchReport, run: AnyRun) -> AnyRun:
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
    "time": functools.partial(time_of, run_job, "time: 2 nodes, each keeps 0.3 of the data"),
    "files-fit-2": functools.partial(files_fit, 2),
    "files-fit-4": functools.partial(files_fit, 4),
    "files-together-1": functools.partial(files_together, 4, 1),
    "files-together-8": functools.partial(files_together, 4, 8),
    "files-short-2": functools.partial(files_short, 2),
    "files-time": functools.partial(time_of, run_files, "files-time: forebay run on 2 nodes, each keeps 0.3 of the data"),
    "imbalance": imbalance,
}


@contextlib.contextmanager
def world(size: NodesSize, place: Path) -> Iterator[NodesBench]:
    """Makes the files, in memory of the machine's own page cache."""
    photos = place / f"forebay-bench-nodes-{size.files}"
    if not photos.exists():
        datasets.photos(photos, size.files, size_kb=FILE_KB)
    yield NodesBench(size, photos, place)


BENCH = command.RootBench("bench-peers", "nodes", __doc__, (Part.PEERS, Part.LOADER))


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
