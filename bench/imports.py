"""Measures the start of a Python program whose environment is on slow storage: `make bench-imports`. Needs root.

Installed packages are shown by a FUSE file system with 1 ms an operation; a program imports torch from there. The page
cache is dropped before each start. Alternately: the packages on the local disk, from the source as it is, under
`forebay run`, and under `forebay run --libraries`, each with a warm tier. About seven minutes on two cores.
"""

from __future__ import annotations

import contextlib
import os
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import command
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import ProgramError
from bench.world import TierDirectory, empty_tier
from testbed.testbed import SlowFs, drop_caches

FOREBAY = Path(sys.executable).with_name("forebay")
SOURCE: dict[str, float] = {"mbps": 0, "open_ms": 1, "meta_us": 1000, "read_us": 1000}
STARTS, STARTS_QUICK = 9, 2
# Of the same start with the packages on the local disk.
TIME_MAX = 1.3
PROGRAM_S = 300
# Each run copies for as long as the program takes, and a little longer; there is a gigabyte to copy.
WARMING_RUNS_MAX = 12
SCENARIO = "torch: import torch, 1 ms an operation"


@dataclass(frozen=True)
class ImportsBench:
    """A source with installed packages, and a tier for each way to run."""

    packages: Path
    source: SlowFs
    plain: TierDirectory
    libraries: TierDirectory
    starts: int


@dataclass(frozen=True)
class StartFigures:
    """A start: its seconds, and what the source was asked for."""

    seconds: float
    reads: int
    bytes: int
    questions: int


def start(world: ImportsBench, packages: Path, words: Sequence[str | Path] = (), environment: dict[str, str] | None = None) -> StartFigures:
    """Starts the program once, with cold caches."""
    drop_caches()
    before = world.source.stats()
    # Not in isolated mode: its directories would be looked at first.
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; sys.path.insert(0, {str(packages)!r}); import torch"
    )
    python = os.path.realpath(sys.executable)
    begun = time.monotonic()
    done = subprocess.run(
        [*words, python, "-I", "-c", code],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        raise ProgramError(f"the import failed: {done.stderr.strip()}")
    after = world.source.stats()
    asked = {name: after[name] - before[name] for name in after}
    questions = asked["lookup"] + asked["getattr"]
    return StartFigures(seconds, asked["read"], asked["bytes_read"], questions)


def under(world: ImportsBench, tier: TierDirectory, *options: str) -> StartFigures:
    """Starts the program once under Forebay."""
    words: list[str | Path] = [
        FOREBAY,
        "run",
        "--quiet",
        "--source",
        world.source.mnt,
        "--tier",
        f"{tier.dir}=8G",
        "--freshness",
        "immutable",
        *options,
        "--",
    ]
    directories = {"FOREBAY_STATE_DIR": str(tier.state), "FOREBAY_RUNTIME_DIR": str(tier.runtime)}
    return start(world, world.source.mnt, words, directories)


def imports(world: ImportsBench, report: BenchReport) -> None:
    """Starts, alternately."""
    for tier, options in ((world.plain, ()), (world.libraries, ("--libraries",))):
        runs = [under(world, tier, *options)]
        # Libraries that are not served are read each time.
        while runs[-1].bytes and len(runs) < WARMING_RUNS_MAX and (options or len(runs) < 3):
            runs.append(under(world, tier, *options))
    rounds: list[tuple[StartFigures, ...]] = []
    for _ in range(world.starts):
        local = start(world, world.packages)
        as_it_is = start(world, world.source.mnt)
        rounds.append((local, as_it_is, under(world, world.plain), under(world, world.libraries, "--libraries")))
        report.note_load()
    names = ("packages on the local disk", "from the source as it is", "under forebay run", "with --libraries")
    for name, figures in zip(names, zip(*rounds, strict=True), strict=True):
        told = ", ".join(
            f"{statistics.median(getattr(one, field) for one in figures):,.0f} {what}"
            for field, what in (("reads", "reads"), ("bytes", "bytes"), ("questions", "questions about names"))
        )
        report.time(What(SCENARIO, name, "s"), [one.seconds for one in figures], told)
    beside_local, beside_source = "the same packages on the local disk", "the source as it is"
    report.time(What(SCENARIO, "with --libraries", "x", TIME_MAX, beside_local), [one[3].seconds / one[0].seconds for one in rounds])
    report.time(What(SCENARIO, "with --libraries", "x", None, beside_source), [one[3].seconds / one[1].seconds for one in rounds])
    report.count(What(SCENARIO, "with --libraries: bytes from the source", "bytes", 0), [one[3].bytes for one in rounds])


@contextlib.contextmanager
def world(starts: int, place: Path) -> Iterator[ImportsBench]:
    """Mounts the packages of this environment."""
    packages = Path(site.getsitepackages()[0])
    with (
        tempfile.TemporaryDirectory(prefix="forebay-bench-imports-", dir=place) as parent,
        empty_tier(Path(parent)) as plain,
        empty_tier(Path(parent)) as libraries,
    ):
        mount = Path(parent) / "mnt"
        mount.mkdir()
        with SlowFs(packages, mount, allow_other=None, readdirplus=True, **SOURCE) as source:
            yield ImportsBench(packages, source, plain, libraries, starts)


SCENARIOS = {"torch": imports}


BENCH = command.RootBench("bench-imports", "imports", __doc__, (Part.TIERING,), place_help="local directory for tiers")


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: world(STARTS_QUICK if quick else STARTS, place))


if __name__ == "__main__":
    sys.exit(main())
