"""Rows and table of `make papers-deepclone`."""

import json
from pathlib import Path

import pytest

import bench.report
from bench.clone_peers import OURS, Brought
from bench.report import BenchReport
from papers import deepclone


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchReport:
    monkeypatch.setattr(bench.report, "OUT", tmp_path)
    return BenchReport("deepclone", tuple(deepclone.SCENARIOS), quick=False, commit="c0ffee")


def measured(overhead_s: float) -> dict[tuple[str, bool], list[Brought]]:
    others = {(way, False): [Brought(0.05, 2.0, 3.0)] * 10 for way in deepclone.PAPER}
    return {(OURS, True): [Brought(overhead_s, 0.1, 0.1)] * 10, **others}


def test_factors_are_the_other_way_over_ours(report: BenchReport) -> None:
    deepclone.beside_the_paper(report, "nt3: sgd, 2 + 2 ranks", measured(-0.01))
    values = {row.metric: row.value for row in report.rows}
    assert values["readiness: HDF5 over ours"] == pytest.approx(30)
    # An overhead too short to be told from none counts as OVERHEAD_MIN_S.
    assert values["overhead of the two steps: mpi4py pickled over ours"] == pytest.approx(50)


def test_the_table_has_the_paper_s_factors_and_names_what_was_not_measured(report: BenchReport) -> None:
    deepclone.beside_the_paper(report, "nt3: sgd, 2 + 2 ranks", measured(0.01))
    report.save()
    printed = "\n".join(deepclone.page(json.loads(report.path.read_text())["rows"]))
    assert "| NT3: readiness | 14x to 35x | 30x (HDF5), 30x (mpi4py pickled) |" in printed
    assert f"| ResNet-50: overhead | more than 20x (HDF5), 10x (mpi4py) | {deepclone.NOT_MEASURED} |" in printed
    assert "nt3" in {bench.report.scenario_of(row) for row in report.rows}


def test_the_docs_have_every_line_of_the_table() -> None:
    docs = (bench.report.ROOT / "docs/papers.md").read_text()
    assert [line.name for line in deepclone.LINES if f"\n| {line.name} | {line.paper} | " not in docs] == []
