"""`scripts/gpu.py`, with the processor standing in.

Order, time limits, failures, what is written, and what a later call runs.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu import STEPS, Results, TestStep, in_order, run
from tests.support import ROOT

SUITE = "import pytest\n\n\ndef test_it():\n    {}\n"


def python(name: str, code: str, limit_s: float = 60) -> TestStep:
    return TestStep(name, ("-c", code), limit_s)


def notes(tmp_path: Path, name: str) -> str:
    """Code that notes that it has run."""
    return f"with open({str(tmp_path / 'ran')!r}, 'a') as file: file.write('{name} ')"


def told(results: Results) -> list[tuple[str, str]]:
    return [(line["step"], line["status"]) for line in map(json.loads, results.path.read_text().splitlines())]


def test_each_step_has_its_limit_and_its_line_and_a_failure_ends_nothing(tmp_path: Path) -> None:
    results = Results(tmp_path / "out" / "gpu.jsonl", "a commit")
    child = (
        f"import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); "
    )
    steps = [
        python("first", notes(tmp_path, "first")),
        python("fails", f"{notes(tmp_path, 'fails')}\nprint('why it failed')\nraise SystemExit(3)"),
        python("hangs", f"{notes(tmp_path, 'hangs')}\n{child}time.sleep(600)", limit_s=5),
        python("last", notes(tmp_path, "last")),
    ]
    begun = time.monotonic()
    assert not run(steps, results, sys.executable, os.environ, 120)
    assert time.monotonic() - begun < 100
    assert (tmp_path / "ran").read_text().split() == ["first", "fails", "hangs", "last"]
    assert told(results) == [("first", "passed"), ("fails", "failed"), ("hangs", "timed out"), ("last", "passed")]
    known = results.known()
    assert known["fails"]["code"] == 3
    assert "why it failed" in known["fails"]["tail"]
    assert known["hangs"]["limit_s"] == 5
    # What it had started is gone, or about to be reaped.
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_later_call_runs_what_has_not_passed_and_first_what_never_ran(tmp_path: Path) -> None:
    results = Results(tmp_path / "gpu.jsonl", "a commit")
    steps = [
        python(name, f"{notes(tmp_path, name)}\nimport os\nraise SystemExit(not os.path.exists({str(tmp_path / name)!r}))")
        for name in "abc"
    ]
    (tmp_path / "b").touch()
    assert not run(steps[:2], results, sys.executable, os.environ, 120)
    # A line that was cut when the machine went.
    with results.path.open("a") as file:
        file.write('{"key": "a commit", "step": "c", "stat')
    assert [step.name for step in in_order(steps, results.known())] == ["c", "a"]
    with results.path.open("a") as file:
        file.write("\n")
    for name in "ac":
        (tmp_path / name).touch()
    assert run(steps, results, sys.executable, os.environ, 120)
    assert (tmp_path / "ran").read_text().split() == ["a", "b", "c", "a"]
    assert run(steps, results, sys.executable, os.environ, 120), "nothing is left to do"
    assert (tmp_path / "ran").read_text().split() == ["a", "b", "c", "a"]
    # Of another commit nothing is known.
    assert in_order(steps, Results(results.path, "another").known()) == steps


def test_what_has_no_time_left_is_not_begun(tmp_path: Path) -> None:
    results = Results(tmp_path / "gpu.jsonl", "a commit")
    assert not run([python("late", notes(tmp_path, "late"))], results, sys.executable, os.environ, 1)
    assert not (tmp_path / "ran").exists()
    assert results.known() == {}


@pytest.mark.parametrize(
    ("line", "status"),
    [("pass", "passed"), ("pytest.skip('needs a GPU')", "skipped"), ("assert False", "failed")],
    ids=["passes", "skips", "fails"],
)
def test_tests_that_are_skipped_prove_nothing(line: str, status: str, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE.format(line))
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path / "test_suite.py"))
    results = Results(tmp_path / "gpu.jsonl", "a commit")
    assert run([TestStep("suite", words, 60, is_pytest=True)], results, sys.executable, os.environ, 120) == (status == "passed")
    assert told(results) == [("suite", status)]


def test_the_steps_are_all_tests_that_need_a_gpu_each_once() -> None:
    files = sorted({word.partition("::")[0] for step in STEPS for word in step.words if word.startswith("tests/")})
    mark = re.compile(r"^(?:@|pytestmark = )pytest\.mark\.gpu", re.MULTILINE)
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if mark.search(path.read_text())]
    assert files == sorted(str(path.relative_to(ROOT)) for path in marked)
    # Without their modules, which import torch and more: names alone decide.
    names = {
        file: re.findall(r"^(@pytest\.mark\.gpu\n(?:@.*\n)*)?def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE) for file in files
    }
    for file, found in names.items():
        is_whole = "pytestmark = pytest.mark.gpu" in (ROOT / file).read_text()
        for _, name in (one for one in found if is_whole or one[0]):
            assert len([step for step in STEPS if has(step, file, name)]) == (4 if name == "test_p14b_holds_on_a_gpu" else 1), name


def has(step: TestStep, file: str, name: str) -> bool:
    """Returns True if a step runs a test, or some of its cases."""
    if file not in (word.partition("::")[0] for word in step.words):
        return False
    if any("::" in word for word in step.words):
        return any(word.partition("::")[2].partition("[")[0] == name for word in step.words)
    if "-k" not in step.words:
        return True
    chosen = step.words[step.words.index("-k") + 1]
    return any(word in name for word in re.findall(r"\w+", chosen.removeprefix("not")) if word != "or") != chosen.startswith("not")
