"""Sets the figures of `make papers-monarch` beside the paper's.

Prints the table of docs/papers.md and draws docs/monarch-*.svg.

Reads bench/out/monarch.json. What was not measured is left out of the drawings, and said to be so in the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.report import OUT, ROOT, proven
from papers.monarch_jobs import AS_IT_IS, EPOCHS, FITS, PART, RCLONE_FITS, RCLONE_PART, RSYNC
from papers.monarch_rows import ACCURACY, DIFFERING, EPOCH, OPENS, RATES, READS, SECONDS, TIME, VARIATION, WHOLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRAMEWORKS = {"tensorflow": "TensorFlow", "pytorch": "PyTorch"}
MODELS = {"lenet": "LeNet", "alexnet": "AlexNet", "resnet": "ResNet"}
NOT_MEASURED = "not measured yet"
COLOURS = {AS_IT_IS: "#8a8f98", FITS: "#1b6ca8", PART: "#58a6d6", RSYNC: "#c9a227", RCLONE_FITS: "#a33b3b", RCLONE_PART: "#d98880"}


class MonarchFigures:
    """The rows of a report, by scenario and metric."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self._rows = {(row["scenario"], row["metric"]): row for row in rows}

    def row(self, framework: str, model: str, part: str, metric: str) -> dict[str, Any] | None:
        """`None` if it was not measured."""
        return self._rows.get((f"{framework}-{model}: {part}", metric))

    def value(self, framework: str, model: str, part: str, metric: str) -> float | None:
        """Returns the value of a row; None if it was not measured."""
        row = self.row(framework, model, part, metric)
        return None if row is None else row["value"]

    def samples(self, framework: str, model: str, part: str, metric: str) -> list[float]:
        """Returns the samples of a row; empty if it was not measured."""
        row = self.row(framework, model, part, metric)
        return [] if row is None else row["samples"]


class MonarchLine(NamedTuple):
    """A line of the table: what it is of, the paper's figure, and where ours stands."""

    name: str
    paper: str
    model: str
    metric: str


LINES = (
    MonarchLine("training time, LeNet", "-28 % (TensorFlow)", "lenet", f"{PART}: {TIME}"),
    MonarchLine("training time, AlexNet", "-21 % (TensorFlow)", "alexnet", f"{PART}: {TIME}"),
    MonarchLine("training time, ResNet", "0 (TensorFlow)", "resnet", f"{PART}: {TIME}"),
    MonarchLine("reads of the source, LeNet", "up to -56 %", "lenet", f"{PART}: {READS}"),
    MonarchLine("reads of the source, AlexNet", "up to -56 %", "alexnet", f"{PART}: {READS}"),
    MonarchLine("opens and closes at the source, LeNet", "up to -38 %", "lenet", f"{PART}: {OPENS}"),
    MonarchLine("opens and closes at the source, AlexNet", "up to -38 %", "alexnet", f"{PART}: {OPENS}"),
)
PEERS = (
    MonarchLine("the tier holds all", "", "lenet", f"{FITS}: {TIME}"),
    MonarchLine("rsync first (all must fit)", "", "lenet", f"{RSYNC}: {TIME}"),
    MonarchLine("rclone mount, full VFS cache that holds all", "", "lenet", f"{RCLONE_FITS}: {TIME}"),
    MonarchLine("rclone mount, full VFS cache of 60 %", "", "lenet", f"{RCLONE_PART}: {TIME}"),
)


def table(figures: MonarchFigures) -> list[str]:
    """Returns the table in Markdown.

    Ours is of three epochs against the program as it is, with a tier of 60 %, unless a line says otherwise.
    """
    lines = [["figure", "the paper", *FRAMEWORKS.values()]]
    lines += [[line.name, line.paper, *(less(figures, framework, line) for framework in FRAMEWORKS)] for line in LINES]
    warm = [percent(warm_ratio(figures, framework, "alexnet")) for framework in FRAMEWORKS]
    lines.append(["a warm epoch, AlexNet", "-42 % (48 h to 28 h, PyTorch)", *warm])
    spread = [variation(figures, framework, "resnet") for framework in FRAMEWORKS]
    lines.append(["variation of the throughput, ResNet, epochs 2 and 3", "less", *spread])
    lines.append(["accuracy after equal epochs", "similar", *(accuracy(figures, framework) for framework in FRAMEWORKS)])
    lines += [[f"training time, LeNet: {line.name}", "", *(less(figures, framework, line) for framework in FRAMEWORKS)] for line in PEERS]
    head, *rest = [f"| {' | '.join(cells)} |" for cells in lines]
    return [head, "| --- | --- | --- | --- |", *rest]


def less(figures: MonarchFigures, framework: str, line: MonarchLine) -> str:
    """A ratio, as what was saved, with its interval if it was measured more than once."""
    row = figures.row(framework, line.model, WHOLE, line.metric)
    if row is None:
        return NOT_MEASURED
    low, high = map(percent, row["interval"])
    return percent(row["value"]) + (f" ({low} to {high})" if low != high else "")


def percent(ratio: float | None) -> str:
    """Returns a ratio's difference from one, in per cent."""
    if ratio is None:
        return NOT_MEASURED
    change = round((ratio - 1) * 100)
    return f"{change:+d} %" if change else "0"


def warm_ratio(figures: MonarchFigures, framework: str, model: str) -> float | None:
    """An epoch after the first over one of the program as it is."""
    mine, plain = (figures.samples(framework, model, EPOCH, f"{arm}: {SECONDS}") for arm in (PART, AS_IT_IS))
    return median(warm(mine)) / median(warm(plain)) if mine and plain else None


def warm(samples: Sequence[float]) -> list[float]:
    """Without the first epoch of each run."""
    return [sample for number, sample in enumerate(samples) if number % EPOCHS]


def variation(figures: MonarchFigures, framework: str, model: str) -> str:
    """The coefficient of variation without and with."""
    plain, mine = (figures.value(framework, model, EPOCH, f"{arm}: {VARIATION}") for arm in (AS_IT_IS, PART))
    return NOT_MEASURED if plain is None or mine is None else f"{plain:.3f} to {mine:.3f}"


def accuracy(figures: MonarchFigures, framework: str) -> str:
    """Returns the number of epochs whose weights differ, over all models."""
    found = [figures.value(framework, model, ACCURACY, DIFFERING) for model in MODELS]
    if None in found:
        return NOT_MEASURED
    differing = sum(value for value in found if value)
    return f"{differing:.0f} epochs differ" if differing else "equal, to the last bit of the weights"


def drawn(figures: MonarchFigures) -> dict[str, Figure]:
    """The drawings, by name."""
    return {"monarch-time": times(figures), "monarch-throughput": throughputs(figures), "monarch-source": sources(figures)}


def times(figures: MonarchFigures) -> Figure:
    """Three epochs, by model and way."""
    figure, panels = sheet(1, len(FRAMEWORKS), 3.2)
    for panel, (framework, name) in zip(panels[0], FRAMEWORKS.items(), strict=True):
        for number, arm in enumerate(COLOURS):
            taken = [three_epochs(figures, framework, model, arm) for model in MODELS]
            bars(panel, number, arm, taken)
        panel.set_xticks(range(len(MODELS)), list(MODELS.values()))
        panel.set_title(name)
        panel.set_ylabel("three epochs, s")
    named(figure, panels)
    return figure


def three_epochs(figures: MonarchFigures, framework: str, model: str, arm: str) -> float:
    """Seconds; 0 if it was not measured."""
    own = figures.value(framework, model, WHOLE, f"{AS_IT_IS}: {TIME}") or 0.0
    return own * over_plain(figures, framework, model, arm, TIME)


def over_plain(figures: MonarchFigures, framework: str, model: str, arm: str, metric: str) -> float:
    """Over the program as it is; 0 if it was not measured."""
    found = figures.value(framework, model, WHOLE, f"{arm}: {metric}")
    return 0.0 if found is None else 1.0 if arm == AS_IT_IS else found


def throughputs(figures: MonarchFigures) -> Figure:
    """Samples a second over the three epochs of a run."""
    figure, panels = sheet(len(MODELS), len(FRAMEWORKS), 6.5)
    for row, (model, model_name) in zip(panels, MODELS.items(), strict=True):
        for panel, (framework, name) in zip(row, FRAMEWORKS.items(), strict=True):
            for arm in (AS_IT_IS, PART, FITS):
                rates = figures.samples(framework, model, EPOCH, f"{arm}: {RATES}")
                panel.plot(range(len(rates)), rates, color=COLOURS[arm], label=arm, linewidth=1)
            panel.set_title(f"{name}, {model_name}")
            panel.set_ylabel("samples/s")
            panel.set_ylim(bottom=0)
    for panel in panels[-1]:
        panel.set_xlabel("s of training")
    named(figure, panels)
    return figure


def sources(figures: MonarchFigures) -> Figure:
    """Draws the source's operations in three epochs, over those of the program as it is."""
    figure, panels = sheet(1, len(FRAMEWORKS), 3.2)
    kinds = [(model, metric) for model in ("lenet", "alexnet") for metric in (READS, OPENS)]
    for panel, (framework, name) in zip(panels[0], FRAMEWORKS.items(), strict=True):
        for number, arm in enumerate(COLOURS):
            bars(panel, number, arm, [over_plain(figures, framework, model, arm, metric) for model, metric in kinds])
        panel.set_xticks(range(len(kinds)), [f"{MODELS[model]}\n{metric.split()[0]}" for model, metric in kinds])
        panel.set_title(name)
        panel.set_ylabel("over the program as it is")
    named(figure, panels)
    return figure


def bars(panel: Axes, number: int, arm: str, values: Sequence[float]) -> None:
    """One bar a group: the `number`th of as many as there are arms."""
    width = 0.8 / len(COLOURS)
    places = [group + (number - (len(COLOURS) - 1) / 2) * width for group in range(len(values))]
    panel.bar(places, values, width, color=COLOURS[arm], label=arm)


def sheet(rows: int, columns: int, height: float) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """An empty drawing with as many panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    panels: Sequence[Sequence[Axes]] = figure.subplots(rows, columns, squeeze=False)
    return figure, panels


def named(figure: Figure, panels: Sequence[Sequence[Axes]]) -> None:
    """Adds the legend below all panels."""
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def main() -> int:
    """Exit code 0; 2 if there is nothing to read, or nothing that proves anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=OUT / "monarch.json", help="what was measured (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs", help="directory for the drawings (default: %(default)s)")
    args = parser.parse_args()
    figures = MonarchFigures(proven(parser, args.figures, "papers-monarch"))
    import matplotlib

    # The same figures give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "monarch", "svg.fonttype": "none", "font.size": 8}):
        for name, figure in drawn(figures).items():
            figure.savefig(args.into / f"{name}.svg", metadata={"Date": None})
    print("\n".join(table(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
