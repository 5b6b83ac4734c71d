"""Sets the figures of `make papers-monarch-first` beside the paper's.

Prints the tables of docs/inside/papers.md and draws docs/inside/monarch-long.svg.

Reads bench/out/monarch-first.json. What was not measured is left out of the drawing, and said to be so in the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import OUT, ROOT, proven
from papers.lobster_page import PaperFigures, row, shown
from papers.monarch_first import AS_IT_IS, EPOCHS, LOCAL, PAPER_WAY, WAYS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {AS_IT_IS: "#8a8f98", PAPER_WAY.name: "#1b6ca8"}


def tables(figures: PaperFigures) -> list[str]:
    """Returns all tables in Markdown, and a line that says when they were measured."""
    return [*epochs(figures, "dropped"), "", *epochs(figures, "kept"), "", *beside(figures), "", *long_run(figures), "", figures.under]


def epochs(figures: PaperFigures, scenario: str) -> list[str]:
    """Returns the table of three epochs: time, and reads at the source."""
    head = [f"page caches {scenario}", *(f"epoch {epoch + 1}" for epoch in range(EPOCHS)), "three epochs: time, reads"]
    lines = [row(head), row(["---"] * len(head))]
    for way in WAYS:
        cells = []
        for epoch in range(EPOCHS):
            name = f"{way.name}, epoch {epoch + 1}"
            seconds, reads = figures.value(scenario, f"{name}: time"), figures.value(scenario, f"{name}: reads at the source")
            cells.append(f"{shown(seconds)} s, {shown(reads, ',.0f')} reads")
        over = [figures.value(scenario, f"{way.name}: {what} of {EPOCHS} epochs over") for what in ("time", "reads")]
        cells.append("" if way.mode is None else f"{shown(over[0])}, {shown(over[1])}")
        lines.append(row([way.name, *cells]))
    return lines


def beside(figures: PaperFigures) -> list[str]:
    """Returns the table of the first epoch beside another client."""
    lines = [row(["beside another client", "epoch 1", "time over", "what the other client reads over"]), row(["---"] * 4)]
    for way in WAYS:
        if way.name != LOCAL:
            seconds = shown(figures.value("client", f"{way.name}, epoch 1: time"))
            over = [f"{way.name}, epoch 1: time over", f"{way.name}: what the other client reads over"]
            cells = ["", ""] if way.mode is None else [shown(figures.value("client", metric)) for metric in over]
            lines.append(row([way.name, f"{seconds} s", *cells]))
    return lines


def long_run(figures: PaperFigures) -> list[str]:
    """Returns the table of equal time."""
    lines = [row(["equal time", "as it is", "with", "the paper, as it is", "with Monarch"]), row(["---"] * 5)]
    paper = {"epochs in equal time": ("48", "81"), "top 1 at the end": ("0.37", "0.51"), "top 5 at the end": ("0.61", "0.75")}
    for metric, (plain, mine) in paper.items():
        form = ".0f" if metric.startswith("epochs") else ".3f"
        cells = [shown(figures.value("long", f"{way}: {metric}"), form) for way in COLOURS]
        lines.append(row([metric, *cells, plain, mine]))
    equal = shown(figures.value("long", f"{PAPER_WAY.name}: time for equally many epochs over"))
    return [*lines, row(["time for equally many epochs", "1", equal, "1", "0.58; 0.63 in the conclusion"])]


def drawn(figures: PaperFigures) -> Figure:
    """Draws top 1 and top 5 by time and by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, is_time in zip(panels, (True, False), strict=True):
        for name, colour in COLOURS.items():
            at = [seconds / 60 for seconds in figures.samples("long", f"{name}: at_s by epoch")]
            for metric, style in (("top5", ":"), ("top1", "-")):
                shares = figures.samples("long", f"{name}: {metric} by epoch")
                places = at if is_time else range(1, len(shares) + 1)
                panel.plot(places, shares, style, color=colour, label=f"{name}, {metric}", linewidth=1)
        panel.set_xlabel("minutes of training" if is_time else "epochs")
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("of the held-out pictures")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def main(words: Sequence[str] | None = None) -> int:
    """Returns exit code 0; 2 if there is nothing to read, or nothing that proves anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "monarch-first.json", help="what was measured (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "inside", help="directory for the drawing (default: %(default)s)")
    args = parser.parse_args(words)
    figures = PaperFigures(proven(parser, args.figures, "papers-monarch-first"))
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "monarch", "svg.fonttype": "none", "font.size": 8}):
        drawn(figures).savefig(args.into / "monarch-long.svg", metadata={"Date": None})
    print("\n".join(tables(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
