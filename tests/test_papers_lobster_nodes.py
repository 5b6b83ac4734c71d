"""Figures of `make papers-lobster-nodes` from the lines of its ranks."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bench.report import BenchReport
from papers import lobster_nodes
from papers import lobster_nodes_page as page
from papers.lobster_nodes import EPOCHS, LOADERS, RANKS, READ_S, READS, STEP_MS, NodesFiles, WarmEpochs, scenario, shortest_s
from papers.lobster_page import NOT_MEASURED, PaperFigures

NODES = 2
TOTAL = 1000


def lines(waits_s: list[list[float]], source_bytes: list[list[int]]) -> list[dict[str, Any]]:
    """Returns the lines of all ranks: waits by rank, equal in each epoch, and bytes of the source by epoch and rank."""
    return [
        {"rank": rank, "epoch": epoch, "waits_s": waits_s[rank], "figures": {"source_bytes": source_bytes[epoch][rank]}}
        for rank in reversed(range(NODES * RANKS))
        for epoch in range(EPOCHS)
    ]


def test_a_warm_epoch_is_told_by_its_slowest_ranks_and_the_bytes_of_each_node_once() -> None:
    waits = [[0.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.25, 0.0], [0.0, 0.0, 0.0]]
    told = [[600, 500, 390, 400], [700, 700, 500, 500], [790, 800, 600, 600]]
    found = WarmEpochs.of(lines(waits, told), NODES, TOTAL)
    assert found.seconds == pytest.approx(3 * STEP_MS / 1000 + 0.5)
    assert found.imbalanced == pytest.approx(1 / 3)
    # 400 of 2,000 bytes were read from the source in two epochs.
    assert found.hits == pytest.approx(0.8)


def test_a_rank_that_went_through_fewer_steps_is_refused() -> None:
    waits = [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="zip"):
        WarmEpochs.of(lines(waits, [[0] * 4] * EPOCHS), NODES, TOTAL)


def test_an_epoch_is_bound_by_its_steps_or_by_the_reads_that_miss() -> None:
    assert shortest_s(128, 16, 1.0) == pytest.approx(16 * STEP_MS / 1000)
    assert shortest_s(128, 16, 0.25) == pytest.approx(96 * READ_S / READS)


def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchReport:
    """Returns a saved report of two nodes. Lobster's epoch takes 2 s, and the others take 3 s and more."""
    seconds = {name: 2.0 if name == "lobster_as_written" else 3.0 + number for number, name in enumerate(LOADERS)}

    def run(_world: NodesFiles, _count: int, loader: str) -> WarmEpochs:
        return WarmEpochs(seconds[loader], 0.25, 0.5)

    monkeypatch.setattr(lobster_nodes, "run", run)
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report = BenchReport("lobster-nodes", (scenario(2),), quick=False, commit="c0ffee")
    lobster_nodes.figures(2, NodesFiles(tmp_path, tmp_path, 256, 1), report)
    report.save()
    return report


def test_the_page_sets_speed_ups_and_steps_beside_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = reported(tmp_path, monkeypatch)
    printed = page.tables(PaperFigures(json.loads(report.path.read_text())["rows"]))
    assert f"| static | 3.00 | 0.50 | 0.25 | {NOT_MEASURED} | {NOT_MEASURED} | {NOT_MEASURED} | 0.58 |" in printed
    assert f"| static | 1.50 | {NOT_MEASURED} | 2.0 |" in printed
    assert f"| NoPFS | 2.00 | {NOT_MEASURED} | 1.2 |" in printed
    if importlib.util.find_spec("matplotlib") is not None:
        assert page.main(["--figures", str(report.path), "--into", str(tmp_path)]) == 0
        drawn = (tmp_path / "lobster-nodes.svg").read_bytes()
        assert b"2 nodes" in drawn
        assert b"4 nodes" not in drawn
