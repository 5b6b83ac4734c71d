"""Compares the costs of two wheels, measured alternately.

`make bench-wheels OLD=old.whl NEW=new.whl`, or `python -m bench.wheels OLD.whl NEW.whl`.

Each wheel is installed into a directory of its own, with this environment's Python and torch. A row is the median of
ratios, new over old, of pairs; pairs alternate in who comes first. Costs are CPU seconds or instructions, and a wall
time where it is the promise. A later call for the same two wheels, by the same commit of this benchmark, measures what
is missing, or what is named, and keeps the rest. Exit code 0: every bar is known to hold. 1: one is missed, undecided,
or not measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import command
from bench.report import OUT, ROOT, BenchReport, commit
from bench.session import ProgramError, environment
from bench.wheel_rows import FULL, QUICK, SCENARIOS, Wheel, WheelBench, WheelSize

BAR = 1.03
# A program of three threads, and an agent or two.
LOAD_MAX = 4.0


def installed(wheel: Path, name: str, root: Path) -> Wheel:
    """Installs a wheel into `root`, and checks that programs get its package and not this environment's.

    Raises:
        ProgramError: it can't be installed, or another package is found first.
    """
    how = ["--quiet", "--no-index", "--no-deps", "--python", sys.executable, "--target", str(root)]
    words = [str(ROOT / "scripts/uv.sh"), "pip", "install", *how, str(wheel)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProgramError(f"{wheel} can't be installed: {done.stderr.strip()}")
    made = Wheel(name, root)
    asked = [sys.executable, "-c", "import forebay; print(forebay.__file__); print(forebay.command())"]
    told = subprocess.run(
        asked, env=environment(None) | made.variables, cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    if told != [str(root / "forebay/__init__.py"), str(made.command)]:
        raise ProgramError(f"programs with {root} in PYTHONPATH find another package: {told}")
    return made


@contextlib.contextmanager
def world(old: Path, new: Path, bar: float, size: WheelSize, parent: Path) -> Iterator[WheelBench]:
    """Installs both wheels below `parent`; removes them, and the data, at the end."""
    place = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=parent)).resolve()
    memory = Path("/dev/shm") / place.name  # noqa: S108
    memory.mkdir()
    try:
        wheels = installed(old, "old", place / "old"), installed(new, "new", place / "new")
        (place / "bin").mkdir()
        yield WheelBench(place, memory, wheels, bar, size)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)


def digest(wheel: Path) -> str:
    """Returns the first digits of a wheel's checksum: figures are kept by them."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]


def main() -> int:
    """Measures, prints the table, and returns the exit code."""
    parser = command.parser(__doc__, SCENARIOS)
    parser.add_argument("old", type=Path, metavar="OLD.whl")
    parser.add_argument("new", type=Path, metavar="NEW.whl")
    parser.add_argument("--bar", type=float, default=BAR, help="the most that new over old may be (default: %(default)s)")
    parser.add_argument("--pairs", type=int, metavar="N", help=f"pairs of each figure (default: {FULL.pairs})")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="local directory for data and tiers (default: %(default)s)")  # noqa: S108
    args = parser.parse_args()
    for wheel in (args.old, args.new):
        if not wheel.is_file():
            parser.error(f"{wheel}: there is no such wheel; `make build` leaves one in dist/")
    if args.pairs is not None and args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: give 1 or more")
    measured = f"{digest(args.old)} to {digest(args.new)}, bar {args.bar}, by {commit()}"
    report = BenchReport("wheels", tuple(SCENARIOS), quick=args.quick, commit=measured, load_max=LOAD_MAX)
    wanted = command.wanted(parser, args.only, report)
    if (missing := [name for name in ("cc", "valgrind") if shutil.which(name) is None]) and {"open", "start"} & set(wanted):
        print(f"bench-wheels: missing: {', '.join(missing)}; install them, or leave out open and start with --only", file=sys.stderr)
        return 1
    size = QUICK if args.quick else FULL
    size = size._replace(pairs=args.pairs or size.pairs)
    code = command.run(report, wanted, SCENARIOS, world(args.old, args.new, args.bar, size, args.place), args.minutes)
    print(f"written: {report.path.relative_to(OUT.parent.parent)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
