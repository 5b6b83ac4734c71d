"""Figures of `make papers-lobster-measured`: the set-up that the simulator is told, rows, table, drawing, programs."""

import functools
import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.report import BenchReport
from bench.simulator import Simulator, programs
from papers import lobster_jobs, lobster_measured, lobster_page
from papers.lobster_jobs import (
    ABLATION,
    LOADERS,
    QUICK,
    RANKS,
    STEPS_MS,
    TIMED_THREADS,
    Cell,
    LobsterBench,
    LobsterSize,
    MachineCost,
    MeasuredLoader,
)
from testbed.testbed import have_fuse

pytestmark = pytest.mark.usefixtures("idle_machine")

STEPS = 30


class FewFiles(LobsterBench):
    """A bench whose photographs are noise, as many as an epoch of its size has samples."""

    @functools.cached_property
    def files(self) -> Path:
        choice = random.Random(3)  # noqa: S311
        path = self.place / "files"
        path.mkdir()
        for number in range(lobster_jobs.RANKS * lobster_jobs.BATCH * self.size.steps):
            side = choice.randrange(40, 90)
            noise = bytes(choice.randrange(256) for _ in range(side * side * 3))
            Image.frombytes("RGB", (side, side), noise).save(path / f"{number:04d}.jpg", quality=60)
        return path


class NoPrograms(FewFiles):
    """A bench in which epochs take what `seconds` says, by loader."""

    seconds: dict[str, float]

    def cell(self, loader: MeasuredLoader, step_ms: float, saturates_at: int = TIMED_THREADS) -> Cell:
        name = next(name for name, each in (LOADERS | ABLATION).items() if each == loader)
        return made(self.seconds.get(name, 10.0), step_ms, saturates_at)


def made(seconds: float, step_ms: float, threads: int) -> Cell:
    """A cell of which the simulator says 10 s, and in which rank 1 is late in every third step."""
    waits = [[step_ms / 1000 if rank == 1 and step % 3 == 0 else 0.0 for step in range(STEPS)] for rank in range(RANKS)]
    epoch = {"seconds": seconds, "waits_s": waits, "steps_s": [seconds / STEPS] * STEPS, "digest": str(threads)}
    kept = lobster_measured.kept(STEPS)
    steps = [{"rank": rank, "late_s": 0.1} for _ in kept for rank in range(RANKS)]
    predicted = {"seconds": 10.0, "imbalanced": 3, "iterations": STEPS}
    simulated = {"epochs": [predicted], "step_times_s": [10.0 / STEPS] * STEPS, "steps": steps}
    return Cell([epoch, epoch], [simulated], MachineCost(step_ms / 1000, 1e-6, 0.001))


def bench_of(kind: type[LobsterBench], place: Path, size: LobsterSize = QUICK) -> Any:  # noqa: ANN401 # of that kind
    return kind(size, place, Simulator())


def reported(place: Path, scenario: str, **seconds: float) -> BenchReport:
    report = BenchReport("lobster-measured", tuple(lobster_measured.SCENARIOS), quick=False, commit="c0ffee")
    world = bench_of(NoPrograms, place)
    world.seconds = {name.replace("_", " "): value for name, value in seconds.items()}
    report.begin(scenario)
    lobster_measured.SCENARIOS[scenario](world, report)
    return report


def test_torch_s_loader_has_workers_and_ours_threads_that_begin_an_epoch_with_nothing(tmp_path: Path) -> None:
    world = bench_of(FewFiles, tmp_path)
    machine = MachineCost.told(100.0, world.mean_bytes)
    torch, ours = (world.scenario(LOADERS[name], machine)["loader"] for name in ("PyTorch", "Forebay"))
    assert (torch["workers"], torch["window"]) == (4, 8)
    assert (ours["decoders"], ours["window"], ours["learns_reads"]) == (2, 10, True)
    assert torch["across_epochs"] == ours["across_epochs"] is False


def test_the_simulator_is_told_the_times_that_the_machine_makes(tmp_path: Path) -> None:
    world = bench_of(FewFiles, tmp_path)
    told = world.scenario(LOADERS["Forebay"], MachineCost.told(100.0, world.mean_bytes))
    assert told["preprocessing"]["seconds"] == pytest.approx(lobster_jobs.DECODE_MS / 1000)
    assert told["source"]["latency"] == pytest.approx(lobster_jobs.LATENCY_MS / 1000)
    assert told["job"]["step"] == 0.1
    # Two of eight threads gain by each other: alone a thread would take a quarter of the time.
    slower = world.scenario(LOADERS["Forebay"], MachineCost(0.103, 0.02 / world.mean_bytes, 0.0066), 2)
    assert slower["preprocessing"] == {"seconds": pytest.approx(0.005), "saturates_at": 2}
    assert slower["source"]["latency"] == pytest.approx(0.044, rel=0.01)
    assert slower["job"]["step"] == 0.103


def test_the_simulator_is_told_what_the_agent_is(tmp_path: Path) -> None:
    world = bench_of(FewFiles, tmp_path)
    for loader in (LOADERS | ABLATION).values():
        agent, scenario = world.agent(loader), world.scenario(loader, MachineCost.told(100.0, world.mean_bytes))
        assert agent["memory_bytes"] + agent["window_bytes"] == scenario["cluster"]["cache"]
        assert agent["window_bytes"] == scenario["cluster"]["reserved"]
        assert (agent["policy"], agent["schedule"]) == (scenario["loader"]["policy"], scenario["loader"]["schedule"])
        assert agent["reads_max"] == scenario["cluster"]["loading_threads"]
        assert scenario["dataset"]["listing"] == world.sizes


def test_figure_3_has_the_steps_that_the_simulator_keeps() -> None:
    assert lobster_measured.kept(100) == [*range(8), *range(46, 54), *range(92, 100)]
    assert lobster_measured.kept(6) == list(range(6))


@pytest.mark.parametrize(("seconds", "holds"), [(9.5, "yes"), (11.0, "yes"), (8.0, "no"), (12.0, "no")])
def test_the_simulator_must_agree_within_a_tenth(tmp_path: Path, seconds: float, holds: str) -> None:
    report = reported(tmp_path, "ablation", both=seconds)
    agreement = next(row for row in report.rows if row.metric.startswith("simulator over measured, farthest"))
    assert agreement.holds == holds
    assert agreement.value == pytest.approx(abs(1 - 10 / seconds))


def test_lobster_must_be_no_slower_than_the_loaders_of_the_paper(tmp_path: Path) -> None:
    rows = {row.metric: row for row in reported(tmp_path, "speed", PyTorch=20.0, NoPFS=9.0).rows}
    assert rows["Lobster's speed-up over PyTorch"].value == pytest.approx(2)
    assert rows["Lobster's time over that of PyTorch, mean of models"].holds == "yes"
    assert rows["Lobster's time over that of NoPFS, mean of models"].holds == "no"


def test_imbalanced_steps_are_those_in_which_one_rank_waits_longer(tmp_path: Path) -> None:
    rows = {row.metric: row for row in reported(tmp_path, "balance").rows}
    assert rows["Lobster: imbalanced steps"].value == pytest.approx(1 / 3)
    assert rows["Lobster: imbalanced steps, simulated"].value == pytest.approx(0.1)


def test_a_rank_that_is_not_late_waits_for_the_one_that_is(tmp_path: Path) -> None:
    rows = {row.metric: row for row in reported(tmp_path, "breakdown").rows}
    own, idle = (rows[f"Forebay, rank 0: wait for {what}"].samples for what in ("its own batch", "other ranks"))
    assert set(own) == {0.0}
    assert len(idle) == 24
    assert max(idle) > 0
    assert max(rows["Forebay, rank 1: wait for other ranks"].samples) == 0


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a report that has all but the scenarios that run programs of their own."""
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report = BenchReport("lobster-measured", tuple(lobster_measured.SCENARIOS), quick=False, commit="c0ffee")
    for scenario in ("speed", "balance", "breakdown", "ablation"):
        report.rows += reported(tmp_path, scenario, PyTorch=20.0).rows
    report.save()
    return report.path


def test_the_tables_have_what_was_saved(measured: Path) -> None:
    printed = lobster_page.tables(lobster_page.PaperFigures(json.loads(measured.read_text())["rows"]))
    torch = next(line for line in printed if line.startswith("| PyTorch | 20.00 s (0.50)"))
    assert torch.endswith(f"| {lobster_page.NOT_MEASURED} | 2.00 | 1.6 |")
    assert any(line.startswith("| both | 1.00 | 1.00 |") for line in printed)
    assert printed[-1].startswith("Commit c0ffee; load ")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: uv sync --group plots")
def test_the_drawing_is_small_and_the_same_each_time(measured: Path, tmp_path: Path) -> None:
    drawn = []
    for name in ("one", "two"):
        into = tmp_path / name
        into.mkdir()
        assert lobster_page.main(["--figures", str(measured), "--into", str(into)]) == 0
        drawn.append((into / "lobster-measured.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert b"Figure 8c" in drawn[0]
    assert len(drawn[0]) < 200_000


@pytest.fixture
def few(tmp_path: Path) -> Iterator[FewFiles]:
    """A bench of an epoch or two of two steps."""
    if os.geteuid() != 0 or (reason := have_fuse()):
        pytest.skip("needs root" if os.geteuid() else str(reason))
    if not (programs() / "simulate").exists():
        pytest.skip("needs the simulator: cargo build -p forebay-sim --example simulate")
    with Simulator() as simulator:
        yield FewFiles(LobsterSize(steps=2, epochs=1, runs=1, decode_s=0.01), tmp_path, simulator)


def test_torch_s_loader_and_ours_give_the_same_batches_in_kind(few: FewFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobster_jobs, "RANKS", 2)
    # A cell raises if the digests differ.
    for name in ("PyTorch", "Forebay"):
        cell = few.cell(LOADERS[name]._replace(threads=1), min(STEPS_MS.values()), saturates_at=2)
        assert len(cell.warm["steps_s"]) == cell.simulated["epochs"][-1]["iterations"] == 2
        assert len(cell.warm["waits_s"]) == 2
        assert cell.ratio > 0
        assert cell.machine.step_s > min(STEPS_MS.values()) / 1000
        assert cell.machine.decode_s_a_byte > 0


def test_decoding_is_measured_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobster_measured, "THREADS", (1, 2))
    # Long enough for an image on a busy machine.
    world = bench_of(FewFiles, tmp_path, LobsterSize(steps=1, epochs=1, runs=1, decode_s=0.5))
    found = lobster_measured.decoding(world, is_timed=True)
    assert found["threads"] == [1, 2]
    assert all(rate > 0 for rate in found["rates"])


def test_without_figures_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lobster_page"])
    with pytest.raises(SystemExit) as ended:
        lobster_page.main(["--figures", str(tmp_path / "none.json"), "--into", str(tmp_path)])
    assert ended.value.code == 2
    assert "make papers-lobster-measured" in capsys.readouterr().err
