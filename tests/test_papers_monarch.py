"""Figures of `make papers-monarch`: bounds, bars, the table beside the paper's, drawings.

And that its programs train.
"""

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.bounds import operations_max, seconds_max, source_bytes_max, variation
from bench.programs.course import listed, rates
from bench.report import BenchReport
from bench.session import EpochFigures, program
from bench.world import SourceTraffic
from papers import monarch_page, monarch_rows
from papers.monarch import SCENARIOS
from papers.monarch_jobs import AS_IT_IS, EPOCHS, FITS, PART, RSYNC, MonarchRun, TrainingJob, arms
from papers.monarch_page import NOT_MEASURED, MonarchFigures, table

pytestmark = pytest.mark.usefixtures("idle_machine")

PROGRAM_S = 300
PLAIN_S, LOCAL_S = 20.0, 5.0
SIZES = [90_000, 110_000] * 50


def test_a_warm_epoch_may_read_what_the_tier_lacks_and_one_file() -> None:
    # On the links 1,000 bytes are 1,100.
    assert source_bytes_max(1_100, 1_000, 600, 10) == pytest.approx(1.02 * (1_100 - 660) + 11)
    assert source_bytes_max(1_100, 1_000, 2_000, 10) == pytest.approx(11)


def test_what_is_cached_is_not_asked_for() -> None:
    assert operations_max(100, 0.6) == pytest.approx(40.8)


def test_the_bound_on_time_takes_the_cached_share_off_the_stall() -> None:
    assert seconds_max(PLAIN_S, LOCAL_S, 0.6) == pytest.approx(11)
    assert seconds_max(LOCAL_S, PLAIN_S, 0.6) == LOCAL_S


def test_the_variation_is_over_the_mean() -> None:
    assert variation([1, 1, 1]) == 0
    assert variation([1, 3]) == 0.5


def test_a_batch_counts_evenly_over_its_time() -> None:
    assert rates([0.5, 2.5, 3.0], [10, 40, 10]) == pytest.approx([20, 20, 20])
    assert rates([0.2], [5]) == pytest.approx([25])
    found = rates([0.9, 1.7, 4.4], [32, 32, 7])
    assert sum(found) * 4.4 / 4 == pytest.approx(71)


def test_files_come_by_their_own_names(tmp_path: Path) -> None:
    for name in ("b/1", "a/2", "b/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(Path(path).relative_to(tmp_path)) for path in listed(str(tmp_path), 2)] == ["b/0", "b/1"]


def test_rounds_turn_their_order_and_the_peers_come_once() -> None:
    first, second, third = (arms("lenet", number, quick=False) for number in range(3))
    assert len(first) == 6
    assert (second, third) == ([RSYNC, PART, AS_IT_IS], [AS_IT_IS, PART, RSYNC])
    assert FITS in arms("resnet", 0, quick=False)
    assert FITS not in arms("resnet", 0, quick=True)


def test_each_model_in_each_framework_is_a_scenario() -> None:
    assert set(SCENARIOS) == {f"{framework}-{model}" for framework in monarch_page.FRAMEWORKS for model in monarch_page.MODELS}


def epoch(seconds: float, share: float, **said: object) -> EpochFigures:
    """An epoch that asks the source for this share of everything."""
    bricks = {"LOOKUP": round(1000 * share), "OPEN": round(500 * share), "READ": round(4000 * share), "FLUSH": round(500 * share)}
    told = {"wait_s": seconds / 2, "machine_cpu_s": 9.0, "rates": [40.0, 60.0], "rss_mib": 700.0, "loss": 0.5, "top1": 0.75} | said
    traffic = SourceTraffic(round(sum(SIZES) * 1.05 * share), (bricks,))
    return EpochFigures(seconds, 7.0, len(SIZES), sum(SIZES), 4711, traffic, 0.1, 50.0, said=told)


def rounds(count: int = 3) -> list[dict[str, MonarchRun]]:
    """Returns rounds that keep every bar."""
    plain = tuple(epoch(PLAIN_S, 1.0) for _ in range(EPOCHS))
    mine = (epoch(PLAIN_S, 1.0), *(epoch(10.0, 0.4) for _ in range(EPOCHS - 1)))
    local = tuple(epoch(LOCAL_S, 0.0) for _ in range(EPOCHS))
    runs = {
        AS_IT_IS: MonarchRun(AS_IT_IS, plain),
        PART: MonarchRun(PART, mine, cached=(sum(SIZES) * 6 // 10, 60), resident_mib=(20.0, 21.0, 21.0), peak_mib=25.0),
        RSYNC: MonarchRun(RSYNC, local, 12.0, epoch(12, 1.0).traffic),
    }
    return [dict(runs) for _ in range(count)]


class MonarchSizes(TrainingJob):
    """A job whose files need not be there."""

    sizes = SIZES


def reported(found: list[dict[str, MonarchRun]], *, quick: bool = False) -> BenchReport:
    report = BenchReport("monarch", ("pytorch-lenet",), quick, commit="c0ffee")
    monarch_rows.TrainingRows(MonarchSizes("pytorch", "lenet", Path("/source"), Path("/local"), 18), found, report).add()
    return report


def in_part(change: Callable[[MonarchRun], MonarchRun]) -> list[dict[str, MonarchRun]]:
    """The same, but one round with a tier of 60 % was different."""
    found = rounds()
    found[1][PART] = change(found[1][PART])
    return found


def warm(**changed: Any) -> Callable[[MonarchRun], MonarchRun]:
    return lambda run: replace(run, epochs=(*run.epochs[:-1], replace(run.epochs[-1], **changed)))


def asked(**operations: int) -> SourceTraffic:
    usual = epoch(10.0, 0.4).traffic
    assert usual
    return SourceTraffic(usual.bytes, (usual.bricks[0] | operations,))


def test_runs_that_keep_every_bar_pass() -> None:
    assert reported(rounds()).verdict() == 0


@pytest.mark.parametrize(
    "change",
    [
        warm(traffic=SourceTraffic(sum(SIZES) // 2, epoch(10.0, 0.4).traffic.bricks)),  # type: ignore[union-attr]
        warm(traffic=asked(READ=2000)),
        warm(traffic=asked(OPEN=250)),
        warm(seconds=14.0),
        warm(digest=4712),
        warm(bytes=1),
        lambda run: replace(run, cached=(sum(SIZES) * 61 // 100, 61)),
        lambda run: replace(run, peak_mib=500.0),
        lambda run: replace(run, resident_mib=(20.0, 21.0, 23.0)),
    ],
    ids=[
        "bytes",
        "reads",
        "opens",
        "slower than the bound",
        "other weights",
        "other bytes",
        "over the quota",
        "large agent",
        "growing agent",
    ],
)
def test_one_round_that_misses_a_bar_fails(change: Callable[[MonarchRun], MonarchRun]) -> None:
    assert reported(in_part(change)).verdict() == 1


def test_two_rounds_are_too_few() -> None:
    assert reported(rounds(2)).verdict() == 1


def test_the_paper_says_nothing_of_what_was_not_measured() -> None:
    lines = table(MonarchFigures([]))
    assert all(line.count("|") == 5 for line in lines)
    assert all(line.count(NOT_MEASURED) == 2 for line in lines[2:])


def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, quick: bool = False) -> Path:
    """As `make papers-monarch` leaves them."""
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report = reported(rounds(), quick=quick)
    report.save()
    return report.path


def test_the_table_has_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(figures(tmp_path, monkeypatch).read_text())["rows"]
    lines = table(MonarchFigures(rows))
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in lines}
    # 20 + 10 + 10 s over three times 20; reads 1 + 0.4 + 0.4 over 3; rsync's 12 s and three times 5.
    assert cells["training time, LeNet"] == "-33 %"
    assert cells["reads of the source, LeNet"] == "-40 %"
    assert cells["opens and closes at the source, LeNet"] == "-40 %"
    assert cells["training time, LeNet: rsync first (all must fit)"] == "-55 %"
    assert cells["training time, AlexNet"] == NOT_MEASURED


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: uv sync --group plots")
def test_the_drawings_are_small_and_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = figures(tmp_path, monkeypatch)
    drawn = []
    for name in ("one", "two"):
        into = tmp_path / name
        into.mkdir()
        monkeypatch.setattr(sys, "argv", ["monarch_page", "--figures", str(measured), "--into", str(into)])
        assert monarch_page.main() == 0
        drawn.append({path.name: path.read_bytes() for path in into.iterdir()})
    assert drawn[0] == drawn[1]
    assert sorted(drawn[0]) == ["monarch-source.svg", "monarch-throughput.svg", "monarch-time.svg"]
    assert all(b"PyTorch" in text and len(text) < 100_000 for text in drawn[0].values())


@pytest.mark.parametrize("quick", [False, True])
def test_what_proves_nothing_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quick: bool
) -> None:
    measured = figures(tmp_path, monkeypatch, quick=True) if quick else tmp_path / "none.json"
    monkeypatch.setattr(sys, "argv", ["monarch_page", "--figures", str(measured), "--into", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        monarch_page.main()
    assert ended.value.code == 2
    assert "make papers-monarch" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.svg"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that a model tells apart: reddish and bluish noise."""
    root = tmp_path_factory.mktemp("pictures")
    choice = random.Random(3)  # noqa: S311
    for number in range(24):
        path = root / f"{number % 2:04d}" / f"{number:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        noise = bytes(choice.randrange(128) + 127 * (channel == 2 * (number % 2)) for _ in range(96 * 96) for channel in range(3))
        Image.frombytes("RGB", (96, 96), noise).save(path, quality=90)
    return root


def trained(framework: str, model: str, data: Path) -> dict[str, Any]:
    words = program("train", data, "--framework", framework, "--model", model, "--classes", 2, "--epochs", 1, "--batch", 8, "--threads", 2)
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    assert ended.returncode == 0, ended.stderr
    first, epoch = map(json.loads, ended.stdout.splitlines())
    assert first["files"] == epoch["files"] == len(listed(str(data)))
    told: dict[str, Any] = epoch
    return told


# One model each: a framework takes seconds to start.
@pytest.mark.long
@pytest.mark.parametrize(("framework", "model"), [("pytorch", "resnet"), ("tensorflow", "lenet")])
def test_equal_seeds_train_equally(framework: str, model: str, pictures: Path, tmp_path: Path) -> None:
    data = pictures
    if framework == "tensorflow":
        if importlib.util.find_spec("tensorflow") is None:
            pytest.skip("needs tensorflow: uv sync --group frameworks")
        data = tmp_path / "shards"
        subprocess.run(program("pack_records", pictures, data, 3), check=True, capture_output=True, timeout=PROGRAM_S)
    one, other = (trained(framework, model, data) for _ in range(2))
    assert one["samples"] == 24
    assert one["bytes"] == sum(path.stat().st_size for path in pictures.rglob("*.jpg"))
    assert one["seconds"] >= one["wait_s"] >= 0
    assert one["cpu_s"] > 0
    kept = ("digest", "loss", "top1")
    assert [one[name] for name in kept] == [other[name] for name in kept]
