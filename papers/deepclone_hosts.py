"""Measures the DeepClone paper's comparison between two hosts: `make papers-deepclone-hosts`. Needs root.

A host is a network namespace, joined to the other by a link of 1 Gbit/s; job and clone have one rank each, in PyTorch.
Forebay is `forebay clone serve` and `forebay clone --from`; the paper's other ways are pickled mpi4py, and HDF5 on a
parallel file system (GlusterFS, of two bricks behind a link of 1 Gbit/s each, with a client for each host, in place of
the paper's Lustre); mpi4py's `Send` is what counts today. Times are the paper's three: overhead of two steps, standby,
readiness. At most 30 minutes.

`--page` prints the table of docs/inside/papers.md and draws docs/inside/deepclone-hosts.svg instead.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command
from bench.clone_hosts import FOREBAY, JOB, PROGRAM_S, lines_of, start, steps
from bench.parts import Part
from bench.report import OUT, ROOT, BenchReport, What, proven
from bench.session import ProgramError, environment, program
from papers.lobster_page import NOT_MEASURED, PaperFigures, row, shown
from testbed.nodes import JobNode, nodes, remote_shell
from testbed.testbed import gluster, have_gluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = "1gbit"
OURS = "Forebay"
WAYS = ("HDF5", "mpi4py pickled", "mpi4py Send")
MEASURES = {"overhead_s": "overhead of two steps", "standby_s": "standby", "readiness_s": "readiness"}
FIGURES = {"nt3": "Figure 4: NT3", "resnet50": "Figure 5: ResNet-50", "densenet121": "Figure 6: DenseNet-121"}
PAPER = {
    ("nt3", "overhead_s"): "17x to 25x",
    ("nt3", "readiness_s"): "14x to 35x",
    ("resnet50", "overhead_s"): "more than 20x (HDF5), 10x (mpi4py)",
    ("resnet50", "readiness_s"): "more than 20x (HDF5), 10x (mpi4py)",
    ("densenet121", "overhead_s"): "up to 17x",
    ("densenet121", "readiness_s"): "up to 75x",
}
OVERHEAD_MIN_S = 0.001
"""Shorter overheads count as this long: they can't be told from none."""
NO_FACTOR = "ours too short to tell"
COLOURS = {OURS: "#1b6ca8", "HDF5": "#c9a227", "mpi4py pickled": "#a33b3b", "mpi4py Send": "#8a8f98"}
BUSY_LOAD = 3.0

Brought = dict[str, float]


@dataclass(frozen=True)
class DeepCloneSize:
    """Models to bring over, by the name of their scenario, and rounds of each."""

    models: dict[str, str]
    rounds: int


FULL = DeepCloneSize({name: name for name in FIGURES}, rounds=3)
QUICK = DeepCloneSize(dict.fromkeys(FIGURES, "nt3-small"), rounds=1)


@dataclass(frozen=True)
class DeepCloneHosts:
    """Two hosts, of which the first is the job's; a directory for each in which both see the same files."""

    hosts: list[JobNode]
    files: tuple[Path, Path]
    size: DeepCloneSize


def by_forebay(world: DeepCloneHosts, model: str) -> tuple[list[Brought], list[int]]:
    """Forks a job as often as there are rounds; returns times, and bytes that the job's host sent."""
    source, target = world.hosts
    ticket = source.shared / "ticket"
    found, sent = [], []
    words = program("host_model", model)
    with contextlib.ExitStack() as stack:
        trains = stack.enter_context(running(source, words))
        wait_for_steps(source, trains)
        serve = [str(FOREBAY), "clone", "serve", JOB, "--listen", source.address, "--ticket", str(ticket)]
        server = stack.enter_context(running(source, serve))
        assert server.stdout
        if not server.stdout.readline():
            raise ProgramError(server.communicate()[1])
        for _ in range(world.size.rounds):
            before = source.sent_bytes()
            asks = [str(FOREBAY), "clone", JOB, "--from", source.address, "--ticket", str(ticket), "--", *words]
            with start(target, asks) as clone:
                became = lines_of(clone, 1)[0]
            sent.append(source.sent_bytes() - before)
            point = lines_of(trains, 1)[0]
            if became["losses"] != point["losses"]:
                raise ProgramError(f"the clone goes on otherwise than the job: {became['losses']}, {point['losses']}")
            usual_s = statistics.mean(point["usual_s"])
            times = {"standby_s": became["ready_at"] - point["begun_at"], "readiness_s": became["ready_at"] - point["point_at"]}
            found.append({"overhead_s": point["two_s"] - 2 * usual_s, **times, "stall_s": point["stall_s"]})
    return found, sent


@contextlib.contextmanager
def running(host: JobNode, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program on a host until the block ends: then its input ends, and what stays is terminated."""
    with start(host, words, stdin=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            assert started.stdin
            started.stdin.close()
            if words[0] == str(FOREBAY):
                started.terminate()
            started.wait(PROGRAM_S)


def wait_for_steps(host: JobNode, trains: subprocess.Popen[str]) -> None:
    """Waits until the job trains.

    Raises:
        ProgramError: it has ended.
    """
    while not steps(host):
        if trains.poll() is not None:
            raise ProgramError(f"the job does not train: {trains.communicate()[1]}")


def by_others(world: DeepCloneHosts, model: str) -> tuple[dict[str, list[Brought]], int]:
    """Brings states over in the other ways; returns times, and bytes that the job's host sent for all of them."""
    source = world.hosts[0]
    for host in world.hosts:
        kept = {**host.environment, "OMP_NUM_THREADS": "1", "HDF5_USE_FILE_LOCKING": "FALSE"}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in kept.items()]
        (source.shared / f"variables.{host.name}").write_text("".join(lines))
    own = ["sh", "-c", f'. {source.shared}/variables.$(hostname) && exec "$@"', "sh"]
    addresses = ",".join(host.address for host in world.hosts)
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", remote_shell(world.hosts)]
    # Both hosts are on one machine, whose memory MPICH would use.
    mpiexec += ["-genv", "MPIR_CVAR_NOLOCAL", "1", "-genv", "UCX_TLS", "tcp", "-genv", "UCX_NET_DEVICES", "all"]
    words = program("host_ways", model, world.size.rounds, *world.files)
    before = source.sent_bytes()
    with source.start(
        [*mpiexec, "-hosts", addresses, "-ppn", "1", "-n", "2", *own, *words],
        environment(None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ranks:
        output, errors = ranks.communicate(timeout=PROGRAM_S * 4)
    if ranks.returncode:
        raise ProgramError(f"host_ways, exit code {ranks.returncode}: {errors[-2000:]}")
    found: dict[str, list[Brought]] = {way: [] for way in WAYS}
    for line in map(json.loads, output.splitlines()):
        found[line.pop("way")].append(line)
    sent = source.sent_bytes() - before
    if sent < sum(line["bytes"] for way, some in found.items() if way != "HDF5" for line in some):
        raise ProgramError(f"messages did not go over the link, which counted {sent:,} bytes")
    return found, sent


def bring(scenario: str, world: DeepCloneHosts, report: BenchReport) -> None:
    """Measures one model: forks, then the other ways, on the same two hosts."""
    model = world.size.models[scenario]
    mine, sent = by_forebay(world, model)
    report.note_load()
    others, sent_by_others = by_others(world, model)
    report.note_load()
    title = f"{scenario}: {model}, sgd, 1 rank, {RATE}"
    found: dict[str, list[Brought]] = {OURS: mine, **others}
    for way, times in found.items():
        for key, measure in MEASURES.items():
            report.time(What(title, f"{way}: {measure}", "s"), [one[key] for one in times])
    report.time(What(title, f"{OURS}: stall", "s"), [one["stall_s"] for one in mine])
    for way in WAYS:
        report.count(What(title, f"{way}: tensors that arrived wrong", "tensors", 0), [one["wrong"] for one in others[way]])
        for key, measure in MEASURES.items():
            own = statistics.median(one[key] for one in mine)
            theirs = statistics.median(one[key] for one in others[way])
            paper = PAPER.get((scenario, key), "")
            note = f"{theirs:.3f} s over {own:.3f} s" + (f"; the paper's over DeepClone: {paper}" if paper else "")
            report.once(What(title, f"{measure}: {way} over {OURS}", "x", None, OURS), theirs / max(own, OVERHEAD_MIN_S), note)
    note = "what a fork sent over the link; the other ways together " + f"{sent_by_others:,} bytes"
    report.time(What(title, f"{OURS}: sent by the job's host", "bytes"), [float(count) for count in sent], note)


SCENARIOS: dict[str, Callable[[DeepCloneHosts, BenchReport], None]] = {name: functools.partial(bring, name) for name in FIGURES}


@contextlib.contextmanager
def world(size: DeepCloneSize, place: Path) -> Iterator[DeepCloneHosts]:
    """Makes the hosts and their file system, and removes them."""
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(nodes(2, rate=RATE, where=str(place)))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fb-", dir=place)))
        cluster = stack.enter_context(gluster(root / "files", rate=RATE, clients=len(hosts)))
        yield DeepCloneHosts(hosts, (cluster.mounts[0], cluster.mounts[1]), size)


def page(figures: PaperFigures) -> list[str]:
    """Returns the table in Markdown: ours, the other ways over it, and the paper's factors."""
    lines = [row(["model, measure", OURS, *(f"{way}, over it" for way in WAYS), "the paper's"]), row(["---"] * (len(WAYS) + 3))]
    for scenario, title in FIGURES.items():
        for key, measure in MEASURES.items():
            own = figures.value(scenario, f"{OURS}: {measure}")
            over = [shown(figures.value(scenario, f"{measure}: {way} over {OURS}"), ".3g") for way in WAYS]
            if own is not None and own < OVERHEAD_MIN_S:
                over = [NO_FACTOR] * len(WAYS)
            name = f"{title.split(': ')[1]}: {measure}"
            lines.append(row([name, NOT_MEASURED if own is None else f"{own:.3f} s", *over, PAPER.get((scenario, key), "")]))
    return [*lines, "", figures.under]


def drawn(figures: PaperFigures) -> Figure:
    """Draws Figures 4 to 6: the three measures of each way, in seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(FIGURES))
    for panel, (scenario, title) in zip(panels, FIGURES.items(), strict=True):
        for number, (way, colour) in enumerate(COLOURS.items()):
            times = [max(0.0, figures.value(scenario, f"{way}: {measure}") or 0.0) for measure in MEASURES.values()]
            places = [group + (number - (len(COLOURS) - 1) / 2) * 0.2 for group in range(len(times))]
            panel.bar(places, times, 0.2, color=colour, label=way)
        panel.set_xticks(range(len(MEASURES)), ["overhead", "standby", "readiness"])
        panel.set_title(title)
        panel.set_ylabel("s")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False)
    return figure


def show(words: Sequence[str]) -> int:
    """Draws, and prints the table; returns exit code 0, or 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", required=True, help="print the table of docs/inside/papers.md")
    parser.add_argument("--figures", type=Path, default=OUT / "deepclone-hosts.json", help="what was measured (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "inside", help="directory for the drawing (default: %(default)s)")
    args = parser.parse_args(words)
    figures = PaperFigures(proven(parser, args.figures, "papers-deepclone-hosts"))
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "deepclone", "svg.fonttype": "none", "font.size": 8}):
        drawn(figures).savefig(args.into / "deepclone-hosts.svg", metadata={"Date": None})
    print("\n".join(page(figures)))
    return 0


BENCH = command.RootBench(
    "papers-deepclone-hosts",
    "deepclone-hosts",
    __doc__,
    (Part.FORKS, Part.PEERS),
    place=command.IN_MEMORY,
    place_help="directory of the hosts' files",
    lacks=have_gluster,
    load_max=BUSY_LOAD,
)


def main() -> int:
    """Measures, or shows what was measured with `--page`; returns the exit code."""
    if "--page" in sys.argv[1:]:
        return show(sys.argv[1:])
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
