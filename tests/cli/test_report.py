"""`forebay report`: which run it is about, and what of the record it needs.

How its page looks is seen in test_pages.py.
"""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_pages import EPOCHS, FORKED, LOADED


def reported(desk: Desk, *words: str | Path) -> str:
    done = desk.type("report", *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return (desk.root / "forebay-report.html").read_text()


def test_the_course_of_a_run_is_in_its_record(desk: Desk) -> None:
    for number in range(30):
        (desk.source / f"{number}").write_bytes(bytes(10_000))
    (desk.source / "file").unlink()
    support.settle(desk.source)
    assert desk.run("-q", "--freshness", "immutable", "--", sys.executable, "-c", EPOCHS).returncode == 0
    (record,) = desk.records()
    files, timeline, epochs = record["files"], record["timeline"], record["epochs"]
    assert (files["opened"], files["one_in"], files["opens_median"], files["even_share"]) == (30, 1, 3, 1)
    # At least the first and the last look, in order, each figure for each of them; nothing that is counted goes back.
    looks = len(timeline["seconds"])
    assert 2 <= looks <= 256
    for figures in (
        timeline["seconds"],
        timeline["source_opens"],
        timeline["files"],
        timeline["tiers"][0]["opens"],
        timeline["tiers"][0]["bytes"],
    ):
        assert len(figures) == looks
        assert figures == sorted(figures)
    assert timeline["source_opens"][-1] == record["counters"]["source_opens"] == 90
    assert timeline["tiers"][0]["opens"][-1] == record["tiers"][0]["opens"] == 60
    assert timeline["from_source_bytes"][-1] == record["counters"]["from_source_bytes"] == 300_000
    assert timeline["tiers"][0]["used_bytes"][-1] == 300_000 + record["agent"]["listings_bytes"]
    assert timeline["seconds"][-1] <= record["seconds"] + 0.001
    assert [(epoch["first"], epoch["last"], epoch["whole"]) for epoch in epochs] == [(1, 1, True), (2, 2, True), (3, 3, True)]
    assert sum(epoch["source_opens"] for epoch in epochs) == 90


def test_forks_are_in_the_record_of_their_run(desk: Desk) -> None:
    assert desk.run("-q", "--", sys.executable, "-c", FORKED).returncode == 0
    (record,) = desk.records()
    taken, became = record["forks"]
    assert (taken["what"], taken["job"], taken["step"], taken["bytes"], taken["stall_s"]) == ("taken", "trunk", 1200, 4096, 0.25)
    assert (became["what"], became["job"], became["parent"], became["changes"]) == ("became", "trunk.1", "trunk", {"lr": 0.5})
    page = reported(desk)
    for said in (
        "States that were taken",
        "trunk, step 1,200",
        "1.5 KiB",
        "<td>375 ms</td>",
        "Clones",
        "lr=0.5",
        "<td>1.5 s</td>",
        "0123456789abcdef",
    ):
        assert said in page, said
    assert list(desk.runtime.rglob("forks.*")) == [], "it went with the run"


def test_epochs_of_loaders_are_in_the_record_of_their_run(desk: Desk) -> None:
    assert desk.run("-q", "--", sys.executable, "-c", LOADED).returncode == 0
    (record,) = desk.records()
    first, second = record["loaders"]
    assert (first["epoch"], first["rank"], first["bound_by"], first["waits"]) == (
        7,
        0,
        "source",
        [{"seconds": 3.5, "at_s": 7.2, "of": "source"}],
    )
    assert (second["rank"], second["source_s"], second["agent"]["from_source"]) == (1, [4.0, 5.0], 30)
    page = reported(desk)
    for said in (
        "Data loaders",
        "epoch 7",
        "9.0 s (rank 1)",
        "2.50",
        "The loader agent",
        "25.0 %",
        "300 KiB",
        "2.0 ms",
        "The longest waits",
        "rank 1",
    ):
        assert said in page, said
    assert list(desk.runtime.rglob("loaders.*")) == [], "it went with the run"


@pytest.mark.parametrize(
    ("program", "had"),
    [
        (LOADED, "data loaders had 1,280 samples in 1 epoch: 25.0 % of this node's were cached, and 300 KiB read from the source"),
        (FORKED, "1 state was taken for clones, 1 clone was made"),
    ],
    ids=["loaders", "forks"],
)
def test_a_run_that_others_served_is_not_said_to_have_had_nothing(desk: Desk, program: str, had: str) -> None:
    ran = desk.run("--", sys.executable, "-c", program)
    headline, *lines = [line for line in ran.stderr.splitlines() if " s: " in line or "beside the tiers:" in line]
    assert headline.endswith(": nothing was opened under a source by the program itself (1 process)")
    assert [line.split(maxsplit=3)[3] for line in lines] == [had]
    done = desk.type("report")
    assert done.stdout.splitlines()[0] == f"The program itself opened nothing for reading under a source; {had}."
    # Where there were none of either it is said as it is.
    assert "nothing was opened under a source by 1 process" in desk.run("--", "true").stderr
    assert desk.type("report").stdout.startswith("Nothing was opened for reading under a source: there was nothing to serve.")


def test_any_run_can_be_named(desk: Desk) -> None:
    for status in (3, 4):
        desk.run("-q", "--", "sh", "-c", f"exit {status}")
    first, last = sorted(desk.home.glob(".local/state/forebay/runs/*.json"))
    assert "exit 4" in reported(desk)
    assert "exit 3" in reported(desk, first.stem)
    assert "exit 3" in reported(desk, first)
    assert "exit 4" in reported(desk, last.stem)
    assert stat.S_IMODE((desk.root / "forebay-report.html").stat().st_mode) == 0o600


def test_what_is_in_the_command_is_only_text(desk: Desk) -> None:
    desk.run("-q", "--", "true", "</ul><script>alert(1)</script>")
    page = reported(desk)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_record_of_an_earlier_version_has_no_times(desk: Desk) -> None:
    desk.run("-q", "--record", "record.json", "--", "true")
    record: dict[str, Any] = json.loads((desk.root / "record.json").read_text())
    for key in ("timeline", "files", "epochs", "forks", "loaders"):
        del record[key]
    (desk.root / "record.json").write_text(json.dumps(record))
    page = reported(desk, "record.json")
    assert "The record has no times" in page
    assert "<figure>" not in page


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "not a record of a run"), ("{}", "missing field `schema`"), ('{"schema": 1}', "missing field"), ('{"schema": 9}', "version 9")],
)
def test_what_is_no_record_is_refused(desk: Desk, text: str, named: str) -> None:
    (desk.root / "x.json").write_text(text)
    line = desk.refuse("report", "x.json")
    assert str(desk.root / "x.json") in line
    assert named in line


def test_a_run_that_is_not_there_is_refused(desk: Desk) -> None:
    assert "no run is recorded in" in desk.refuse("report")
    desk.run("-q", "--", "true")
    (path,) = desk.home.glob(".local/state/forebay/runs/*.json")
    line = desk.refuse("report", "20200101T000000.000Z-x-1")
    assert "no run of that id" in line
    assert path.stem in line


def test_a_page_that_can_t_be_written_is_refused(desk: Desk) -> None:
    desk.run("-q", "--", "true")
    assert "--output" in desk.refuse("report", "--output", "nowhere/page.html")
    assert "--output" in desk.refuse("report", "--output", "tier")
