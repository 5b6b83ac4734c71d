"""Rows that `bench.wheels` measures of two wheels: opens, starts, the agent's CPU, a fork, and CPU of a sample."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import loader_small
from bench.clone_forks import fork
from bench.clone_jobs import node, ranks
from bench.loader_world import InMemory, start
from bench.micro import FOREIGN, compiled, instructions
from bench.report import BenchReport, What
from bench.session import PROGRAMS, ProgramError, program, run_once, session, tiered_by
from bench.world import TierDirectory, empty_tier

# More than fit are never asked for.
QUOTA = 1 << 30
MODEL, OPTIMIZER = "nt3-small", "adamw"
BATCH, IMAGES_A_BATCH, THREADS = 256, 64, 2
WIDTH, HEIGHT, QUALITY = 640, 480, 90
# A file that was changed within the last two whole seconds is not copied.
SETTLED_AFTER_S = 3.0


class WheelSize(NamedTuple):
    """Numbers of runs and samples to measure."""

    pairs: int
    # Measurements of which the least is a figure: whatever else the machine does only adds to a cost.
    least_of: int
    # Files that are opened by one process, and rounds of them.
    opened: int
    rounds: int
    # Files that an agent copies.
    copied: int
    # Samples of 4 KiB.
    rows: int
    images: int


FULL = WheelSize(pairs=12, least_of=5, opened=1_000, rounds=40, copied=500, rows=65_536, images=480)
QUICK = WheelSize(pairs=2, least_of=1, opened=100, rounds=10, copied=100, rows=8_192, images=64)
# Pairs that one pair of processes gives. Two processes that are alike in all but their number can differ in what they
# take, so there are several of them; and each of them first imports torch, which takes longer than what is measured.
TURNS = 3
# An agent takes a second to begin and to end, so of it there are fewer measurements in a figure.
AGENTS_MAX = 3


@dataclass(frozen=True)
class Wheel:
    """An installation below a directory of its own."""

    name: str
    root: Path

    @property
    def command(self) -> Path:
        """Its command."""
        return self.root / "bin/forebay"

    @property
    def variables(self) -> dict[str, str]:
        """Variables that make a program import this wheel's package."""
        return {"PYTHONPATH": str(self.root)}


@dataclass(frozen=True)
class WheelBench:
    """Two wheels, places for data, and how much is measured."""

    place: Path
    memory: Path
    # The old one first.
    wheels: tuple[Wheel, Wheel]
    bar: float
    size: WheelSize

    @cached_property
    def small_files(self) -> Path:
        """Files of 1 KiB on the local disk, old enough to be copied."""
        return self._files("small", self.size.opened, 1 << 10)

    @cached_property
    def files(self) -> Path:
        """Files of 30 KiB on the local disk, old enough to be copied."""
        return self._files("files", self.size.copied, 30 << 10)

    def _files(self, name: str, count: int, length: int) -> Path:
        path = self.place / name
        path.mkdir()
        for number in range(count):
            (path / f"{number:06d}").write_bytes(os.urandom(length))
        # What is not on the disk yet may still change.
        os.sync()
        time.sleep(SETTLED_AFTER_S)
        return path

    @cached_property
    def jpegs(self) -> Path:
        """Made-up pictures as large as photographs, in memory."""
        from PIL import Image

        path = self.memory / "jpegs" / "0"
        path.mkdir(parents=True)
        draw = np.random.default_rng(0)
        for number in range(self.size.images):
            coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            grain = draw.integers(-12, 13, (HEIGHT, WIDTH, 3))
            out = io.BytesIO()
            Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(out, "jpeg", quality=QUALITY)
            (path / f"{number:06d}.jpg").write_bytes(out.getvalue())
        return path.parent

    @cached_property
    def rows(self) -> Path:
        """Rows of 4 KiB in memory."""
        path = self.memory / "rows"
        loader_small.write(path, self.size.rows)
        return path


class Figure(NamedTuple):
    """A cost of which new over old is a row, with a bar or for information."""

    metric: str
    unit: str
    has_bar: bool = True


# Measures once, and gives figures by key.
Measure = Callable[[], Mapping[str, float]]


def by_turns(
    world: WheelBench,
    report: BenchReport,
    scenario: str,
    figures: Mapping[str, Figure],
    running: Callable[[Wheel], contextlib.AbstractContextManager[Measure]],
) -> None:
    """Measures pairs, and adds a row for each figure.

    `running` starts what a wheel is measured by, again after each `TURNS` pairs.
    """
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for first in range(0, world.size.pairs, TURNS):
        with contextlib.ExitStack() as stack:
            measures = [stack.enter_context(running(wheel)) for wheel in world.wheels]
            for pair in range(first, min(first + TURNS, world.size.pairs)):
                for which in (0, 1) if pair % 2 == 0 else (1, 0):
                    for key, value in measures[which]().items():
                        found[key][which].append(value)
                report.note_load()
                print(f"{scenario}: pair {pair + 1} of {world.size.pairs}", flush=True)
    for key, figure in figures.items():
        old, new = found[key]
        note = f"{figure.unit}: old {statistics.median(old):.4g}, new {statistics.median(new):.4g}"
        what = What(scenario, figure.metric, "x", world.bar if figure.has_bar else None, "the old wheel")
        report.time(what, [mine / theirs for theirs, mine in zip(old, new, strict=True)], note)


def least(count: int, one: Measure) -> Mapping[str, float]:
    """Returns the least of each figure over `count` measurements."""
    found = [one() for _ in range(count)]
    return {key: min(each[key] for each in found) for key in found[0]}


def opens(world: WheelBench, report: BenchReport) -> None:
    """An open that a copy answers, and a foreign one, over the same opens without the library in the same process."""
    open_cost, source = compiled(world.place, "open_cost"), world.small_files

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        with empty_tier(world.place, kept=True) as tier:
            words = [str(open_cost), str(source), str(tier.dir), FOREIGN, str(world.size.rounds)]

            def measure() -> dict[str, float]:
                rounds, _ = run_once(InMemory(), tiered_by(wheel.command, tier, QUOTA, "immutable", words, source), tier)
                return {kind: statistics.median(each[kind] / each[plain] for each in rounds) for kind, plain in OVER.items()}

            yield measure

    figures = {kind: Figure(name, "over the same without the library") for kind, name in OPENS.items()}
    by_turns(world, report, f"open: {world.size.opened:,} files, CPU of opening and closing, or of asking", figures, running)


OVER = {"hit": "copy", "relative": "copy", "foreign": "plain", "stat_hit": "stat_copy", "stat_foreign": "stat_plain"}
OPENS = {
    "hit": "an open that hits, absolute path",
    "relative": "an open that hits, relative path",
    "foreign": "a foreign open",
    "stat_hit": "a stat that a copy answers",
    "stat_foreign": "a foreign stat",
}


def starts(world: WheelBench, report: BenchReport) -> None:
    """Instructions of a process that does nothing, and of opens, as callgrind counts them.

    The kernel's are not among them.
    """
    small, source = compiled(world.place, "start"), world.small_files
    cached = [str(path) for path in sorted(source.iterdir())[: world.size.opened // 10]]

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        with empty_tier(world.place, kept=True) as tier:
            read_all(wheel, tier, source)

            def counted(*arguments: str) -> int:
                words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(small), *arguments]
                return instructions(tiered_by(wheel.command, tier, QUOTA, "immutable", words, source), tier)

            def measure() -> dict[str, float]:
                nothing = counted()
                hits, foreign = (counted(*paths) - nothing for paths in (cached, [FOREIGN] * len(cached)))
                return {"start": nothing, "hit": hits / len(cached), "foreign": foreign / len(cached)}

            yield measure

    figures = {
        "start": Figure("start of a process that does nothing", "instructions"),
        "hit": Figure("an open that hits, without its system calls", "instructions", has_bar=False),
        "foreign": Figure("a foreign open, without its system call", "instructions", has_bar=False),
    }
    by_turns(world, report, "start: instructions of a process", figures, running)


def read_all(wheel: Wheel, tier: TierDirectory, source: Path) -> float:
    """Has the tier hold a copy of each file; returns the CPU seconds that the agent took for it.

    Raises:
        ProgramError: a file was not copied.
    """
    words = tiered_by(wheel.command, tier, QUOTA, "immutable", program("read_files", source, "--step"), source)
    with session(InMemory(), words, tier) as running:
        assert running.agent
        pid = running.agent.pid()
        if pid is None:
            raise ProgramError("there is no agent")
        before = cpu_s_of(pid)
        running.step()
        running.agent.settle()
        taken_s = cpu_s_of(pid) - before
        running.end()
    if (copies := len(tier.files())) < running.first["files"]:
        raise ProgramError(f"{copies} of {running.first['files']} files were copied")
    return taken_s


def agent(world: WheelBench, report: BenchReport) -> None:
    """The agent's CPU in a first epoch of files, into an empty tier each time."""
    source = world.files

    def one(wheel: Wheel) -> dict[str, float]:
        with empty_tier(world.place, kept=True) as tier:
            return {"agent": 1e6 * read_all(wheel, tier, source) / world.size.copied}

    def measure(wheel: Wheel) -> Mapping[str, float]:
        return least(min(AGENTS_MAX, world.size.least_of), functools.partial(one, wheel))

    figures = {"agent": Figure("the agent's CPU a file", "us")}
    scenario = f"agent: {world.size.copied:,} files of 30 KiB"
    by_turns(world, report, scenario, figures, lambda wheel: contextlib.nullcontext(functools.partial(measure, wheel)))


def cpu_s_of(pid: int) -> float:
    """Returns the CPU seconds of a process so far."""
    # The number of the clock that counts a process's CPU: linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK with
    # CPUCLOCK_SCHED.
    return time.clock_gettime(~pid << 3 | 2)


def forks(world: WheelBench, report: BenchReport) -> None:
    """Forks of a small model's job of one rank into a clone of one rank."""
    # One rank needs no launcher.
    alone = {"RANK": "0", "WORLD_SIZE": "1"}

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(node(world.memory, wheel.command, wheel.variables | alone))
            source, clone = (
                stack.enter_context(ranks(here, 1, [sys.executable, str(PROGRAMS / "clone_rank.py"), role, MODEL, OPTIMIZER]))
                for role in ("source", "clone")
            )
            source.ask(op="run", steps=1)

            def one() -> dict[str, float]:
                found = fork(here, source, clone, 1, digest=False, further=False)
                return {name: 1e3 * getattr(found, name) for name in figures}

            # It makes ready what later ones find.
            one()
            yield functools.partial(least, world.size.least_of, one)

    figures = {
        "stall_s": Figure("a fork's stall, wall time", "ms"),
        "cpu_s": Figure("a fork's CPU in the training process", "ms"),
        "agent_s": Figure("a fork's CPU in the agent", "ms", has_bar=False),
    }
    by_turns(world, report, f"fork: {MODEL}, {OPTIMIZER}, 1 + 1 ranks", figures, running)


def rows(how: str, world: WheelBench, report: BenchReport) -> None:
    """CPU of a sample of 4 KiB, of agent and rank together, once all of them are in the agent's memory."""
    size = world.size.rows * loader_small.ROW_BYTES
    settings = json.dumps({"memory_bytes": size + size // 8})

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        with contextlib.ExitStack() as stack:
            words = program("loader_small", world.rows, "--step", "--how", how, "--batch", BATCH, "--threads", 1, "--agent", settings)
            program_of, here = start(stack, InMemory(), words, wheel.variables)
            # What was read to be kept and is there.
            for _ in range(2):
                program_of.step()

            def one() -> dict[str, float]:
                before = here.agent_cpu_s()
                said = program_of.step()
                return {"cpu": 1e6 * (here.agent_cpu_s() - before + said["cpu_s"]) / said["samples"]}

            yield functools.partial(least, world.size.least_of, one)

    scenario = f"{how}: {world.size.rows:,} samples of 4 KiB in memory, {loader_small.HOW[how]}"
    by_turns(world, report, scenario, {"cpu": Figure("CPU a sample, agent and rank", "us")}, running)


def images(world: WheelBench, report: BenchReport) -> None:
    """CPU of an image, from a file in memory to a batch."""

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        with contextlib.ExitStack() as stack:
            options = ["--loader", "forebay", "--batch", IMAGES_A_BATCH, "--threads", THREADS]
            program_of, _ = start(stack, InMemory(), program("loader_pipelines", world.jpegs, "--step", *options), wheel.variables)
            # What is done but once belongs to no image.
            program_of.step()

            def one() -> dict[str, float]:
                said = program_of.step()
                return {"cpu": 1e3 * said["cpu_s"] / said["images"]}

            yield functools.partial(least, world.size.least_of, one)

    scenario = f"image: {world.size.images} JPEGs in memory, random-resized crop to 224, flip"
    by_turns(world, report, scenario, {"cpu": Figure("CPU an image", "ms")}, running)


SCENARIOS: dict[str, Callable[[WheelBench, BenchReport], None]] = {
    "open": opens,
    "start": starts,
    "agent": agent,
    "fork": forks,
    "rows": functools.partial(rows, "rows"),
    "decode": functools.partial(rows, "decode"),
    "image": images,
}
