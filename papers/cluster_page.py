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
    """The lines of a simulation, by nodes, window and fault."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self._lines = {(line["nodes"], line["window"], line["fault"]): line for line in lines}

    @property
    def nodes(self) -> list[int]:
        """Numbers of nodes, ascending."""
        return sorted({nodes for nodes, _, _ in self._lines})

    @property
    def windows(self) -> list[int]:
        """Lengths of the window in steps, the longest first."""
        return sorted({window for _, window, _ in self._lines}, reverse=True)

    def of(self, nodes: int, window: int, fault: str) -> dict[str, Any]:
        """Returns the line of a job."""
        return self._lines[nodes, window, fault]

    def slowdown(self, nodes: int, window: int, fault: str) -> float:
        """Returns the longest epoch with the fault over the same epoch of the healthy job."""
        healthy = self.of(nodes, window, HEALTHY)["seconds"][1:]
        return max(float(own / other) for own, other in zip(self.of(nodes, window, fault)["seconds"][1:], healthy, strict=True))

    def worst(self, nodes: int, name: str) -> float:
        """Returns the largest of a figure over all faults of single nodes."""
        return max(float(self.of(nodes, window, fault)[name]) for window in self.windows for fault in FAULTS[:-1])


def tables(figures: ClusterFigures) -> list[str]:
    """Returns the tables, line by line."""
    head = [f"{nodes:,}, {window * STEP_S:g} s" for nodes in figures.nodes for window in figures.windows]
    lines = [row(["nodes, window", *head]), row(["---"] * (len(head) + 1))]
    for fault in FAULTS:
        cells = [f"{figures.slowdown(nodes, window, fault):.2f}" for nodes in figures.nodes for window in figures.windows]
        lines.append(row([fault, *cells]))
    return [*lines, "", *counts(figures)]


def counts(figures: ClusterFigures) -> list[str]:
    """Returns the table of bytes, connections and requests."""
    nodes, longest = figures.nodes, figures.windows[0]
    source = [figures.of(count, longest, HEALTHY)["source"] for count in nodes]
    again = [figures.of(count, longest, "dead")["source"] for count in nodes]
    restarted = [max(figures.of(count, longest, RESTART)["source"]) for count in nodes]
    rows = {
        "source bytes of a healthy job, of S: epoch 1, then": [f"{first:.2f}, {max(later):.2f}" for first, *later in source],
        "a part is dead: epoch 2, 3": [f"{second:.3f}, {third:.3f}" for _, second, third in again],
        "restart with warm disks": [f"{share:.2f}" for share in restarted],
        "most connections of a node": [f"{figures.of(count, longest, HEALTHY)['connections']:,}" for count in nodes],
        "memory for them and the table, MiB": [f"{figures.of(count, longest, HEALTHY)['bytes'] / 2**20:.1f}" for count in nodes],
        "99 of 100 waits for a batch, worst fault, s": [f"{waits(figures, count):.2f}" for count in nodes],
        "requests for a sample, worst fault": [f"{figures.worst(count, 'tries'):.3f}" for count in nodes],
        "the same, half with old members": [f"{figures.of(count, longest, FAULTS[-1])['tries']:.2f}" for count in nodes],
        "oldest sample, s, of what is allowed": [oldest(figures, count) for count in nodes],
    }
    names = [row(["nodes", *(f"{count:,}" for count in nodes)]), row(["---"] * (len(nodes) + 1))]
    return [*names, *(row([name, *cells]) for name, cells in rows.items())]


def waits(figures: ClusterFigures, nodes: int) -> float:
    """Returns the wait for a batch that 99 of 100 do not exceed, in seconds, of the worst fault and window."""
    of_all = [figures.of(nodes, window, fault)["wait_p99_s"][1:] for window in figures.windows for fault in FAULTS]
    return max(float(wait_s) for waits_s in of_all for wait_s in waits_s)


def oldest(figures: ClusterFigures, nodes: int) -> str:
    """Returns the age of the oldest sample that came closest to what is allowed, and that."""
    of_all = [figures.of(nodes, window, fault) for window in figures.windows for fault in FAULTS]
    worst = max(of_all, key=lambda line: line["oldest_s"] / line["oldest_allowed_s"])
    return f"{worst['oldest_s']:.2f} of {worst['oldest_allowed_s']:.2f}"


def row(cells: Iterable[str]) -> str:
    """Returns a line of a table."""
    return f"| {' | '.join(cells)} |"


def drawn(figures: ClusterFigures) -> Figure:
    """Draws the time of an epoch by nodes and fault, a panel for each window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(figures.windows), squeeze=False)[0]
    places = range(len(figures.nodes))
    for panel, window in zip(panels, figures.windows, strict=True):
        for fault, colour in zip(FAULTS, COLOURS, strict=True):
            times = [figures.slowdown(nodes, window, fault) for nodes in figures.nodes]
            panel.plot(places, times, marker="o", markersize=3, color=colour, label=fault, linewidth=1)
        panel.axhline(1.05, color="#333333", linewidth=0.8, linestyle=":")
        panel.set_xticks(places, [f"{nodes:,}" for nodes in figures.nodes])
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
