"""Figures of `make papers-monarch-first`: ways, rows, tables and drawing, and that its programs train and read."""

import functools
import importlib.util
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.report import BenchReport
from bench.session import EpochFigures, program
from bench.world import SourceTraffic, TierDirectory
from papers import lobster_page, monarch_first, monarch_first_page
from papers.monarch_first import AS_IT_IS, EPOCHS, PAPER_WAY, WAYS, FirstBench, FirstEpochWay, FirstSize
from testbed.testbed import have_fuse
from tests.support import settle, wait_until

pytestmark = pytest.mark.usefixtures("idle_machine")

PROGRAM_S = 300
SHARD_BYTES = 300_000


class FewFiles(FirstBench):
    """A bench whose shards are noise."""

    @functools.cached_property
    def shards(self) -> Path:
        path = self.place / "shards"
        path.mkdir()
        for number in range(self.size.shards):
            (path / f"{number}.tar").write_bytes(random.Random(number).randbytes(SHARD_BYTES))  # noqa: S311
        return path


def few(place: Path) -> FewFiles:
    return FewFiles(FirstSize(shards=3, shard_mib=0, rounds=1, pictures=0, picture_kb=0, long_s=0), place)


def epoch(seconds: float, reads: int) -> EpochFigures:
    """An epoch that makes this many reads at the source."""
    return EpochFigures(seconds, 1.0, 3, SHARD_BYTES, 4711, SourceTraffic(reads * 1000, ({"read": reads},)), 0.1, 5.0)


def reported(place: Path, monkeypatch: pytest.MonkeyPatch, digest: int = 4711) -> BenchReport:
    """A report of three epochs: as it is 10 s and 100 reads each, the paper's way 4 s and 50 reads, then 40."""

    def three_epochs(_world: FirstBench, way: FirstEpochWay, *, keeps_caches: bool) -> list[EpochFigures]:
        assert not keeps_caches
        if way.name != PAPER_WAY.name:
            return [epoch(10.0, 100)] * EPOCHS
        first = epoch(4.0, 50)
        return [EpochFigures(4.0, 1.0, 3, SHARD_BYTES, digest, first.traffic, 0.1, 5.0), *[epoch(5.0, 40)] * (EPOCHS - 1)]

    monkeypatch.setattr(monarch_first, "three_epochs", three_epochs)
    report = BenchReport("monarch-first", tuple(monarch_first.SCENARIOS), quick=False, commit="c0ffee")
    report.begin("dropped")
    monarch_first.SCENARIOS["dropped"](few(place), report)
    return report


def test_reading_ahead_is_the_only_difference_between_the_ways(tmp_path: Path) -> None:
    tier = TierDirectory(tmp_path / "tier", tmp_path / "state", tmp_path / "run")
    words = {way.mode: monarch_first.under_forebay(tier, 1000, way.mode, ["cat"], tmp_path) for way in WAYS if way.mode}
    assert len(words) == len(monarch_first.MODES)
    for mode, found in words.items():
        assert found[found.index("--prefetch") + 1] == mode
        assert found[-2:] == ["--", "cat"]
        assert [word for word in found if word != mode] == [word for word in words["file"] if word != "file"]


def test_reads_and_times_are_held_against_the_program_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.metric: row for row in reported(tmp_path, monkeypatch).rows}
    assert rows[f"{PAPER_WAY.name}: reads of 3 epochs over"].value == pytest.approx(130 / 300)
    assert rows[f"{PAPER_WAY.name}, epoch 1: time over"].value == pytest.approx(0.4)
    assert rows[f"{PAPER_WAY.name}: time of 3 epochs over"].value == pytest.approx(14 / 30)
    assert rows[f"{AS_IT_IS}, epoch 2: reads at the source"].value == 100


def test_ways_that_read_other_bytes_give_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="not all ways"):
        reported(tmp_path, monkeypatch, digest=1)


def test_equal_time_counts_epochs_and_compares_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(_world: FirstBench, way: FirstEpochWay) -> list[dict[str, Any]]:
        count, seconds = (5, 2.0) if way == PAPER_WAY else (3, 4.0)
        changed = {2: "other"} if way == PAPER_WAY else {}
        digests = [changed.get(number, str(number)) for number in range(count)]
        return [
            {"at_s": seconds * (number + 1), "seconds": seconds, "top1": 0.1 * number, "top5": 0.2 * number, "digest": digest}
            for number, digest in enumerate(digests)
        ]

    monkeypatch.setattr(monarch_first, "trained", trained)
    report = BenchReport("monarch-first", ("long",), quick=False, commit="c0ffee")
    monarch_first.SCENARIOS["long"](few(tmp_path), report)
    rows = {row.metric: row for row in report.rows}
    assert rows[f"{PAPER_WAY.name}: epochs in equal time"].value == 5
    assert rows[f"{PAPER_WAY.name}: time for equally many epochs over"].value == pytest.approx(0.5)
    differing = rows["epochs whose weights differ from those of the program as it is"]
    assert (differing.value, differing.holds) == (1, "no")
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    report.save()
    printed = monarch_first_page.tables(lobster_page.PaperFigures(json.loads(report.path.read_text())["rows"]))
    assert "| epochs in equal time | 3 | 5 | 48 | 81 |" in printed
    if importlib.util.find_spec("matplotlib") is not None:
        assert monarch_first_page.main(["--figures", str(report.path), "--into", str(tmp_path)]) == 0
        assert b"minutes of training" in (tmp_path / "monarch-long.svg").read_bytes()


def test_what_was_not_measured_is_said_to_be_so() -> None:
    printed = monarch_first_page.tables(lobster_page.PaperFigures([]))
    assert f"| epochs in equal time | {lobster_page.NOT_MEASURED} | {lobster_page.NOT_MEASURED} | 48 | 81 |" in printed
    assert printed[-1] == lobster_page.NOT_MEASURED


@pytest.mark.skipif(os.geteuid() != 0 or have_fuse() is not None, reason="needs root and FUSE")
def test_the_first_epoch_by_the_paper_s_way_reads_each_byte_once(tmp_path: Path) -> None:
    world = few(tmp_path)
    settle(world.shards)
    found = monarch_first.three_epochs(world, PAPER_WAY, keeps_caches=False)
    size = monarch_first.bytes_of(world.shards)
    assert [one.files for one in found] == [3] * EPOCHS
    assert found[0].traffic
    assert found[0].traffic.bytes == size
    # The tier has room for one shard of three.
    assert all(one.traffic and one.traffic.bytes < size for one in found[1:])


@pytest.mark.skipif(os.geteuid() != 0 or have_fuse() is not None, reason="needs root and FUSE")
def test_another_client_reads_meanwhile(tmp_path: Path) -> None:
    world, other = few(tmp_path), monarch_first.OtherClient()
    with world.source(world.shards, keeps_caches=True) as source:
        with other.reading(source.mnt):
            wait_until(lambda: other.bytes > 0, "the other client's first read")
        read = other.bytes
        # It read the source, some parts more than once and then from memory, and it has ended.
        assert 0 < source.traffic().bytes <= monarch_first.bytes_of(world.shards)
        assert other.bytes == read
    assert monarch_first.beside_other(world, WAYS[0])[0] > 0


def test_a_long_run_ends_in_time_and_tells_how_good_it_is(tmp_path: Path) -> None:
    choice = random.Random(3)  # noqa: S311
    for number in range(24):
        path = tmp_path / f"{number % 2:04d}" / f"{number:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        noise = bytes(choice.randrange(128) + 127 * (channel == 2 * (number % 2)) for _ in range(32 * 32) for channel in range(3))
        Image.frombytes("RGB", (32, 32), noise).save(path, quality=90)
    options = ["--held", tmp_path, "--seconds", 0.01, "--model", "lenet", "--classes", 2, "--batch", 8, "--threads", 1]
    ended = subprocess.run(program("train_long", tmp_path, *options), capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    assert ended.returncode == 0, ended.stderr
    (said,) = map(json.loads, ended.stdout.splitlines())
    assert said["at_s"] == said["seconds"] > 0.01
    assert 0 <= said["top1"] <= said["top5"] == 1
