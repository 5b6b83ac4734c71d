"""Figures of `make papers-deepclone-hosts`: rows, table and drawing, and that its programs bring states over a link."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.report import BenchReport
from papers import deepclone_hosts, lobster_page
from papers.deepclone_hosts import FIGURES, OURS, WAYS, DeepCloneHosts, DeepCloneSize
from testbed.nodes import can_isolate
from testbed.testbed import have_fuse

pytestmark = pytest.mark.usefixtures("idle_machine")

SMALL = DeepCloneSize(dict.fromkeys(FIGURES, "nt3-small"), rounds=1)
STATE_BYTES = 9_600_000
PLACE = Path("/dev/shm")  # noqa: S108
"""Short: the paths of sockets lie below it."""


def nowhere() -> DeepCloneHosts:
    return DeepCloneHosts([], (Path("/nowhere"), Path("/nowhere")), SMALL)


def reported(monkeypatch: pytest.MonkeyPatch, overhead_s: float, wrong: int = 0) -> BenchReport:
    """A report of NT3: ours takes a tenth of the others' times."""
    mine = [{"overhead_s": overhead_s, "standby_s": 0.2, "readiness_s": 0.1, "stall_s": 0.001}]
    other: dict[str, Any] = {"overhead_s": 0.5, "standby_s": 2.0, "readiness_s": 1.0, "wrong": wrong}
    monkeypatch.setattr(deepclone_hosts, "by_forebay", lambda _world, _model: (mine, [STATE_BYTES]))
    monkeypatch.setattr(deepclone_hosts, "by_others", lambda _world, _model: ({way: [other] * 3 for way in WAYS}, 1))
    report = BenchReport("deepclone-hosts", tuple(FIGURES), quick=False, commit="c0ffee")
    report.begin("nt3")
    deepclone_hosts.SCENARIOS["nt3"](nowhere(), report)
    return report


def test_factors_are_the_other_way_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.metric: row for row in reported(monkeypatch, overhead_s=-0.01).rows}
    assert rows[f"readiness: HDF5 over {OURS}"].value == pytest.approx(10)
    # An overhead too short to be told from none counts as OVERHEAD_MIN_S.
    assert rows[f"overhead of two steps: mpi4py pickled over {OURS}"].value == pytest.approx(500)


def test_a_tensor_that_arrives_wrong_misses_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {row.metric: row.holds for row in reported(monkeypatch, overhead_s=0.1, wrong=1).rows}
    assert found["mpi4py Send: tensors that arrived wrong"] == "no"
    assert {row.metric: row.holds for row in reported(monkeypatch, 0.1).rows}["HDF5: tensors that arrived wrong"] == "yes"


def test_the_table_has_what_was_saved_and_names_what_was_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report = reported(monkeypatch, overhead_s=0.05)
    report.save()
    printed = deepclone_hosts.page(lobster_page.PaperFigures(json.loads(report.path.read_text())["rows"]))
    assert "| NT3: readiness | 0.100 s | 10 | 10 | 10 | 14x to 35x |" in printed
    assert deepclone_hosts.NO_FACTOR not in "".join(printed)
    assert any(line.startswith(f"| ResNet-50: readiness | {lobster_page.NOT_MEASURED} |") for line in printed)
    if importlib.util.find_spec("matplotlib") is not None:
        assert deepclone_hosts.show(["--page", "--figures", str(report.path), "--into", str(tmp_path)]) == 0
        assert b"Figure 4: NT3" in (tmp_path / "deepclone-hosts.svg").read_bytes()


def test_an_overhead_that_cannot_be_told_from_none_gives_no_factor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report = reported(monkeypatch, overhead_s=-0.01)
    report.save()
    printed = deepclone_hosts.page(lobster_page.PaperFigures(json.loads(report.path.read_text())["rows"]))
    assert next(line for line in printed if line.startswith("| NT3: overhead")).count(deepclone_hosts.NO_FACTOR) == len(WAYS)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or have_fuse() is not None or not can_isolate(), reason="needs root, FUSE and network namespaces")
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py: uv sync --group mpi")
def test_each_way_brings_the_state_over_the_link() -> None:
    with deepclone_hosts.world(SMALL, PLACE) as world:
        # Raises if messages do not go over the link.
        others, _ = deepclone_hosts.by_others(world, "nt3-small")
    assert {way: len(some) for way, some in others.items()} == dict.fromkeys(WAYS, 1)
    assert all(one["wrong"] == 0 and one["readiness_s"] > 0 for some in others.values() for one in some)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or have_fuse() is not None or not can_isolate(), reason="needs root, FUSE and network namespaces")
def test_a_fork_brings_the_state_over_the_link() -> None:
    with deepclone_hosts.world(SMALL, PLACE) as world:
        # Raises if the clone's losses are others than the job's.
        (fork,), (sent,) = deepclone_hosts.by_forebay(world, "nt3-small")
    assert sent > STATE_BYTES
    assert fork["standby_s"] > fork["readiness_s"] > 0
