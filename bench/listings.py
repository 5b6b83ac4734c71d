"""A tree that a program lists again and again: at the source, on the node, and in a plain local directory.

The source is the test bed's FUSE file system: to make so many files on GlusterFS would take longer than all that is
measured.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.report import BenchReport, What
from bench.session import BenchSession, ProgramError, program, session, tiered
from bench.world import TieringBench
from testbed.testbed import SlowFs, slowfs

SCENARIO = "listings: tree of {:,} files"
DIRECTORIES = 100
# From the second time on, against the same tree in a local directory, which the kernel has in memory.
TIME_MAX = 1.1
QUOTA = 1 << 30
# What was changed so lately has no listing.
SETTLED_S = 2.1


def listings(world: TieringBench, report: BenchReport) -> None:
    """Times of whole listings, and what the source is asked for them."""
    scenario = SCENARIO.format(world.size.listed)
    tree, slow = world.place / "tree", world.place / "tree-slow"
    names = grow(tree, world.size.listed)
    slow.mkdir()
    with slowfs(tree, slow) as source:
        with session(world, program("list_tree", slow, "--step")) as plain:
            for metric in ("first listing, as it is", "second listing, as it is"):
                report.once(What(scenario, metric, "s"), listed(plain, slow, names))
        with world.tier() as tier:
            words = tiered(world, tier, QUOTA, "immutable", program("list_tree", slow, "--step"), slow)
            with session(world, words, tier) as running:
                report.once(What(scenario, "first listing", "s"), listed(running, slow, names))
                assert running.agent
                report.once(What(scenario, "listings kept after another", "s"), running.agent.settle())
                again(world, running, source, names, scenario, report)
                running.end()


def again(world: TieringBench, running: BenchSession, source: SlowFs, names: int, scenario: str, report: BenchReport) -> None:
    """The tree and its local twin in turns, by one process."""
    ratios, seconds, asked = [], [], []
    for _ in range(world.size.pairs):
        before = operations(source)
        here, there, there_again, here_again = (listed(running, root, names) for root in (source.mnt, source.src, source.src, source.mnt))
        ratios.append((here + here_again) / (there + there_again))
        seconds.append((here + here_again) / 2)
        asked.append(operations(source) - before)
        report.note_load()
    local = "the same tree in a local directory"
    report.time(What(scenario, "later listings", "x", TIME_MAX, local), ratios)
    report.time(What(scenario, "a later listing", "s"), seconds)
    report.count(What(scenario, "operations at the source for them", "operations", 0), asked)


def grow(tree: Path, files: int) -> int:
    """Makes empty files in directories of equal size.

    How many names that are, once they are old enough to be listed on the node.
    """
    for directory in range(DIRECTORIES):
        place = tree / f"class-{directory:04}"
        place.mkdir(parents=True)
        for number in range(files // DIRECTORIES):
            (place / f"image-{directory:04}-{number:06}.jpg").touch()
    time.sleep(SETTLED_S)
    return DIRECTORIES * (1 + files // DIRECTORIES)


def listed(running: BenchSession, root: Path, names: int) -> float:
    """Seconds that one listing takes.

    Raises:
        ProgramError: it does not have all names.
    """
    said = running.step(root=str(root))
    if said["names"] != names:
        raise ProgramError(f"{said['names']:,} of {names:,} names were listed below {root}")
    return float(said["seconds"])


def operations(source: SlowFs) -> int:
    """All that the source was asked so far."""
    return sum(count for name, count in source.stats().items() if not name.startswith("bytes_"))
