"""Sets the figures of `make papers-lobster-nodes` beside the paper's.

Prints the tables of docs/inside/peers.md and draws docs/inside/lobster-nodes.svg.

Reads bench/out/lobster-nodes.json. A number of nodes that was not measured is left out of the drawing, and said to be
missing in the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import OUT, ROOT, proven
from papers.lobster_nodes import LOADERS, NODES, PAPER_IMBALANCED, PAPER_SPEEDUPS, scenario
from papers.lobster_page import COLOURS, PaperFigures, row, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = {"static": "static", "nopfs": "NoPFS", "lobster_as_written": "Lobster as written", "forebay": "Forebay"}
"""Names of the loaders on the page."""
PAPER_NODES = "the paper's 8"
METRICS = {"warm epoch": "warm epoch, s", "samples not read from the source": "not read from the source", "imbalanced steps": "imbalanced"}


def tables(figures: PaperFigures) -> list[str]:
    """Returns both tables in Markdown, and a line that says when they were measured."""
    return [*measured(figures), "", *speedups(figures), "", figures.under]


def measured(figures: PaperFigures) -> list[str]:
    """Returns the table of each loader's figures, by number of nodes."""
    head = [f"{count} nodes: {name}" for count in NODES for name in METRICS.values()]
    lines = [row(["loader", *head, "imbalanced, the paper's 8 nodes"]), row(["---"] * (len(head) + 2))]
    for loader in LOADERS:
        cells = [shown(figures.value(scenario(count), f"{loader}: {metric}")) for count in NODES for metric in METRICS]
        paper = PAPER_IMBALANCED.get(loader)
        lines.append(row([SHOWN[loader], *cells, "" if paper is None else f"{paper:.2f}"]))
    return lines


def speedups(figures: PaperFigures) -> list[str]:
    """Returns the table of Figure 7 (c)."""
    lines = [
        row(["Lobster's speed-up over", *(f"{count} nodes" for count in NODES), "the paper, 8 nodes"]),
        row(["---"] * (len(NODES) + 2)),
    ]
    for loader in (name for name in LOADERS if name != "lobster_as_written"):
        cells = [shown(speedup(figures, count, loader)) for count in NODES]
        lines.append(row([SHOWN[loader], *cells, str(PAPER_SPEEDUPS.get(loader, ""))]))
    return lines


def speedup(figures: PaperFigures, count: int, loader: str) -> float | None:
    """Returns how many times as long an epoch of a loader takes as Lobster's; None if it was not measured."""
    return figures.value(scenario(count), f"lobster_as_written: speed-up over {loader}")


def drawn(figures: PaperFigures) -> Figure:
    """Draws Figures 7 (c) and 8 (b): groups of bars by number of nodes, the paper's last."""
    from matplotlib.figure import Figure

    counts = [count for count in NODES if speedup(figures, count, "static") is not None]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    groups = {f"{count} nodes": {name: speedup(figures, count, name) for name in LOADERS} for count in counts}
    bars(left, groups | {PAPER_NODES: dict(PAPER_SPEEDUPS)})
    left.axhline(1.0, color="#333333", linewidth=0.8, linestyle=":")
    left.set_ylabel("epoch over that of Lobster as written")
    left.set_title("Figure 7 (c): speed-up of Lobster")
    of_steps = {
        f"{count} nodes": {name: figures.value(scenario(count), f"{name}: imbalanced steps") for name in LOADERS} for count in counts
    }
    bars(right, of_steps | {PAPER_NODES: dict(PAPER_IMBALANCED)})
    right.set_ylabel("of all steps")
    right.set_title("Figure 8 (b): imbalanced steps")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def bars(panel: Axes, groups: Mapping[str, Mapping[str, float | None]]) -> None:
    """Draws a bar for each loader of a group; none where there is no value."""
    for number, loader in enumerate(LOADERS):
        places = [group + (number - (len(LOADERS) - 1) / 2) * 0.18 for group in range(len(groups))]
        panel.bar(places, [values.get(loader) or 0.0 for values in groups.values()], 0.18, color=colour(loader), label=SHOWN[loader])
    panel.set_xticks(range(len(groups)), list(groups))


def colour(loader: str) -> str:
    """Returns a loader's colour, which is that of other pages. `static` has PyTorch's, since it stands for it."""
    return COLOURS["PyTorch" if loader == "static" else SHOWN[loader]]


def main(words: Sequence[str] | None = None) -> int:
    """Returns exit code 0; 2 if there is nothing to read, or nothing that proves anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "lobster-nodes.json", help="what was measured (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "inside", help="directory for the drawing (default: %(default)s)")
    args = parser.parse_args(words)
    figures = PaperFigures(proven(parser, args.figures, "papers-lobster-nodes"))
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "lobster", "svg.fonttype": "none", "font.size": 8}):
        drawn(figures).savefig(args.into / "lobster-nodes.svg", metadata={"Date": None})
    print("\n".join(tables(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
