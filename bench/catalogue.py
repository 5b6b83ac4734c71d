"""An agent whose tier holds 1.3 million copies: what it takes of memory, and what taking them over costs a program."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.report import ROOT, Report, What
from bench.session import ProgramError, Session, program, session, tiered
from bench.world import Tier, World

SCENARIO = "catalogue: agent with {:,} files catalogued"
RESIDENT_MIB_MAX = 300
# The issue says that adoption does not delay a program; these are what counts as none.
START_S_MAX = 0.05
TIME_MAX = 1.02
QUOTA = 64 << 30
ADOPTED_S = 300.0


def catalogue(world: World, report: Report) -> None:
    """A program that reads local files, under an agent that adopts and under one that has nothing to adopt."""
    report.begin("catalogue")
    scenario = SCENARIO.format(world.size.catalogued)
    with world.tier() as warm, world.tier() as empty:
        fill(world, warm)
        report.note_load()
        resident(world, warm, scenario, report)
        started: list[float] = []
        ratio: list[float] = []
        epochs = max(1, round(world.size.seconds / beside(world, empty, 1)[1]))
        for number in range(world.size.pairs):
            tiers = (warm, empty) if number % 2 == 0 else (empty, warm)
            found = {tier.dir: beside(world, tier, epochs) for tier in tiers}
            started.append(found[warm.dir][0] - found[empty.dir][0])
            ratio.append(found[warm.dir][1] / found[empty.dir][1])
            report.note_load()
    nothing = "the same with an empty tier"
    report.time(What(scenario, "start of a program while copies are adopted", "s later", START_S_MAX, nothing), started)
    report.time(What(scenario, "time of a program while copies are adopted", "x", TIME_MAX, nothing), ratio, f"{epochs} epochs")


def fill(world: World, tier: Tier) -> None:
    """Copies as earlier runs would have left them, made by the store itself."""
    begun = time.monotonic()
    example = ["cargo", "run", "--locked", "--quiet", "--release", "-p", "forebay-store", "--example", "fill_catalogue", "--"]
    source, fs_type = mounted_on(world.cluster.mnt)
    words = [tier.dir, tier.state, world.cluster.mnt / "imagenet", source, fs_type, world.size.catalogued]
    subprocess.run([*example, *map(str, words)], cwd=ROOT, check=True)
    print(f"catalogue: {world.size.catalogued:,} copies after {time.monotonic() - begun:.0f} s", flush=True)


def mounted_on(mount: Path) -> tuple[str, str]:
    """What is mounted there, and its type, as the agent tells mounts apart."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        front, _, back = line.partition(" - ")
        if front.split(" ")[4] == str(mount):
            fs_type, source = back.split(" ")[:2]
            return source, fs_type
    raise ProgramError(f"nothing is mounted on {mount}")


def resident(world: World, tier: Tier, scenario: str, report: Report) -> None:
    """Memory of the agent once all is adopted, its part of shared memory included."""
    world.drop_caches()
    with session(world, command(world, tier), tier) as running:
        adopted_after_s = wait_for_adoption(running, world.size.catalogued)
        pid = running.agent.pid() if running.agent else None
        status = Path(f"/proc/{pid}/status").read_text()
        ended_at = time.monotonic()
        running.end()
        ended_after_s = time.monotonic() - ended_at
    figures = dict(line.split(":", 1) for line in status.splitlines())
    mib = {name: int(figures[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon", "RssShmem")}
    note = ", ".join(f"{name} {mib[name]:.0f}" for name in ("RssAnon", "RssShmem", "VmHWM"))
    report.once(What(scenario, "resident once all is adopted", "MiB", RESIDENT_MIB_MAX), mib["VmRSS"], note)
    report.once(What(scenario, "resident at most", "MiB", RESIDENT_MIB_MAX), mib["VmHWM"])
    report.once(What(scenario, "all adopted, from cold caches, after", "s"), adopted_after_s)
    report.once(What(scenario, "agent ended after its last run", "s"), ended_after_s)


def wait_for_adoption(running: Session, copies: int) -> float:
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


def command(world: World, tier: Tier) -> list[str]:
    """A program on local files, with the slow file system as a source that it does not read."""
    words = program("read_files", world.local_files, "--step", "--decode")
    return tiered(world, tier, QUOTA, "immutable", words)


def beside(world: World, tier: Tier, epochs: int) -> tuple[float, float]:
    """Seconds to the program's first line, and from there to the end of its epochs; caches are cold only at the start."""
    world.drop_caches()
    with session(world, command(world, tier), tier) as running:
        started = running.first["at"] - running.started_at
        begun = time.monotonic()
        for _ in range(epochs):
            running.step()
        return started, time.monotonic() - begun
