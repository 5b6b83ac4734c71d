"""Measures the DeepClone paper's own comparison: `make papers-deepclone`, or some models with --only.

`--page` prints the table of docs/papers.md from bench/out/deepclone.json instead; it names what was not measured.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench import clone_peers
from bench.clone import MODELS, CloneBench, measure_all
from bench.clone_jobs import node
from bench.clone_peers import OURS, Brought
from bench.report import OUT, BenchReport, What, proven

# As clone_ways.py names them.
PAPER = ("HDF5", "mpi4py pickled")
# Shorter overheads count as this long: they can't be told from none.
OVERHEAD_MIN_S = 0.001
THE_PAPER = "the paper has 17x to 25x less overhead, and readiness 10x to 75x shorter"
NOT_MEASURED = "not measured yet"
Row = dict[str, Any]


class PaperLine(NamedTuple):
    """A line of the table beside the paper's: its name, the paper's figure, and the measure and models of ours."""

    name: str
    paper: str
    measure: str
    models: tuple[str, ...]


LINES = (
    PaperLine("NT3: overhead", "17x to 25x", "overhead of the two steps", ("nt3",)),
    PaperLine("NT3: readiness", "14x to 35x", "readiness", ("nt3",)),
    PaperLine("ResNet-50: overhead", "more than 20x (HDF5), 10x (mpi4py)", "overhead of the two steps", ("resnet50",)),
    PaperLine("ResNet-50: readiness", "more than 20x (HDF5), 10x (mpi4py)", "readiness", ("resnet50",)),
    PaperLine("ResNet-152, DenseNet-121: overhead", "up to 17x", "overhead of the two steps", ("resnet152", "densenet121")),
    PaperLine("ResNet-152, DenseNet-121: readiness", "up to 75x", "readiness", ("resnet152", "densenet121")),
)


def page(rows: Iterable[Row]) -> list[str]:
    """Returns the table in Markdown: the time of each way that the paper compares itself with, over Forebay's."""
    found = {(row["scenario"], row["metric"]): row["value"] for row in rows}

    def ours(line: PaperLine) -> str:
        parts = []
        for way in PAPER:
            values = [found.get((f"{model}: sgd, 2 + 2 ranks", over_ours(line.measure, way))) for model in line.models]
            if None in values:
                return NOT_MEASURED
            parts.append(f"{' and '.join(f'{value:.3g}x' for value in values)} ({way})")
        return ", ".join(parts)

    return ["| figure | the paper | ours |", "| --- | --- | --- |", *(f"| {line.name} | {line.paper} | {ours(line)} |" for line in LINES)]


def beside_the_paper(report: BenchReport, scenario: str, found: dict[tuple[str, bool], list[Brought]]) -> None:
    """Adds the rows of the paper's measures, and the factors of its two other ways over Forebay."""
    mine = found[OURS, True]
    for way, others in found.items():
        if way == (OURS, True) or way[0] not in PAPER or way[1]:
            continue
        ratios = [other.readiness_s / one.readiness_s for one, other in zip(mine, others, strict=True)]
        report.time(What(scenario, over_ours("readiness", way[0]), "x", baseline="ours"), ratios, THE_PAPER)
        own, theirs = (statistics.median(one.overhead_s for one in some) for some in (mine, others))
        note = f"{theirs * 1e3:.1f} ms over {own * 1e3:.1f} ms; {THE_PAPER}"
        what = What(scenario, over_ours("overhead of the two steps", way[0]), "x", baseline="ours")
        report.once(what, theirs / max(own, OVERHEAD_MIN_S), note)


def over_ours(measure: str, way: str) -> str:
    """Returns the name of a row."""
    return f"{measure}: {way} over ours"


def of_model(name: str, world: CloneBench, report: BenchReport) -> None:
    """Measures one model's state, brought over by Forebay and in the paper's two other ways."""
    scenario = f"{name}: sgd, 2 + 2 ranks"
    with node(world.place) as here:
        ways = [(way, False) for way in PAPER]
        found = clone_peers.measure(here, report, scenario, world.model(name), "sgd", ways, world.size.forks)
    beside_the_paper(report, scenario, found)


SCENARIOS: dict[str, Callable[[CloneBench, BenchReport], None]] = {name: functools.partial(of_model, name) for name in MODELS}


def main() -> int:
    """Measures, or prints the table with `--page`; returns the exit code, 2 if there is nothing to read."""
    if "--page" not in sys.argv[1:]:
        return measure_all("papers-deepclone", __doc__, SCENARIOS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", required=True, help="print the table of docs/papers.md")
    parser.add_argument("--figures", type=Path, default=OUT / "deepclone.json", help="file of measured figures (default: %(default)s)")
    args = parser.parse_args()
    print("\n".join(page(proven(parser, args.figures, "papers-deepclone"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
