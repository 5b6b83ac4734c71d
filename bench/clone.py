"""Measures forks of training jobs against their bars: `make bench-clone`, or some scenarios with --only.

All of it takes three to four hours on two cores. A call begins nothing new after half an hour; the next one measures
what is missing. Exit code 0: every bar is known to hold. 1: one is missed, undecided, or not measured.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forebay
from bench import clone_peers, command
from bench.clone_forks import MEMCPY_OF_FOUR_MAX, Forked, add, dropped, fork, listed, ready, there, wanted
from bench.clone_jobs import JOB, ForkNode, LaunchedRanks, node, ranks, torchrun
from bench.clone_peers import PEERS, TOLD, against
from bench.parts import Part
from bench.report import BenchReport, What, commit
from bench.session import PROGRAMS, ProgramError

MODELS = ("nt3", "resnet50", "resnet152", "densenet121")
OPTIMIZERS = ("sgd", "adamw")
CLONES = 4
ORDINARY_MAX = 1.01
EARLY_MODELS = ("nt3", "resnet50")
EARLY_FORKS = 3
EARLY_LEFT_MAX = 0.05
# Six ranks, an agent, and what looks after them.
LOAD_MAX = 8.0
NEEDED = ("torch", "torchvision", "safetensors", "h5py", "mpi4py")


@dataclass(frozen=True)
class CloneSize:
    """Numbers of forks, ranks and seconds to measure."""

    # Of each job, and rounds of ways.
    forks: int
    # Of a source, and of its clone.
    ranks: tuple[int, ...]
    # A sample of ordinary steps is a mean over so many seconds of them.
    seconds: float
    # The model with one huge layer.
    nt3: str = "nt3"


FULL = CloneSize(forks=10, ranks=(1, 2, 3), seconds=2.0)
QUICK = CloneSize(forks=2, ranks=(1, 2), seconds=0.5, nt3="nt3-small")


@dataclass(frozen=True)
class CloneBench:
    """Where peers' files lie, and how much is measured."""

    place: Path
    size: CloneSize

    def model(self, name: str) -> str:
        """As clone_models.py names it."""
        return self.size.nt3 if name == "nt3" else name


def of_model(name: str, optimizer: str, world: CloneBench, report: BenchReport) -> None:
    """Forks of a model's jobs with an optimizer, by number of ranks."""
    for count in world.size.ranks:
        scenario = f"{name}-{optimizer}: {count} + {count} ranks"
        with job(world, world.model(name), optimizer, count) as (here, source, clones):
            add(report, scenario, forks(world, report, scenario, here, source, clones, count))


def four(world: CloneBench, report: BenchReport) -> None:
    """Four clones of one rank each, from one fork point."""
    for name in MODELS:
        for optimizer in OPTIMIZERS:
            scenario = f"four: {name}, {optimizer}, {CLONES} clones"
            with job(world, world.model(name), optimizer, 1, CLONES) as (here, source, clones):
                found = forks(world, report, scenario, here, source, clones, 1, further=False)
            report.count(
                What(scenario, "entries that differ at the fork, in all clones", "entries", 0), [one.differing for one in there(found)]
            )
            ready(report, scenario, found, MEMCPY_OF_FOUR_MAX)


def small(world: CloneBench, report: BenchReport) -> None:
    """Compares the same bytes in 320 tensors and in 10, alternately."""
    many: list[Forked] = []
    few: list[Forked] = []
    scenario = "small: 102 MiB in 320 tensors"
    with job(world, "tensors-320", "sgd", 1) as of_many, job(world, "tensors-10", "sgd", 1) as of_few:
        for number in range(world.size.forks):
            turns = [(many, of_many), (few, of_few)]
            for found, (here, source, clones) in turns if number % 2 == 0 else reversed(turns):
                found += wanted(1, functools.partial(fork, here, source, clones, 1, further=False))
            report.note_load()
    ours, others = ([one.readiness_s for one in there(found)] for found in (many, few))
    dropped(report, scenario, len(many) - len(ours), len(many))
    note = f"ms: {listed(ours)}; in 10, ms: {listed(others)}"
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    report.time(What(scenario, "readiness over that of the same bytes in 10", "x", 1.0, "in 10"), ratios, note)


def ordinary(world: CloneBench, report: BenchReport) -> None:
    """Compares steps without a fork, of a job that has been forked, with those of the same job without a session."""
    for name in ("nt3", "resnet50"):
        for optimizer in OPTIMIZERS:
            model = world.model(name)
            scenario = f"ordinary: {name}, {optimizer}, steps without a fork"
            with job(world, model, optimizer, 1) as (here, source, clones):
                # What is only made ready at the first fork is there from now on.
                fork(here, source, clones, 1)
                told = {"pairs": world.size.forks, "seconds": world.size.seconds, "model": model, "optimizer": optimizer}
                found = source.ask(op="turns", **told)[0]
                report.note_load()
            ratios = [mine / plain for mine, plain in zip(found["mine"], found["plain"], strict=True)]
            note = f"ms a step: {listed(found['mine'])}; without, ms: {listed(found['plain'])}"
            what = What(scenario, "time of a step over one without a session", "x", ORDINARY_MAX, "the same job without a session")
            report.time(what, ratios, note)


def ablation(world: CloneBench, report: BenchReport) -> None:
    """Each part of the state left out once."""
    words = [sys.executable, str(PROGRAMS / "clone_ablation.py"), str(world.size.forks)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    scenario = "ablation: each part of the state left out once"
    note = f"{found[0]['parts']} parts a fork; not caught: {named(found, 'not_caught')}"
    report.count(What(scenario, "parts that the digests do not miss", "parts", 0), [len(one["not_caught"]) for one in found], note)
    report.count(What(scenario, "kinds that are not asked for", "kinds", 0), [len(one["not_asked_for"]) for one in found])
    note = f"they are {named(found, 'not_in_the_losses')}"
    report.count(
        What(scenario, "parts that five further losses would not show", "parts"), [len(one["not_in_the_losses"]) for one in found], note
    )


def named(found: list[dict[str, Any]], what: str) -> str:
    """In all forks together."""
    return ", ".join(sorted({path for one in found for path in one[what]})) or "none"


def peers(world: CloneBench, report: BenchReport) -> None:
    """Other ways, each with and without digests, for one huge layer and for many small tensors."""
    ways = [(way, digest) for way in (*PEERS, *TOLD) for digest in (False, True)]
    for name, optimizer in (("nt3", "sgd"), ("resnet50", "adamw")):
        scenario = f"peers: {name}, {optimizer}, 2 + 2 ranks"
        with node(world.place) as here:
            found = clone_peers.measure(here, report, scenario, world.model(name), optimizer, ways, world.size.forks)
        against(report, scenario, found)


def early(world: CloneBench, report: BenchReport) -> None:
    """The part of a state that Keras on TensorFlow has copied when the step before the fork ends."""
    kept = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in EARLY_MODELS:
        scenario = f"early: {name}, Keras on TensorFlow, sgd"
        words = [sys.executable, "-m", "bench.programs.keras_early", name]
        pipe = subprocess.PIPE
        with (
            node(world.place, variables=kept) as here,
            subprocess.Popen(words, env=here.environment, stdin=pipe, stdout=pipe, text=True) as trains,
        ):
            assert trains.stdin
            assert trains.stdout
            found = []
            first = trains.stdout.readline()
            for _ in range(min(world.size.forks, EARLY_FORKS) if first else 0):
                clone = [str(forebay.command()), "clone", JOB, "--", *words]
                done = subprocess.run(clone, env=here.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if done.returncode:
                    trains.kill()
                    raise ProgramError(done.stderr)
                found.append(json.loads(trains.stdout.readline()))
                report.note_load()
                print(f"{scenario}: {found[-1]}", flush=True)
            trains.stdin.close()
        if not found:
            raise ProgramError(f"{scenario}: the job does not train")
        note = f"{found[0]['marked'] >> 20} MiB of variables of 64 KiB and more; a step, ms: {listed([one['step_s'] for one in found])}"
        left = [1 - one["early"] / one["marked"] for one in found]
        report.count(What(scenario, "bytes that are left to copy at the step's end", "x", EARLY_LEFT_MAX), left, note)


SCENARIOS: dict[str, Callable[[CloneBench, BenchReport], None]] = {
    **{f"{name}-{optimizer}": functools.partial(of_model, name, optimizer) for name in MODELS for optimizer in OPTIMIZERS},
    "four": four,
    "small": small,
    "ordinary": ordinary,
    "ablation": ablation,
    "peers": peers,
    "early": early,
}


@contextlib.contextmanager
def job(
    world: CloneBench, model: str, optimizer: str, count: int, clones: int = 0
) -> Iterator[tuple[ForkNode, LaunchedRanks, LaunchedRanks]]:
    """A source of `count` ranks that has trained a step, and its clone, or `clones` clones, that stand by."""
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(node(world.place))
        source = stack.enter_context(ranks(here, count, torchrun(count, "source", model, optimizer)))
        alone = ["--alone"] if clones else []
        standing_by = stack.enter_context(ranks(here, clones or count, torchrun(clones or count, "clone", model, optimizer, *alone)))
        source.ask(op="run", steps=1)
        yield here, source, standing_by


def forks(
    world: CloneBench,
    report: BenchReport,
    scenario: str,
    here: ForkNode,
    source: LaunchedRanks,
    clones: LaunchedRanks,
    count: int,
    *,
    further: bool = True,
) -> list[Forked]:
    """Returns the forks to be measured, and those that were dropped; `further` as for `fork`."""

    def one() -> Forked:
        found = fork(here, source, clones, count, further=further)
        report.note_load()
        print(f"{scenario}: {'a fork' if found.clones else 'a fork was dropped'}", flush=True)
        return found

    return wanted(world.size.forks, one)


def lacking(target: str, needed: Iterable[str]) -> str | None:
    """Returns why this can't be measured here, with the `make` target that installs what is missing; None if it can."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing and shutil.which("mpiexec", path=str(Path(sys.executable).parent)) is None:
        missing = ["mpiexec"]
    return f"missing: {', '.join(missing)} (make {target} installs them)" if missing else None


def measure_all(target: str, description: str | None, scenarios: dict[str, Callable[[CloneBench, BenchReport], None]]) -> int:
    """Measures the scenarios of a `make` target, prints their table and returns the exit code."""
    parser = command.parser(description, scenarios)
    memory = "/dev/shm"  # noqa: S108
    parser.add_argument("--place", type=Path, default=Path(memory), help="directory for the peers' files (default: %(default)s, memory)")
    args = parser.parse_args()
    if not args.place.is_dir():
        parser.error(f"--place {args.place}: there is no such directory")
    report = BenchReport(target.partition("-")[2], tuple(scenarios), quick=args.quick, commit=commit((Part.FORKS,)), load_max=LOAD_MAX)
    wanted = command.wanted(parser, args.only, report)
    if reason := lacking(target, (*NEEDED, *(["tensorflow"] if "early" in wanted else []))):
        print(f"{target}: {reason}", file=sys.stderr)
        return 1
    if args.quick:
        print("quick: to see that all works; it proves nothing")
    world = CloneBench(args.place, QUICK if args.quick else FULL)
    return command.run(report, wanted, scenarios, contextlib.nullcontext(world), args.minutes)


if __name__ == "__main__":
    sys.exit(measure_all("bench-clone", __doc__, SCENARIOS))
