"""Tables and drawing of simulated jobs of many nodes."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from papers import cluster_page
from papers.cluster_page import FAULTS, HEALTHY, RESTART, ClusterFigures, tables

JOBS, WINDOWS = {"8": 8, "4,096 in groups of 128": 4096}, (16, 4)


def line(job: str, window: int, fault: str) -> dict[str, Any]:
    """Returns a line of the simulation: `flapping` makes an epoch 1.5 times as long where the window is short."""
    stalled = 30.0 if fault == "flapping" and window == 4 else 20.0
    return {
        "job": job,
        "window": window,
        "fault": fault,
        "seconds": [21.0, 20.0, stalled],
        "wait_p99_s": [0.5, 0.0, 0.125],
        "source": [0.0, 0.0, 0.0] if fault == RESTART else [1.0, 0.0, 0.0],
        "tries": 1.4 if fault == FAULTS[-1] else 1.01,
        "connections": 2 * (JOBS[job] - 1),
        "bytes": JOBS[job] << 20,
        "oldest_s": 5.0 if fault == "slow" else 1.0,
        "oldest_allowed_s": 6.0,
    }


LINES = [line(job, window, fault) for job in JOBS for window in WINDOWS for fault in (HEALTHY, RESTART, *FAULTS)]


def test_the_tables_have_each_fault_and_each_number_of_nodes() -> None:
    found = {text.split(" | ")[0].strip("| "): text for text in tables(ClusterFigures(LINES))}
    assert found["nodes, window"].endswith("| 8, 2 s | 4,096 in groups of 128, 8 s | 4,096 in groups of 128, 2 s |")
    assert found["flapping"] == "| flapping | 1.00 | 1.50 | 1.00 | 1.50 |"
    assert found["dead"] == "| dead | 1.00 | 1.00 | 1.00 | 1.00 |"
    assert found["most connections of a node"].endswith("| 14 | 8,190 |")
    assert found["memory for them and the table, MiB"].endswith("| 8.0 | 4096.0 |")
    assert found["99 of 100 waits for a batch, worst fault, s"].endswith("| 0.12 | 0.12 |")
    assert found["requests for a sample, worst fault"].endswith("| 1.010 | 1.010 |")
    assert found["oldest sample, s, of what is allowed"].endswith("| 5.00 of 6.00 | 5.00 of 6.00 |")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: uv sync --group plots")
def test_the_drawing_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "cluster.jsonl"
    figures.write_text("\n".join(map(json.dumps, LINES)))
    drawn = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["cluster_page", "--figures", str(figures), "--into", str(tmp_path)])
        assert cluster_page.main() == 0
        drawn.append((tmp_path / "cluster.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert b"flapping" in drawn[0]


def test_what_was_not_simulated_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_page", "--figures", str(tmp_path / "none.jsonl"), "--into", str(tmp_path)])
    with pytest.raises(SystemExit):
        cluster_page.main()
    assert "none.jsonl is missing: run make cluster" in capsys.readouterr().err
