"""The Monarch paper's evaluation, reproduced in kind: `make papers-monarch`, or some scenarios with --only. Needs root.

Three models in two frameworks, for three epochs each: as the program is; under Forebay with a tier that holds all, and
with one that holds 60 % as the paper's did (119 of 200 GiB); copied first by rsync; through an rclone mount with a full
VFS cache. All of it takes about 50 minutes. A call begins nothing new after half an hour; the next one measures what is
missing. Exit code 0: every bar is known to hold. 1: one is missed, undecided, or not measured.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import command
from bench.parts import Part
from bench.report import BenchReport, What, commit
from bench.session import hand_over_hand, program, session
from bench.world import TieringBench, TieringSize, world
from papers.monarch_jobs import EPOCHS, PART, MonarchRun, TrainingJob, Ways, arms
from papers.monarch_rows import REPEATED, TrainingRows
from testbed import datasets
from testbed.testbed import have_gluster

FULL = TieringSize(files=5_000, shards=128, pairs=3, runs=8)
QUICK = TieringSize(files=650, shards=26, pairs=1, runs=1)
# As large as ImageNet's.
PICTURE_KB = 110
# Half of what the other benchmarks have: client and servers share two cores with the training, and what is waited for
# shall be the source.
RATE = "200mbit"
FRAMEWORKS = ("tensorflow", "pytorch")
MODELS = ("lenet", "alexnet", "resnet")
COMPUTE_BOUND = "resnet"
# It trains with a part of the data: each of its steps takes many times as long.
COMPUTE_BOUND_PART = 8
COMPUTE_BOUND_MAX = 1.01
TURNS = "epochs of the program as it is and under Forebay, alternately"


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for data and tiers (default: %(default)s)")  # noqa: S108
    parser.add_argument("--target", type=Path, help="measure the build in this Cargo target directory instead of the installed package")
    args = parser.parse_args()
    if reason := lacking():
        print(f"papers-monarch: {reason}", file=sys.stderr)
        return 1
    command.hide("papers.monarch")
    report = BenchReport("monarch", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.TIERING,)), load_max=LOAD_MAX)
    wanted = command.wanted(parser, args.only, report)
    size = QUICK if args.quick else FULL
    if args.quick:
        print("quick: to see that all works; it proves nothing")
    return command.run(report, wanted, SCENARIOS, world(size, args.place, args.target, prepare=labelled, rate=RATE), args.minutes)


def lacking() -> str | None:
    """Why this can't be measured here; None where it can."""
    if reason := have_gluster():
        return reason
    if missing := [tool for tool in ("rclone", "rsync") if shutil.which(tool) is None]:
        return f"missing: {', '.join(missing)} (Debian: {' '.join(missing)})"
    if missing := [name for name in ("tensorflow", "torch") if importlib.util.find_spec(name) is None]:
        return f"missing: {', '.join(missing)} (make papers-monarch installs them)"
    return None


def labelled(local: Path, size: TieringSize) -> None:
    """Pictures, each in the directory of the photograph that it is cut out of, which is its class.

    And TFRecord shards of the same.
    """
    datasets.photos(local / "files", size.files, size_kb=PICTURE_KB, per_dir=None)
    subprocess.run(program("pack_records", local / "files", local / "shards", size.shards), check=True)


def measure(framework: str, model: str, world: TieringBench, report: BenchReport) -> None:
    """All rounds of a job."""
    ways = Ways(world, job_of(framework, model, world))
    rounds: list[dict[str, MonarchRun]] = []
    for number in range(world.size.pairs if model in REPEATED else 1):
        found: dict[str, MonarchRun] = {}
        for arm in arms(model, number, quick=report.quick):
            print(f"{ways.job.name}: round {number + 1}, {arm}", flush=True)
            found[arm] = ways.run(arm)
            report.note_load()
        rounds.append(found)
    TrainingRows(ways.job, rounds, report).add()
    if model == COMPUTE_BOUND:
        in_turns(ways, report)


def job_of(framework: str, model: str, world: TieringBench) -> TrainingJob:
    """The data that belong to it: shards for TensorFlow, files for PyTorch."""
    shards = world.shards, world.local_shards, world.size.shards
    source, local, count = shards if framework == "tensorflow" else (world.files, world.local_files, world.size.files)
    classes = 1 + max(int(directory.name) for directory in world.local_files.iterdir())
    return TrainingJob(framework, model, source, local, classes, count // COMPUTE_BOUND_PART if model == COMPUTE_BOUND else None)


def in_turns(ways: Ways, report: BenchReport) -> None:
    """A compute-bound job, half an epoch by each name at a time: processes differ from each other by more than the bar.

    A process under Forebay reads by the source's name, and by one that is foreign to Forebay. Each epoch of three, with
    an empty tier at first, is a sample.
    """
    world, job = ways.world, ways.job
    roots = job.source, world.as_it_is(job.source)
    ratios: list[float] = []
    shorter: list[float] = []
    for number in range(world.size.runs):
        print(f"{job.name}: in turns, {number + 1} of {world.size.runs}", flush=True)
        with ways.tier() as (tier, words), session(world, words, tier) as running:
            for epoch in range(1, EPOCHS + 1):
                mine, plain = hand_over_hand(running, roots, epoch, -(-len(job.sizes) // 2))
                ratios.append(mine.seconds / plain.seconds)
                shorter.append(plain.seconds - mine.seconds)
        report.note_load()
    scenario = f"{job.name}: {TURNS}"
    note = f"epochs 1 to {EPOCHS} of {world.size.runs} runs; {PART}"
    report.time(What(scenario, "time", "x", COMPUTE_BOUND_MAX, "the same process, by a foreign name"), ratios, note)
    report.time(What(scenario, "an epoch under Forebay is shorter by", "s"), shorter)


# GlusterFS's client and servers, and the training, share two cores: up to 4 by themselves.
LOAD_MAX = 5.0
SCENARIOS: dict[str, Callable[[TieringBench, BenchReport], None]] = {
    f"{framework}-{model}": functools.partial(measure, framework, model) for model in MODELS for framework in FRAMEWORKS
}


if __name__ == "__main__":
    sys.exit(main())
