"""Prints the figures of `make bench-clone` as the tables of docs/benchmarks.md. Reads bench/out/clone.json."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.report import OUT, number, proven

Row = dict[str, Any]


def bars(rows: Iterable[Row]) -> list[str]:
    """Returns a Markdown table: the worst of each figure with a bar, and the scenarios in which the bar holds."""
    by_metric: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["bar"] is not None:
            by_metric.setdefault((row["metric"], row["bar"]), []).append(row)
    head = ["| figure | worst | where | bar | holds |", "| --- | --- | --- | --- | --- |"]
    return [*head, *(bar_line(metric, bar, found) for (metric, bar), found in by_metric.items())]


def bar_line(metric: str, bar: float, found: Sequence[Row]) -> str:
    """All bars are the most that is allowed."""
    worst = max(found, key=lambda row: float(row["value"]))
    low, high = worst["interval"]
    spread = f" ({number(low)} to {number(high)})" if low != high else ""
    holds = sum(row["holds"] == "yes" for row in found)
    unit = "" if worst["unit"] in ("", "x") else f" {worst['unit']}"
    return f"| {metric} | {number(worst['value'])}{spread}{unit} | {worst['scenario']} | {number(bar)} | {holds} of {len(found)} |"


# Scenarios that fork jobs, and what clone_forks.py calls their figures, by the words at the head of a column.
JOBS = ("nt3", "resnet50", "resnet152", "densenet121", "four")
JOB_COLUMNS = {
    "stall, of its bar": "stall over the larger of 1 % of a step and 2 ms",
    "CPU, s a GiB": "the training process's CPU, less 0.1 s a GiB copied aside",
    "agent, s a GiB": "the agent's CPU",
    "readiness, in memcpys": "readiness, verification included, over a memcpy",
    "readiness, s": "readiness",
    "dropped": "forks dropped, since the next step came before the state was read",
}


def jobs(rows: Iterable[Row]) -> list[str]:
    """In Markdown: what was measured of each job that was forked.

    What misses its bar is bold; what may miss it has its interval.
    """
    by_job: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["metric"] in JOB_COLUMNS.values() and re.split("[-:]", row["scenario"])[0] in JOBS:
            by_job.setdefault(row["scenario"], {})[row["metric"]] = row
    head = [f"| job | {' | '.join(JOB_COLUMNS)} |", f"| --- |{' --- |' * len(JOB_COLUMNS)}"]
    return [*head, *(f"| {job} | {' | '.join(map(figure, map(found.get, JOB_COLUMNS.values())))} |" for job, found in by_job.items())]


def figure(row: Row | None) -> str:
    """In a cell."""
    if row is None:
        return ""
    value = number(row["value"])
    if row["holds"] == "no":
        return f"**{value}**"
    return value if row["holds"] in ("yes", None) else f"{value} ({number(row['interval'][0])} to {number(row['interval'][1])})"


def main() -> int:
    """Exit code 0; 2 if there is nothing to read, or nothing that proves anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "clone.json", help="what was measured (default: %(default)s)")
    args = parser.parse_args()
    rows = proven(parser, args.figures, "bench-clone")
    print("\n".join([*bars(rows), "", *jobs(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
