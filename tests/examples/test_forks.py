"""Each example of forks runs, small: jobs are forked, what it tells is true, and a plot is drawn."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support

SMALL = {
    "ensemble": ("--members", "2", "--at", "20", "--steps", "20"),
    "learning_rate": ("--rates", "0.3", "--at", "20", "--steps", "30"),
    "population": ("--members", "2", "--generations", "1", "--steps", "20"),
    "sensitivity": ("--digits", "3", "--at", "20", "--steps", "20"),
}
TOLD = {
    "ensemble": r"2 members, each alone: \S+ \S+ % wrong; their vote: \S+ %\n60 steps were trained for them instead of 80\n",
    "learning_rate": r"lr 0.05: .*\nlr 0.3: .*\nthe clone with the trunk's own rate has its losses, to the last bit\n",
    "population": r"generation 1: p\d .* ends; p\d\.1 is p\d .* with lr \S+\nthe best is p.*\n",
    "sensitivity": r"without 3: \S+ points for 3; the most for another: \S+ for \d\n",
}


def run(example: str, *options: str, cwd: Path = support.ROOT) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", f"examples.forks.{example}", *options]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=support.PROGRAM_S, check=False)


# A training process takes seconds of CPU before its first step. What the others are made of, this one is, too.
SHORT = "learning_rate"


@pytest.mark.parametrize("example", [pytest.param(name, marks=() if name == SHORT else pytest.mark.long) for name in SMALL])
def test_an_example_runs_and_draws(example: str, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    done = run(example, *SMALL[example], "--output", str(plot))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(f"{TOLD[example]}drawn: {plot}\n", done.stdout), done.stdout
    assert "<svg" in plot.read_text()


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow: uv sync --group frameworks")
@pytest.mark.parametrize("example", ["ensemble", "learning_rate"])
def test_an_example_runs_with_keras_too(example: str, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    done = run(example, "--keras", *SMALL[example], "--output", str(plot))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(f"{TOLD[example]}drawn: {plot}\n", done.stdout), done.stdout
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    ("example", "options", "why"),
    [
        ("ensemble", ("--members", "0"), "0 is less than 1"),
        ("ensemble", ("--members", "few"), "invalid whole number value: 'few'"),
        ("ensemble", ("--output", "no/such/directory/x.svg"), "there is no directory no/such/directory"),
        ("learning_rate", ("--rates", "0.1,-1"), "invalid learning rate -1: write a number above 0"),
        ("population", ("--members", "1"), "1 is less than 2"),
        ("sensitivity", ("--digits", "3,10"), "3,10: write digits from 0 to 9"),
    ],
)
def test_bad_input_is_named_and_nothing_runs(example: str, options: tuple[str, ...], why: str) -> None:
    done = run(example, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
