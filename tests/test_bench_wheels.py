"""Figures of `make bench-wheels` for two wheels: alternate pairs, ratios, verdicts.

And that a wheel whose starts cost more is found out.
"""

import contextlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.report
from bench import wheels
from bench.report import BenchReport, BenchRow
from bench.session import ProgramError
from bench.wheel_rows import FULL, QUICK, SCENARIOS, TURNS, Figure, Measure, Wheel, WheelBench, WheelSize, by_turns, least, starts
from tests import support

pytestmark = pytest.mark.usefixtures("idle_machine")

# Of a library that Linux distributions have wherever they have a C++ compiler's.
EXTRA_LIBRARY = "libstdc++.so.6"


def world(place: Path, old: Path, new: Path, size: WheelSize = FULL) -> WheelBench:
    return WheelBench(place, place, (Wheel("old", old), Wheel("new", new)), 1.03, size)


def report() -> BenchReport:
    return BenchReport("wheels", tuple(SCENARIOS), quick=False, commit="old to new")


def measured(costs: dict[str, list[float]], tmp_path: Path) -> tuple[BenchRow, list[str]]:
    """The row of wheels that cost so much in their pairs, and who was measured in which order."""
    found, order, left = report(), [], {name: list(values) for name, values in costs.items()}

    @contextlib.contextmanager
    def running(wheel: Wheel) -> Iterator[Measure]:
        def measure() -> dict[str, float]:
            order.append(wheel.name)
            return {"cpu": left[wheel.name].pop(0)}

        order.append(f"starts {wheel.name}")
        yield measure

    size = FULL._replace(pairs=len(costs["old"]))
    by_turns(world(tmp_path, tmp_path, tmp_path, size), found, "rows: told", {"cpu": Figure("CPU a sample", "us")}, running)
    (row,) = found.rows
    return row, order


def test_wheels_are_measured_by_turns_and_by_several_processes(tmp_path: Path) -> None:
    assert TURNS == 3
    _, order = measured({"old": [1.0] * 4, "new": [1.0] * 4}, tmp_path)
    assert order == ["starts old", "starts new", "old", "new", "new", "old", "old", "new", "starts old", "starts new", "new", "old"]


@pytest.mark.parametrize(("more", "holds"), [(1.0, "yes"), (1.025, "yes"), (1.05, "no")])
def test_the_row_is_the_ratio_of_pairs(more: float, holds: str, tmp_path: Path) -> None:
    old = [2.0, 3.0, 2.5, 2.0, 4.0, 3.0, 2.0, 2.0, 3.5, 2.0, 2.0, 2.0]
    row, _ = measured({"old": old, "new": [more * cost for cost in old]}, tmp_path)
    assert row.value == pytest.approx(more)
    assert (row.bar, row.holds) == (1.03, holds)
    assert list(row.interval) == pytest.approx([more, more])


def test_a_figure_is_the_least_of_its_measurements() -> None:
    costs = iter([3.0, 1.0, 2.0, 5.0, 4.0])
    assert least(5, lambda: {"cpu": next(costs)}) == {"cpu": 1.0}


def test_figures_of_other_wheels_are_not_taken_over(tmp_path: Path) -> None:
    one, other = tmp_path / "one.whl", tmp_path / "other.whl"
    one.write_text("one")
    other.write_text("other")
    assert wheels.digest(one) != wheels.digest(other)


def test_a_wheel_that_is_none_and_another_package_are_refused(tmp_path: Path) -> None:
    (tmp_path / "damaged-1-py3-none-any.whl").write_text("nothing")
    with pytest.raises(ProgramError, match="can't be installed"):
        wheels.installed(tmp_path / "damaged-1-py3-none-any.whl", "old", tmp_path / "a")
    # A wheel of something else, so that programs find the package that is installed here.
    info = "other-1.dist-info"
    with zipfile.ZipFile(tmp_path / "other-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    with pytest.raises(ProgramError, match="find another package"):
        wheels.installed(tmp_path / "other-1-py3-none-any.whl", "old", tmp_path / "b")


def test_a_command_line_with_no_such_wheel_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.wheels", str(tmp_path / "none.whl"), str(tmp_path / "none.whl")]
    ended = subprocess.run(words, cwd=bench.report.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no such wheel" in ended.stderr


@pytest.mark.long
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_wheel_whose_processes_start_with_more_work_is_found_out(tmp_path: Path) -> None:
    """The same build twice, and once with a command that has programs load one library more."""
    same, more = tmp_path / "same", tmp_path / "more"
    for root in (same, more):
        support.visible_command(root)
    heavy = (more / "bin/forebay").rename(more / "bin/real")
    (more / "bin/forebay").write_text(f'#!/bin/sh\nLD_PRELOAD={EXTRA_LIBRARY} exec {heavy} "$@"\n')
    (more / "bin/forebay").chmod(0o755)
    ratios = {}
    for new in (same, more):
        found, place = report(), tmp_path / f"against-{new.name}"
        (place / "bin").mkdir(parents=True)
        starts(world(place, same, new, QUICK._replace(pairs=1)), found)
        ratios[new] = {row.metric: row.value for row in found.rows}
    metric = "start of a process that does nothing"
    assert ratios[same][metric] == pytest.approx(1.0, abs=0.005)
    assert ratios[more][metric] > 1.03
