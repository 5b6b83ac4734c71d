"""A state brought over by Forebay and in other ways, alternately."""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.clone_forks import fork, listed, there, wanted
from bench.clone_jobs import ForkNode, LaunchedRanks, LineRanks, ranks
from bench.report import BenchReport, What
from bench.session import PROGRAMS

OURS = "Forebay"
# As clone_ways.py names them.
PEERS = ("mpi4py Send", "gloo", "torch.save", "safetensors", "HDF5", "DCP", "DCP async")
# Told, and no bar: the source has to wait until its memory was read.
TOLD = ("process_vm_readv",)
RANKS = 2


@dataclass(frozen=True)
class Brought:
    """A state that was brought over: the paper's three measures, in seconds; and tensors whose digests were wrong."""

    overhead_s: float
    standby_s: float
    readiness_s: float
    wrong: int = 0


def measure(
    node: ForkNode, report: BenchReport, scenario: str, model: str, optimizer: str, ways: Sequence[tuple[str, bool]], rounds: int
) -> dict[tuple[str, bool], list[Brought]]:
    """Rounds of Forebay's way and these, each with or without digests, in an order that goes round."""
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    launch = [mpiexec, "-launcher", "fork", "-genv", "MPI4PY_RC_THREAD_LEVEL", "funneled", "-n", str(2 * RANKS)]
    words = [*launch, sys.executable, str(PROGRAMS / "clone_peer.py"), str(node.place), model, optimizer]
    each = [(OURS, True), *ways]
    found: dict[tuple[str, bool], list[Brought]] = {way: [] for way in each}
    with ranks(node, 2 * RANKS, words) as all_of_them:
        source, clones = halves(all_of_them)
        source.ask(op="run", steps=1)
        for number in range(rounds):
            turn = number % len(each)
            for way, digest in [*each[turn:], *each[:turn]]:
                found[way, digest].append(ours(node, source, clones) if way == OURS else bring(source, clones, way, digest=digest))
            report.note_load()
            print(f"{scenario}: round {number + 1} of {rounds}", flush=True)
    return found


def halves(all_of_them: LaunchedRanks) -> tuple[LineRanks, LineRanks]:
    """The source, and the clone."""
    return all_of_them.part(range(RANKS)), all_of_them.part(range(RANKS, 2 * RANKS))


def ours(node: ForkNode, source: LineRanks, clones: LineRanks) -> Brought:
    """By a fork; by another one, if it is dropped."""
    found = wanted(1, functools.partial(fork, node, source, clones, RANKS, digest=False, further=False))
    clone = there(found)[0]
    return Brought(found[-1].overhead_s, clone.standby_s, clone.readiness_s)


def bring(source: LineRanks, clones: LineRanks, way: str, *, digest: bool) -> Brought:
    """In another way."""
    waits_for_word = clones.ask(op="take", way=way, digest=digest)[0]["waits_for_word"]
    source.tell(op="give", way=way, digest=digest)
    if waits_for_word:
        source.hear_first()
        clones.tell(go=True)
    runs, took = source.hear(), clones.hear()
    # As Peer.give has it: a step, beside which a receiver of MPI's may be spinning, the one at whose end the state is
    # given, the next; and others, the first of which may still meet a reader.
    plain = [statistics.mean(step["seconds"] for step in run["steps"][-2:]) for run in runs]
    two = [run["steps"][1]["seconds"] + run["steps"][2]["seconds"] for run in runs]
    given = max(run["steps"][1]["point"] for run in runs)
    ready = max(one["ready"] for one in took)
    # Who reads a file need not be there before it is written; who receives a message has to be there when it is sent.
    alive = min(one["begun"] for one in took) if waits_for_word else given
    overhead_s = max(both - 2 * one for both, one in zip(two, plain, strict=True))
    return Brought(overhead_s, ready - alive, ready - given, sum(one["wrong"] for one in took))


def called(way: tuple[str, bool]) -> str:
    """In a row."""
    name, digest = way
    return f"{name}, with digests" if digest and name != OURS else name


def against(report: BenchReport, scenario: str, found: dict[tuple[str, bool], list[Brought]]) -> None:
    """Rows: readiness against each, and the paper's measures of all."""
    mine = [one.readiness_s for one in found[OURS, True]]
    for way, others in found.items():
        if way == (OURS, True):
            continue
        theirs = [one.readiness_s for one in others]
        note = f"ms: {listed(mine)}; theirs, ms: {listed(theirs)}"
        bar = None if way[0] in TOLD else 1.0
        what = What(scenario, f"readiness, verification included, over {called(way)}", "x", bar, called(way))
        report.time(what, [one / other for one, other in zip(mine, theirs, strict=True)], note)
        if way[1]:
            report.count(What(scenario, f"{called(way)}: tensors that arrived wrong", "tensors", 0), [one.wrong for one in others])
    told(report, scenario, found)


def told(report: BenchReport, scenario: str, found: dict[tuple[str, bool], list[Brought]]) -> None:
    """Rows: the paper's three measures, of each way."""
    for way, some in found.items():
        report.time(What(scenario, f"{called(way)}: overhead of the two steps", "s"), [one.overhead_s for one in some])
        report.time(What(scenario, f"{called(way)}: standby", "s"), [one.standby_s for one in some])
        report.time(What(scenario, f"{called(way)}: readiness", "s"), [one.readiness_s for one in some])
