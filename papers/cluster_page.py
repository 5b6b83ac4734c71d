"""Makes tables and a drawing of the simulated jobs of many nodes that fail in part.

Prints the tables of docs/inside/peers.md and draws docs/inside/cluster.svg.

Reads the lines that `cargo run --release -p forebay-sim --example cluster` printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import OUT, ROOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP_S = 0.5
HEALTHY = "healthy"
RESTART = "restart, warm"
FAULTS = ("slow", "dead", "flapping", "cut off one way", "half with old members")
COLOURS = ("#1b6ca8", "#a33b3b", "#c9a227", "#58a6d6", "#8a8f98")


class ClusterFigures:
    """The lines of a simulation, by job, window and fault. A job is named by its nodes and their groups."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self._lines = {(line["job"], line["window"], line["fault"]): line for line in lines}

    @property
    def jobs(self) -> list[str]:
        """The jobs, in the order of the lines."""
        return list(dict.fromkeys(job for job, _, _ in self._lines))

    @property
    def windows(self) -> list[int]:
        """Lengths of the window in steps, the longest first."""
        return sorted({window for _, window, _ in self._lines}, reverse=True)

    def of(self, job: str, window: int, fault: str) -> dict[str, Any]:
        """Returns the line of a job."""
        return self._lines[job, window, fault]

    def slowdown(self, job: str, window: int, fault: str) -> float:
        """Returns the longest epoch with the fault over the same epoch of the healthy job."""
        healthy = self.of(job, window, HEALTHY)["seconds"][1:]
        return max(float(own / other) for own, other in zip(self.of(job, window, fault)["seconds"][1:], healthy, strict=True))

    def worst(self, job: str, name: str) -> float:
        """Returns the largest of a figure over all faults of single nodes."""
        return max(float(self.of(job, window, fault)[name]) for window in self.windows for fault in FAULTS[:-1])


def tables(figures: ClusterFigures) -> list[str]:
    """Returns the tables, line by line."""
    head = [f"{job}, {window * STEP_S:g} s" for job in figures.jobs for window in figures.windows]
    lines = [row(["nodes, window", *head]), row(["---"] * (len(head) + 1))]
    for fault in FAULTS:
        cells = [f"{figures.slowdown(job, window, fault):.2f}" for job in figures.jobs for window in figures.windows]
        lines.append(row([fault, *cells]))
    return [*lines, "", *counts(figures)]


def counts(figures: ClusterFigures) -> list[str]:
    """Returns the table of bytes, connections and requests."""
    jobs, longest = figures.jobs, figures.windows[0]
    source = [figures.of(job, longest, HEALTHY)["source"] for job in jobs]
    again = [figures.of(job, longest, "dead")["source"] for job in jobs]
    restarted = [max(figures.of(job, longest, RESTART)["source"]) for job in jobs]
    rows = {
        "source bytes of a healthy job, of S: epoch 1, then": [f"{first:.2f}, {max(later):.2f}" for first, *later in source],
        "a part is dead: epoch 2, 3": [f"{second:.3f}, {third:.3f}" for _, second, third in again],
        "restart with warm disks": [f"{share:.2f}" for share in restarted],
        "most connections of a node": [f"{figures.of(job, longest, HEALTHY)['connections']:,}" for job in jobs],
        "memory for them and the table, MiB": [f"{figures.of(job, longest, HEALTHY)['bytes'] / 2**20:.1f}" for job in jobs],
        "99 of 100 waits for a batch, worst fault, s": [f"{waits(figures, job):.2f}" for job in jobs],
        "requests for a sample, worst fault": [f"{figures.worst(job, 'tries'):.3f}" for job in jobs],
        "the same, half with old members": [f"{figures.of(job, longest, FAULTS[-1])['tries']:.2f}" for job in jobs],
        "oldest sample, s, of what is allowed": [oldest(figures, job) for job in jobs],
    }
    names = [row(["nodes", *jobs]), row(["---"] * (len(jobs) + 1))]
    return [*names, *(row([name, *cells]) for name, cells in rows.items())]


def waits(figures: ClusterFigures, job: str) -> float:
    """Returns the wait for a batch that 99 of 100 do not exceed, in seconds, of the worst fault and window."""
    of_all = [figures.of(job, window, fault)["wait_p99_s"][1:] for window in figures.windows for fault in FAULTS]
    return max(float(wait_s) for waits_s in of_all for wait_s in waits_s)


def oldest(figures: ClusterFigures, job: str) -> str:
    """Returns the age of the oldest sample that came closest to what is allowed, and that."""
    of_all = [figures.of(job, window, fault) for window in figures.windows for fault in FAULTS]
    worst = max(of_all, key=lambda line: line["oldest_s"] / line["oldest_allowed_s"])
    return f"{worst['oldest_s']:.2f} of {worst['oldest_allowed_s']:.2f}"


def row(cells: Iterable[str]) -> str:
    """Returns a line of a table."""
    return f"| {' | '.join(cells)} |"


def drawn(figures: ClusterFigures) -> Figure:
    """Draws the time of an epoch by job and fault, a panel for each window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(figures.windows), squeeze=False)[0]
    places = range(len(figures.jobs))
    for panel, window in zip(panels, figures.windows, strict=True):
        for number, (fault, colour) in enumerate(zip(FAULTS, COLOURS, strict=True)):
            times = [figures.slowdown(job, window, fault) for job in figures.jobs]
            # Beside each other: most are 1.
            beside = [place + 0.1 * (number - 2) for place in places]
            panel.plot(beside, times, marker="o", markersize=4, color=colour, label=fault, linestyle="none")
        panel.axhline(1.05, color="#333333", linewidth=0.8, linestyle=":")
        panel.set_xticks(places, [job.replace(" in groups ", "\nin groups\n") for job in figures.jobs])
        panel.set_xlabel("nodes")
        panel.set_ylabel("time of an epoch, over a healthy job's")
        panel.set_title(f"samples requested {window * STEP_S:g} s ahead")
        panel.set_ylim(bottom=0.95)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(FAULTS), frameon=False)
    return figure


def main() -> int:
    """Returns exit code 0; 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "cluster.jsonl", help="lines of the simulation (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "inside", help="directory for the drawing (default: %(default)s)")
    args = parser.parse_args()
    if not args.figures.is_file():
        parser.error(f"{args.figures} is missing: run make cluster")
    figures = ClusterFigures(json.loads(line) for line in args.figures.read_text().splitlines())
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "cluster", "svg.fonttype": "none", "font.size": 8}):
        drawn(figures).savefig(args.into / "cluster.svg", metadata={"Date": None})
    print("\n".join(tables(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
