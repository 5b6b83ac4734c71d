"""Sets the figures of `make papers-lobster-measured` beside the paper's and the simulator's.

Prints the tables of docs/inside/papers.md and draws docs/inside/lobster-measured.svg.

Reads bench/out/lobster-measured.json. A scenario that was not measured is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import OUT, ROOT, proven
from papers.lobster import PAPER_IMBALANCE, PAPER_SPEEDUPS
from papers.lobster_jobs import ABLATION, LOADERS, RANKS, STEPS_MS
from papers.lobster_measured import BROKEN_DOWN, FIGURE_MODEL, PANEL, PAPER_ABLATION, PAPER_OF, THREADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "PyTorch": "#8a8f98",
    "DALI-like": "#c9a227",
    "NoPFS": "#7a9e7e",
    "Lobster as written": "#d98880",
    "Lobster": "#a33b3b",
    "Forebay": "#1b6ca8",
}
NOT_MEASURED = "not measured yet"


class PaperFigures:
    """The rows of a report, by the first word of their scenario and by metric."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self._rows = {(row["scenario"].split(":")[0], row["metric"]): row for row in rows}

    def value(self, scenario: str, metric: str) -> float | None:
        """Returns the value of a row; None if it was not measured."""
        row = self._rows.get((scenario, metric))
        return None if row is None else row["value"]

    def samples(self, scenario: str, metric: str) -> list[float]:
        """Returns the samples of a row; empty if it was not measured."""
        row = self._rows.get((scenario, metric))
        return [] if row is None else row["samples"]

    @property
    def under(self) -> str:
        """Commits and loads of the rows."""
        commits = sorted({row["commit"][:9] for row in self._rows.values()})
        loads = [row["load_average"] for row in self._rows.values()]
        return f"Commit {', '.join(commits)}; load {min(loads):.1f} to {max(loads):.1f}." if loads else NOT_MEASURED


def shown(value: float | None, form: str = ".2f") -> str:
    """Returns a cell of a table."""
    return NOT_MEASURED if value is None else f"{value:{form}}"


def tables(figures: PaperFigures) -> list[str]:
    """Returns all tables in Markdown, and a line that says when they were measured."""
    return [*epochs(figures), "", *steps(figures), "", *gains(figures), "", figures.under]


def row(cells: Iterable[str]) -> str:
    """Returns a line of a table."""
    return f"| {' | '.join(cells)} |"


def epochs(figures: PaperFigures) -> list[str]:
    """Returns the table of Figure 7a: epoch times in kind, and the simulator's over them in brackets."""
    head = [*STEPS_MS, f"{FIGURE_MODEL}, really decoded", "Lobster's speed-up over it", "the paper's"]
    lines = [row(["loader", *head]), row(["---"] * (len(head) + 1))]
    for name in LOADERS:
        cells = [with_ratio(figures, "speed", f"{model}, {name}") for model in STEPS_MS]
        cells.append(with_ratio(figures, "decoded", name))
        paper = PAPER_SPEEDUPS[PANEL].get(PAPER_OF.get(name, ""))
        is_lobster = name == "Lobster"
        cells.append("" if is_lobster else shown(figures.value("speed", f"Lobster's speed-up over {name}")))
        lines.append(row([name, *cells, "" if paper is None else str(paper)]))
    return lines


def with_ratio(figures: PaperFigures, scenario: str, name: str) -> str:
    """Returns the time of an epoch, and the simulator's over it."""
    seconds, ratio = (figures.value(scenario, f"{name}: {what}") for what in ("epoch", "simulator over measured"))
    return NOT_MEASURED if seconds is None else f"{seconds:.2f} s ({shown(ratio)})"


def steps(figures: PaperFigures) -> list[str]:
    """Returns the table of Figures 8a and 8c."""
    lines = [row(["loader", "imbalanced steps", "simulated", "the paper's", "median step, ms", "simulated"]), row(["---"] * 6)]
    for name in LOADERS:
        paper = PAPER_IMBALANCE[PANEL].get(PAPER_OF.get(name, ""))
        shares = [shown(figures.value("balance", f"{name}: imbalanced steps{end}")) for end in ("", ", simulated")]
        medians = [figures.value("balance", f"{name}: time of a step{end}") for end in ("", ", simulated")]
        cells = [shown(None if median is None else median * 1e3, ".0f") for median in medians]
        lines.append(row([name, *shares, "" if paper is None else f"{paper:.2f}", *cells]))
    return lines


def gains(figures: PaperFigures) -> list[str]:
    """Returns the table of Figure 11."""
    lines = [row(["over the DALI-like loader", "in kind", "simulated", "the paper's"]), row(["---"] * 4)]
    for name in ABLATION:
        cells = [shown(figures.value("ablation", f"{name}: speed-up over DALI-like{end}")) for end in ("", ", simulated")]
        lines.append(row([name, *cells, PAPER_ABLATION[name]]))
    return lines


def drawn(figures: PaperFigures) -> Figure:
    """Draws Figures 3, 6, 7a, 8a, 8c and 11 on one sheet."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    panels = figure.subplots(3, 2)
    decoding(panels[0][0], figures)
    epoch_times(panels[0][1], figures)
    imbalance(panels[1][0], figures)
    step_times(panels[1][1], figures)
    ablation(panels[2][0], figures)
    breakdown(panels[2][1], figures)
    handles, labels = panels[1][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def decoding(panel: Axes, figures: PaperFigures) -> None:
    """Figure 6."""
    for name, colour in (("decoded", "#1b6ca8"), ("timed waits", "#c9a227")):
        rates = figures.samples("threads", f"{name}: samples by threads")
        panel.plot(THREADS[: len(rates)], rates, marker="o", markersize=3, color=colour, label=name, linewidth=1)
    panel.set_xlabel("threads")
    panel.set_ylabel("samples/s")
    panel.set_ylim(bottom=0)
    panel.set_title("Figure 6: decoding")
    panel.legend(frameon=False)


def epoch_times(panel: Axes, figures: PaperFigures) -> None:
    """Figure 7a: times over PyTorch's, in kind as bars, simulated as dashes."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        values = [over_torch(figures, model, name, "epoch") for model in STEPS_MS]
        places = [group + (number - (len(COLOURS) - 1) / 2) * 0.13 for group in range(len(values))]
        panel.bar(places, values, 0.13, color=colour, label=name)
        predicted = [over_torch(figures, model, name, "epoch, simulated") for model in STEPS_MS]
        panel.scatter(places, predicted, marker="_", color="#000000", s=30, zorder=3)
    panel.set_xticks(range(len(STEPS_MS)), list(STEPS_MS))
    panel.set_ylabel("epoch over PyTorch's in kind")
    panel.set_title("Figure 7a: epochs (dashes: simulated)")


def over_torch(figures: PaperFigures, model: str, name: str, what: str) -> float:
    """Returns the time of an epoch over that of PyTorch's loader in kind; 0 if it was not measured."""
    own, torch = figures.value("speed", f"{model}, {name}: {what}"), figures.value("speed", f"{model}, PyTorch: epoch")
    return own / torch if own and torch else 0.0


def imbalance(panel: Axes, figures: PaperFigures) -> None:
    """Figure 8a."""
    for end, shift, colour in (("", -0.2, "#1b6ca8"), (", simulated", 0.2, "#c9c9c9")):
        shares = [figures.value("balance", f"{name}: imbalanced steps{end}") or 0.0 for name in LOADERS]
        panel.bar([place + shift for place in range(len(shares))], shares, 0.4, color=colour, label=end.strip(", ") or "in kind")
    paper = [PAPER_IMBALANCE[PANEL].get(PAPER_OF.get(name, "")) for name in LOADERS]
    known = [(place, share) for place, share in enumerate(paper) if share is not None]
    panel.scatter([place for place, _ in known], [share for _, share in known], marker="x", color="#a33b3b", label="the paper", zorder=3)
    panel.set_xticks(range(len(LOADERS)), [name.replace(" as ", "\nas ") for name in LOADERS])
    panel.set_ylabel("of all steps")
    panel.set_title(f"Figure 8a: imbalanced steps, {FIGURE_MODEL}")
    panel.legend(frameon=False)


def step_times(panel: Axes, figures: PaperFigures) -> None:
    """Figure 8c, as distributions: in kind drawn through, simulated dotted."""
    for name, colour in COLOURS.items():
        for end, style in (("", "-"), (", simulated", ":")):
            times = sorted(figures.samples("balance", f"{name}: time of a step{end}"))
            shares = [(number + 1) / len(times) for number in range(len(times))]
            panel.plot(times, shares, style, color=colour, label=None if end else name, linewidth=1)
    panel.set_xlabel("s")
    panel.set_ylabel("share of the steps")
    panel.set_title("Figure 8c: time of a step (dotted: simulated)")


def ablation(panel: Axes, figures: PaperFigures) -> None:
    """Figure 11."""
    for end, shift, colour in (("", -0.2, "#1b6ca8"), (", simulated", 0.2, "#c9c9c9")):
        values = [figures.value("ablation", f"{name}: speed-up over DALI-like{end}") or 0.0 for name in ABLATION]
        panel.bar([place + shift for place in range(len(values))], values, 0.4, color=colour, label=end.strip(", ") or "in kind")
    panel.axhline(1.0, color="#333333", linewidth=0.8, linestyle=":")
    panel.set_xticks(range(len(ABLATION)), list(ABLATION))
    panel.set_ylabel("speed-up over DALI-like")
    panel.set_title("Figure 11: Lobster's parts")
    panel.legend(frameon=False)


def breakdown(panel: Axes, figures: PaperFigures) -> None:
    """Figure 3: of the DALI-like loader, the wait of each rank in each step shown."""
    name = BROKEN_DOWN[0]
    for rank in range(RANKS):
        waits = figures.samples("breakdown", f"{name}, rank {rank}: wait for its own batch")
        idle = figures.samples("breakdown", f"{name}, rank {rank}: wait for other ranks")
        places = [step + (rank - (RANKS - 1) / 2) * 0.2 for step in range(len(waits))]
        panel.bar(places, waits, 0.2, color="#a33b3b", label="own batch" if rank == 0 else None)
        panel.bar(places, idle, 0.2, bottom=waits, color="#d9d9d9", label="other ranks" if rank == 0 else None)
    panel.set_xlabel("eight steps each at the beginning, middle and end; a bar a rank")
    panel.set_ylabel("s of waiting")
    panel.set_title(f"Figure 3: {name}, {FIGURE_MODEL}")
    panel.legend(frameon=False)


def main(words: Sequence[str] | None = None) -> int:
    """Returns exit code 0; 2 if there is nothing to read, or nothing that proves anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "lobster-measured.json", help="what was measured (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "inside", help="directory for the drawing (default: %(default)s)")
    args = parser.parse_args(words)
    figures = PaperFigures(proven(parser, args.figures, "papers-lobster-measured"))
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "lobster", "svg.fonttype": "none", "font.size": 8}):
        drawn(figures).savefig(args.into / "lobster-measured.svg", metadata={"Date": None})
    print("\n".join(tables(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
