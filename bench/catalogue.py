"""An agent whose tier holds 1.3 million copies: what it takes of memory, and what taking them over costs a program."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import ROOT, BenchReport, What
from bench.session import BenchSession, ProgramError, program, session, tiered
from bench.world import TierDirectory, TieringBench

SCENARIO = "catalogue: agent with {:,} files catalogued"
RESIDENT_MIB_MAX = 300
# Recovery must not delay a program; less than this counts as no delay. Where a program uses every core, what the agent
# takes is what the program lacks: a fiftieth of a core of the two is a hundredth of the time.
START_S_MAX = 0.05
TIME_MAX = 1.02
CORES_MAX = 0.02
QUOTA = 64 << 30
# Within its budget of a fiftieth of a processor.
ADOPTED_S = 1200.0
# Of one half of a sample: short, so that the machine's moods reach both halves.
TURNS = 10
# An epoch of so few is over in a quarter of a second, and recovery may last for only a few seconds.
FILES = 250


def catalogue(world: TieringBench, report: BenchReport) -> None:
    """Memory, starts, and a busy program beside an agent that recovers copies."""
    scenario = SCENARIO.format(world.size.catalogued)
    with world.tier() as warm, world.tier() as empty:
        fill(world, warm)
        report.note_load()
        resident(world, warm, scenario, report)
        starts(world, warm, empty, scenario, report)
        beside(world, warm, scenario, report)


def fill(world: TieringBench, tier: TierDirectory) -> None:
    """Copies as earlier runs would have left them, made by the store itself."""
    begun = time.monotonic()
    example = ["cargo", "run", "--locked", "--quiet", "--release", "-p", "forebay-store", "--example", "fill_catalogue", "--"]
    source, fs_type = mounted_on(world.cluster.mnt)
    words = [tier.dir, tier.state, world.cluster.mnt / "imagenet", source, fs_type, world.size.catalogued]
    subprocess.run([*example, *map(str, words)], cwd=ROOT, check=True)
    print(f"catalogue: {world.size.catalogued:,} copies after {time.monotonic() - begun:.0f} s", flush=True)


def mounted_on(mount: Path) -> tuple[str, str]:
    """Returns device and type of the file system mounted there, as the agent tells mounts apart."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        front, _, back = line.partition(" - ")
        if front.split(" ")[4] == str(mount):
            fs_type, source = back.split(" ")[:2]
            return source, fs_type
    raise ProgramError(f"nothing is mounted on {mount}")


def resident(world: TieringBench, tier: TierDirectory, scenario: str, report: BenchReport) -> None:
    """Memory of the agent once all copies are recovered, its part of shared memory included."""
    world.drop_caches()
    with session(world, command(world, tier), tier) as running:
        adopted_after_s = wait_for_adoption(running, world.size.catalogued)
        assert running.agent
        mib = running.agent.memory()
        ended_at = time.monotonic()
        running.end()
        ended_after_s = time.monotonic() - ended_at
    note = ", ".join(f"{name} {mib[name]:.0f}" for name in ("RssAnon", "RssShmem", "VmHWM"))
    report.once(What(scenario, "resident once all is recovered", "MiB", RESIDENT_MIB_MAX), mib["VmRSS"], note)
    report.once(What(scenario, "resident at most", "MiB", RESIDENT_MIB_MAX), mib["VmHWM"])
    report.once(What(scenario, "all adopted, from cold caches, after", "s"), adopted_after_s)
    report.once(What(scenario, "agent ended after its last run", "s"), ended_after_s)


def wait_for_adoption(running: BenchSession, copies: int) -> float:
    """Seconds since the start."""
    assert running.agent
    while status := running.agent.status():
        if not status["adopting"]:
            if status["adopted"] != copies:
                raise ProgramError(f"{status['adopted']:,} of {copies:,} copies were adopted")
            return time.monotonic() - running.started_at
        if time.monotonic() - running.started_at > ADOPTED_S:
            raise ProgramError(f"still adopting after {ADOPTED_S:.0f} s: {status}")
        time.sleep(0.1)
    raise ProgramError("there is no agent")


def command(world: TieringBench, tier: TierDirectory) -> list[str]:
    """A program on local files, with the slow file system as a source that it does not read."""
    return tiered(world, tier, QUOTA, "immutable", program("read_files", world.local_files, "--step", "--decode", "--first", FILES))


def starts(world: TieringBench, warm: TierDirectory, empty: TierDirectory, scenario: str, report: BenchReport) -> None:
    """Measures the delay of a program's first line, from cold caches, over a run with nothing to recover."""

    def started(tier: TierDirectory) -> float:
        world.drop_caches()
        with session(world, command(world, tier), tier) as running:
            return float(running.first["at"]) - running.started_at

    later: list[float] = []
    for number in range(world.size.pairs):
        # Who comes first alternates.
        took = {tier.dir: started(tier) for tier in ((warm, empty) if number % 2 == 0 else (empty, warm))}
        later.append(took[warm.dir] - took[empty.dir])
        report.note_load()
    what = What(scenario, "start of a program while copies are adopted", "s later", START_S_MAX, "the same with an empty tier")
    report.time(what, later)


@dataclass
class Beside:
    """Turns of a program, in seconds, while the agent recovers copies and while it is stopped, for the same work.

    And what the agent did.
    """

    adopting_turns_s: list[float] = field(default_factory=list)
    stopped_turns_s: list[float] = field(default_factory=list)
    agent_cpu_s: float = 0.0
    adopted: int = 0

    @property
    def adopting_s(self) -> float:
        """All turns beside an agent that recovers copies."""
        return sum(self.adopting_turns_s)

    @property
    def stopped_s(self) -> float:
        """All turns beside one that is stopped."""
        return sum(self.stopped_turns_s)

    @property
    def median_turn(self) -> float:
        """The median turn of the one kind over that of the other: what a machine does to single turns is not in it."""
        return statistics.median(self.adopting_turns_s) / statistics.median(self.stopped_turns_s)

    def add(self, other: Beside) -> None:
        """Both together."""
        self.adopting_turns_s += other.adopting_turns_s
        self.stopped_turns_s += other.stopped_turns_s
        self.agent_cpu_s += other.agent_cpu_s
        self.adopted += other.adopted


def beside(world: TieringBench, tier: TierDirectory, scenario: str, report: BenchReport) -> None:
    """Compares a program that uses every core, alternately beside a recovering agent and a stopped one.

    Its files are in memory.

    Two programs, one with each agent, would be compared with all that differs from one process to the next, which is
    more than a hundredth; here it is one program, and nothing but the agent is different.
    """
    samples = [Beside() for _ in range(world.size.pairs * world.size.times_pairs)]
    with contextlib.closing(quads(world, tier)) as pieces:
        for sample in samples:
            while sample.stopped_s < world.size.seconds:
                sample.add(next(pieces))
            report.note_load()
    stopped = "the same program while the agent is stopped"
    note = f"each sample: {world.size.seconds:g} s each, in turns of {world.size.seconds / TURNS:g} s or what recovery lasts for"
    ratios = [sample.adopting_s / sample.stopped_s for sample in samples]
    took = What(scenario, "time of a program while copies are adopted", "x", TIME_MAX, stopped)
    report.time(took, ratios, note)
    report.time(took._replace(metric="time of its turn, median"), [sample.median_turn for sample in samples])
    cores = [sample.agent_cpu_s / sample.adopting_s for sample in samples]
    report.time(What(scenario, "the agent's CPU beside it", "cores", CORES_MAX), cores)
    rates = [sample.adopted / sample.adopting_s for sample in samples]
    report.time(What(scenario, "recovered beside it", "copies a second"), rates)


def quads(world: TieringBench, tier: TierDirectory) -> Generator[Beside]:
    """Four turns each: recovering, stopped, stopped, recovering.

    When all is recovered, another run starts and recovers once more.

    Raises:
        ProgramError: even with turns of one epoch recovery is over before four of them.
    """
    turn_s = world.size.seconds / TURNS
    while True:
        world.drop_caches()
        complete = 0
        with session(world, command(world, tier), tier) as running:
            pid = running.agent.pid() if running.agent else None
            if pid is None:
                raise ProgramError("there is no agent")
            with stopped(pid):
                # From here on the program's files are in memory.
                running.step()
                epochs = max(1, round(turn_s / float(running.step()["seconds"])))
            while quad := turns(running, pid, epochs):
                complete += 1
                yield quad
        if not complete:
            if epochs == 1:
                raise ProgramError("recovery is over before it could be measured: it takes more copies")
            turn_s /= 2


def turns(running: BenchSession, pid: int, epochs: int) -> Beside | None:
    """Measures one time around; None if the recovery came to its end meanwhile."""
    assert running.agent
    before = running.agent.status()
    found = Beside()
    for turn in "ABBA":
        cpu_s = cpu_s_of(pid)
        with stopped(pid) if turn == "B" else contextlib.nullcontext():
            seconds = sum(float(running.step()["seconds"]) for _ in range(epochs))
        if turn == "B":
            found.stopped_turns_s.append(seconds)
        else:
            found.adopting_turns_s.append(seconds)
            found.agent_cpu_s += cpu_s_of(pid) - cpu_s
    after = running.agent.status()
    if before is None or after is None or not after["adopting"]:
        return None
    found.adopted = after["adopted"] - before["adopted"]
    return found


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing for the length of a `with` block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def cpu_s_of(pid: int) -> float:
    """Returns the CPU time of all threads of a process, by its CPU clock, numbered as clock_getcpuclockid(3) does."""
    return time.clock_gettime(~pid << 3 | 2)
