"""Verdicts of the benchmarks' table: intervals, exit codes, and the rows kept from one call to the next."""

import contextlib
import fnmatch
import functools
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.report
from bench import command
from bench.epochs import LaterEpochs, of_files
from bench.figures import Holds, count_under, median, under
from bench.parts import Part
from bench.report import BenchReport, What

pytestmark = pytest.mark.usefixtures("idle_machine")

COMMIT = "c0ffee"
LINK_COPIES = Path(bench.report.ROOT) / "bench" / "programs" / "link_copies.py"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench.report, "OUT", tmp_path)
    return tmp_path


def report(commit: str = COMMIT, *, quick: bool = False) -> BenchReport:
    return BenchReport("plan", ("one", "two"), quick, commit)


def test_the_interval_of_nine_samples_lies_between_the_second_and_the_eighth() -> None:
    found = median([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (found.value, found.low, found.high) == (5, 2, 8)
    # 1 - 2 (1 + 9) / 2^9
    assert found.coverage == pytest.approx(0.9609, abs=1e-4)


def test_few_samples_have_their_whole_range_as_interval() -> None:
    assert (median([3, 1, 2]).low, median([3, 1, 2]).high) == (1, 3)


def test_an_interval_that_straddles_the_bar_is_undecided() -> None:
    nine = median([1.0, 1.01, 1.02, 1.02, 1.02, 1.02, 1.02, 1.04, 1.05])
    assert [under(nine, bar) for bar in (1.04, 1.03, 1.0)] == [Holds.YES, Holds.UNDECIDED, Holds.NO]


def test_one_count_over_the_bar_misses_it() -> None:
    assert count_under([0, 0, 1], 0) is Holds.NO
    assert count_under([0, 0, 0], 0) is Holds.YES


def test_a_row_has_all_that_a_reader_needs(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([1.25, 2.25, 0.25])
    monkeypatch.setattr("os.getloadavg", lambda: (next(loads), 9.0, 9.0))
    one = report()
    one.begin("one")
    one.note_load()
    one.note_load()
    one.time(What("one: first", "time", "x", 1.02, "as it is"), [1.0] * 9)
    one.save()
    (row,) = json.loads((out / "plan.json").read_text())["rows"]
    expected = {"scenario": "one: first", "metric": "time", "value": 1.0, "unit": "x", "bar": 1.02, "holds": "yes", "baseline": "as it is"}
    assert expected.items() <= row.items()
    assert row["commit"] == COMMIT
    assert row["load_average"] == 1.25, "the median of the last minute's"


@pytest.mark.parametrize(
    ("samples", "exit_code"), [([1.0] * 9, 0), ([1.0] * 8 + [2.0], 0), ([1.0] * 7 + [2.0] * 2, 1), ([2.0] * 9, 1), ([1.0] * 8, 1)]
)
def test_a_bar_that_is_missed_undecided_or_measured_too_seldom_fails(samples: list[float], exit_code: int) -> None:
    both = report()
    both.time(What("one: timed", "time", "x", 1.02), samples)
    both.once(What("two: told", "seconds", "s"), 3)
    assert both.verdict() == exit_code


@pytest.mark.parametrize(("load", "holds"), [(0.5, "yes"), (3.5, "undecided")])
def test_what_was_measured_on_a_busy_machine_keeps_no_bar(load: float, holds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    busy = report()
    busy.begin("one")
    busy.time(What("one", "time", "x", 1.02), [1.0] * 9)
    busy.count(What("one", "bytes", "x", 1.02), [1.0] * 3)
    busy.once(What("two", "seconds", "s", 2), 1)
    busy.time(What("one", "missed", "x", 0.9), [1.0] * 9)
    assert [row.holds for row in busy.rows] == [holds, holds, holds, "no"]
    assert all(("busy machine" in row.flags) == (holds != "yes") for row in busy.rows)


def test_a_scenario_that_loads_the_machine_itself_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (4.2, 4.2, 4.2))
    found = BenchReport("tiering", ("one", "two"), False, COMMIT, load_max_of={"two": 5.0})
    for scenario in found.scenarios:
        found.begin(scenario)
        found.count(What(f"{scenario}: bytes", "bytes", "x", 1.02), [1.0] * 3)
    assert [row.holds for row in found.rows] == ["undecided", "yes"]


def test_an_interval_that_comes_with_a_figure_decides() -> None:
    found = report()
    for interval in ((0.1, 0.9), (0.13, 7.5), (1.1, 2.0)):
        found.between(What("one", "ratio", "x", 1.0), 1.0, interval)
    assert [row.holds for row in found.rows] == ["yes", "undecided", "no"]


def test_what_was_not_measured_fails() -> None:
    half = report()
    half.once(What("one: told", "seconds", "s"), 3)
    assert half.missing() == ["two"]
    assert half.verdict() == 1


def test_quick_figures_prove_nothing_and_have_a_file_of_their_own(out: Path) -> None:
    quick = report(quick=True)
    for scenario in quick.scenarios:
        quick.once(What(scenario, "count", "operations", 0), 0)
    quick.save()
    assert quick.verdict() == 1
    assert [path.name for path in out.iterdir()] == ["plan-quick.json"]


@pytest.mark.parametrize(("then", "now", "kept"), [(COMMIT, COMMIT, 1), (COMMIT, "another", 0), (f"{COMMIT}+", f"{COMMIT}+", 0)])
def test_only_figures_of_the_same_commit_are_taken_over(out: Path, then: str, now: str, kept: int) -> None:
    earlier = report(then)
    earlier.once(What("one", "count", "operations", 0), 0)
    earlier.save()
    later = report(now)
    later.load()
    assert len(later.rows) == kept
    assert not kept or later.rows == earlier.rows


def test_a_scenario_that_fails_is_not_measured_and_loses_no_other(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_world: None, found: BenchReport) -> None:
        found.once(What("one", "count", "operations", 0), 0)
        raise RuntimeError("it broke")

    def works(_world: None, found: BenchReport) -> None:
        found.once(What("two", "count", "operations", 0), 0)

    both = report()
    code = command.run(both, both.scenarios, {"one": fails, "two": works}, contextlib.nullcontext())
    assert code == 1
    assert both.missing() == ["one"]
    assert [row["scenario"] for row in json.loads((out / "plan.json").read_text())["rows"]] == ["two"]
    assert "it broke" in capsys.readouterr().err


def test_no_scenario_begins_after_the_time_and_the_next_call_goes_on(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def works(name: str, _world: None, found: BenchReport) -> None:
        found.once(What(name, "count", "operations", 0), 0)

    scenarios = {name: functools.partial(works, name) for name in ("one", "two")}
    with pytest.MonkeyPatch.context() as late:
        late.setattr("bench.command.time.monotonic", itertools.count(step=40).__next__)
        assert command.run(report(), list(scenarios), scenarios, contextlib.nullcontext(), minutes=2) == 1
    assert "2 minutes are over. Left for the next call: two" in capsys.readouterr().out
    later = report()
    later.load()
    assert command.run(later, later.missing(), scenarios, contextlib.nullcontext(), minutes=2) == 0
    assert [row.scenario for row in later.rows] == ["one", "two"]


def of_git(directory: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", directory, *who, *words], capture_output=True, text=True, check=True).stdout.strip()


def test_a_row_is_valid_until_a_part_that_it_measures_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.report, "ROOT", tmp_path)
    of_git(tmp_path, "init", "-q")
    made = {}
    for path in ("crates/agent/src/lib.rs", "python/forebay/clone/a.py", "crates/preload/a.rs", "docs/a.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
        of_git(tmp_path, "add", "-A")
        of_git(tmp_path, "commit", "-qm", path)
        made[path] = of_git(tmp_path, "rev-parse", "HEAD")
    assert bench.report.commit((Part.FORKS,)) == made["python/forebay/clone/a.py"]
    assert bench.report.commit((Part.TIERING,)) == bench.report.commit() == made["crates/preload/a.rs"]
    assert bench.report.commit((Part.LOADER,)) == made["crates/agent/src/lib.rs"]
    (tmp_path / "python/forebay/clone/a.py").write_text("changed")
    assert bench.report.commit((Part.FORKS,)) == made["python/forebay/clone/a.py"] + "+"
    assert bench.report.commit((Part.LOADER,)) == made["crates/agent/src/lib.rs"]


@pytest.mark.parametrize("part", list(Part))
def test_each_path_of_a_part_is_there(part: Part) -> None:
    assert [path for path in part.value if not list(bench.report.ROOT.glob(path))] == []


BENCHMARKS = [
    path for package in ("bench", "papers") for path in sorted((bench.report.ROOT / package).glob("*.py")) if "(Part." in path.read_text()
]


def programs_of(module: Path) -> Iterator[str]:
    """Paths of the modules and programs of ours that a benchmark's module uses."""
    text = module.read_text()
    for package, names in re.findall(r"^from (bench|papers) import (.+)$", text, re.M):
        yield from (f"{package}/{name.strip()}.py" for name in names.split(","))
    yield from (f"{path.replace('.', '/')}.py" for path in re.findall(r"^(?:from|import) ((?:bench|papers)\.[\w.]+)", text, re.M))
    yield from (f"bench/programs/{name}" for name in re.findall(r'"([a-z_]+\.(?:py|c))"', text))
    yield from (f"bench/programs/{name}.py" for name in re.findall(r'"((?:read|loader|clone|host|lobster|thread|step|decode)_\w+)"', text))


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_measures_the_parts_of_all_that_it_uses(benchmark: Path) -> None:
    root = bench.report.ROOT
    measured = re.findall(r"Part\.([A-Z]+)", benchmark.read_text())
    todo, used = [str(benchmark.relative_to(root))], set()
    while todo:
        path = todo.pop()
        if path not in used and (root / path).is_file() and not path.endswith("_page.py"):
            used.add(path)
            todo += programs_of(root / path) if path.endswith(".py") else []
    assert len(used) > 3
    others = [path for part in Part if part.name not in measured for path in part.value]
    assert [path for path in used if any(fnmatch.fnmatch(path, other) for other in others)] == []


def test_lookups_that_listings_explain_are_no_files() -> None:
    assert of_files({"OPENDIR": 2, "LOOKUP": 8}) == 0
    assert of_files({"OPENDIR": 2, "LOOKUP": 9, "OPEN": 1, "READ": 2}) == 4


def test_more_drops_than_are_allowed_explain_nothing() -> None:
    def excess(dropped: int, lookups: int) -> int:
        return LaterEpochs(2, 3000, 0, 1, Counter(LOOKUP=lookups), dropped).excess

    assert (excess(1, 3), excess(1, 4), excess(100, 9), excess(100, 10)) == (0, 1, 0, 1)


def test_links_lead_to_copies_or_else_to_the_local_files(tmp_path: Path) -> None:
    copies, names = tmp_path / "copies", tmp_path / "names"
    for root in (copies, names):
        for name in ("a/x", "a/y", "b/z"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{root.name}/{name}")
    source, links = tmp_path / "source", tmp_path / "links"
    source.mkdir()
    (source / "a").symlink_to(copies / "a")
    (source / "b").symlink_to(names / "b")
    ended = subprocess.run([sys.executable, LINK_COPIES, source, names, copies, links], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == {"files": 3, "copies": 2}
    found = {str(path.relative_to(links)): path.read_text() for path in links.rglob("*") if path.is_file()}
    assert found == {"a/x": "copies/a/x", "a/y": "copies/a/y", "b/z": "names/b/z"}
