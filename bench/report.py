"""The table and its JSON: one row a figure, kept by commit so that scenarios can be measured in several goes.

This knows nothing of what is measured: each benchmark names itself and its scenarios, and puts the scenario first in
what it calls its rows ("half: tier holds half").
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import CONFIDENCE, Holds, Median, count_under, median, under
from bench.parts import Part, paths

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
# Above this the machine was busy with something else as well: two cores, and a measured program of four threads.
LOAD_MAX = 3.0
PAIRS_MIN = 9
RUNS_MIN = 3


@dataclass(frozen=True)
class BenchRow:
    """A figure, and the bar it is held against, if there is one."""

    scenario: str
    metric: str
    value: float
    unit: str
    bar: float | None
    holds: str | None
    baseline: str
    load_average: float
    commit: str
    interval: tuple[float, float]
    samples: tuple[float, ...]
    flags: tuple[str, ...] = ()
    note: str = ""


class What(NamedTuple):
    """Which figure it is, and the bar it is held against, if there is one."""

    scenario: str
    metric: str
    unit: str
    bar: float | None = None
    baseline: str = ""


def commit(parts: Iterable[Part] = tuple(Part)) -> str:
    """The last commit that changed what a benchmark of `parts` measures; "+" behind it where files differ from it."""
    measured = paths(parts)

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-list", "-1", "HEAD", "--", *measured) + ("+" if git("status", "--porcelain", "--", *measured) else "")


@dataclass
class BenchReport:
    """Findings of this invocation, and of earlier ones of the same `commit` of what is measured.

    `bench` is the benchmark's name, which its files bear; `scenarios` are all that must be measured. What was measured
    at a higher load than `load_max` says so, and keeps no bar: it is undecided at best. `load_max_of` has other limits
    by scenario: some load the machine themselves, and what is simulated depends on no load.
    """

    bench: str
    scenarios: tuple[str, ...]
    quick: bool
    commit: str = field(default_factory=commit)
    load_max: float = LOAD_MAX
    load_max_of: Mapping[str, float] = field(default_factory=dict)
    rows: list[BenchRow] = field(default_factory=list)
    _loads: list[float] = field(default_factory=list)

    def note_load(self) -> None:
        """To be called once each run of a scenario."""
        self._loads.append(os.getloadavg()[0])

    def begin(self, scenario: str) -> None:
        """Figures of `scenario` follow; what was known of it is void."""
        self.void(scenario)
        self._loads = [os.getloadavg()[0]]

    def void(self, scenario: str) -> None:
        """Forgets what was found of `scenario`."""
        self.rows = [row for row in self.rows if scenario_of(row) != scenario]

    def missing(self) -> list[str]:
        """Scenarios of which nothing is known."""
        known = {scenario_of(row) for row in self.rows}
        return [scenario for scenario in self.scenarios if scenario not in known]

    def time(self, what: What, samples: Sequence[float], note: str = "") -> None:
        """A median of pairs."""
        found = median(samples)
        holds = None if what.bar is None else under(found, what.bar)
        self._add(what, found.value, holds, (found.low, found.high), samples, PAIRS_MIN, note)

    def count(self, what: What, samples: Sequence[float], note: str = "") -> None:
        """A count, of which each run's must keep the bar; the value is the worst."""
        holds = None if what.bar is None else count_under(samples, what.bar)
        self._add(what, max(samples), holds, (min(samples), max(samples)), samples, RUNS_MIN, note)

    def once(self, what: What, value: float, note: str = "") -> None:
        """A figure that does not vary from run to run, or is only told."""
        holds = None if what.bar is None else count_under([value], what.bar)
        self._add(what, value, holds, (value, value), [value], 1, note)

    def between(self, what: What, value: float, interval: tuple[float, float], note: str = "") -> None:
        """A figure whose interval comes with it; a bar holds if the whole interval is within it."""
        holds = None if what.bar is None else under(Median(value, *interval, CONFIDENCE, (value,)), what.bar)
        self._add(what, value, holds, interval, [value], 1, note)

    def _add(
        self, what: What, value: float, holds: Holds | None, interval: tuple[float, float], samples: Sequence[float], needed: int, note: str
    ) -> None:
        load = statistics.median(self._loads or [os.getloadavg()[0]])
        load_max = self.load_max_of.get(what.scenario.split(":")[0], self.load_max)
        flags = ["busy machine"] if load > load_max else []
        if holds is not None and len(samples) < needed:
            flags.append("too few")
        if self.quick:
            flags.append("quick")
        verdict = holds and holds.value
        if verdict == Holds.YES.value and flags:
            verdict = Holds.UNDECIDED.value
        row = BenchRow(
            scenario=what.scenario,
            metric=what.metric,
            value=value,
            unit=what.unit,
            bar=what.bar,
            holds=verdict,
            baseline=what.baseline,
            load_average=round(load, 2),
            commit=self.commit,
            interval=interval,
            samples=tuple(samples),
            flags=tuple(flags),
            note=note,
        )
        if not self.rows or self.rows[-1].scenario != row.scenario:
            print(row.scenario)
        self.rows.append(row)
        print("  " + line(row), flush=True)

    @property
    def path(self) -> Path:
        """The JSON. What was measured quickly has one of its own: it must not replace what proves something."""
        return OUT / f"{self.bench}{'-quick' if self.quick else ''}.json"

    def save(self) -> None:
        """Writes the JSON."""
        OUT.mkdir(parents=True, exist_ok=True)
        written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = {"commit": self.commit, "written": written, "rows": [asdict(row) for row in self.rows]}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(self.path)

    def load(self) -> None:
        """Takes over what was measured of the same commit, as thoroughly.

        A tree with changes keeps nothing: it may have changed once more.
        """
        if self.commit.endswith("+"):
            return
        try:
            known: dict[str, Any] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return
        for row in known.get("rows", []):
            if row["commit"] == self.commit and ("quick" in row["flags"]) == self.quick:
                fields = {**row, "interval": tuple(row["interval"]), "samples": tuple(row["samples"]), "flags": tuple(row["flags"])}
                self.rows.append(BenchRow(**fields))

    def verdict(self) -> int:
        """0 if every bar of every scenario is known to hold."""
        missing = self.missing()
        failed = [row for row in self.rows if row.bar is not None and row.holds != Holds.YES.value]
        for scenario in missing:
            print(f"not measured: {scenario}")
        for row in failed:
            print(f"{row.holds}: {row.scenario}, {row.metric}")
        return 1 if missing or failed else 0

    def table(self) -> None:
        """For a person."""
        print(f"\n{self.bench} at {self.commit}")
        scenario = ""
        for row in self.rows:
            if row.scenario != scenario:
                scenario = row.scenario
                print(f"\n{scenario}")
            print("  " + line(row))
        print()


def proven(parser: argparse.ArgumentParser, path: Path, target: str) -> list[dict[str, Any]]:
    """The rows of a report's JSON, for who draws or prints them. `target` is make's, which writes it.

    Raises:
        SystemExit: with 2, and a line that says why: there is nothing to read, or nothing that proves anything.
    """
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"{path} can't be read ({error}): measure with `make {target}`, or name a file with --figures")
    if any("quick" in row["flags"] for row in rows):
        parser.error(f"{path} was measured with --quick, which proves nothing: measure with `make {target}`")
    return rows


def scenario_of(row: BenchRow) -> str:
    """Returns the scenario's name on the command line."""
    return row.scenario.split(":")[0]


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def line(row: BenchRow) -> str:
    """A row of the table."""
    low, high = row.interval
    spread = f" [{number(low)}, {number(high)}]" if low != high else ""
    bar = f"bar {number(row.bar)}: {row.holds}" if row.bar is not None else ""
    value = f"{number(row.value)}{spread} {row.unit}"
    end = f"load {row.load_average:.1f}" + "".join(f", {flag}" for flag in row.flags)
    return f"{row.metric:<70} {value:<40} {bar:<24} {end}" + (f"\n      {row.note}" if row.note else "")
