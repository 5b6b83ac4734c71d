"""The record of a run, and the summary: what is counted is told, and what is told was counted."""

import json
import re
import stat
import subprocess
import sys
import time
from datetime import datetime

from tests import support
from tests.cli.conftest import Desk

# Opens every file of the source so many times; copies are made meanwhile.
READER = (
    support.WAIT_UNTIL_IDLE
    + """
for epoch in range(int(sys.argv[1])):
    for path in sorted(Path("source").iterdir()):
        path.read_bytes()
    wait_until_idle()
"""
)


def grow(desk: Desk, files: int) -> None:
    for number in range(files):
        (desk.source / f"f{number}").write_bytes(bytes(10_000))
    (desk.source / "file").unlink()
    support.settle(desk.source)


def test_p15_figures_agree_with_what_the_program_did(desk: Desk) -> None:
    grow(desk, 20)
    done = desk.run("--freshness", "immutable", "--", sys.executable, "-c", READER, "3")
    (record,) = desk.records()
    derived = record["derived"]
    assert derived["source_opens"] == record["counters"]["source_opens"] == 60
    assert derived["tier_opens"] == record["tiers"][0]["opens"] == 40
    assert derived["tier_bytes"] == record["tiers"][0]["bytes"] == 400_000
    assert derived["from_source_opens"] == 20
    assert derived["tier_opens_at_most"] == 40
    assert derived["share_of_possible"] == 1
    # None took longer than all of them together; what is read off buckets is at most a quarter off.
    together_s = record["counters"]["source_open_ns"] / 1e9
    assert 0 < derived["source_open_median_s"] <= derived["source_open_p99_s"] <= 1.25 * together_s
    assert (record["agent"]["files_copied"], record["agent"]["bytes_copied"]) == (20, 200_000)
    for told in (
        r"60 opens under the sources by 1 process",
        r"from tier: +40 opens",
        r"from the source: +20 opens",
        r"40 of 60 \(66.7 %\)",
    ):
        assert re.search(told, done.stderr), done.stderr


def test_the_most_possible_is_told_when_it_is_missed(desk: Desk) -> None:
    grow(desk, 20)
    # Half of the files, and the listing.
    done = desk.type(
        "run", "--source", "source", "--tier", "tier=105KB", "--freshness", "immutable", "--", sys.executable, "-c", READER, "3"
    )
    derived = desk.records()[-1]["derived"]
    assert (derived["source_opens"], derived["tier_opens"], derived["tier_opens_at_most"]) == (60, 20, 50)
    assert re.search(r"the most possible was 50", done.stderr)


def test_the_record_names_what_was_run(desk: Desk) -> None:
    begun = time.time()
    desk.run("-q", "--record", "record.json", "--", "sh", "-c", "sleep 0.2; exit 5")
    path = desk.root / "record.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert record["command"] == ["sh", "-c", "sleep 0.2; exit 5"]
    assert record["exit"] == {"code": 5}
    ended = time.time()
    assert 0.2 <= record["seconds"] <= ended - begun
    started = datetime.fromisoformat(record["started"].replace("Z", "+00:00")).timestamp()
    # As written, a second or its thousandth may be cut off.
    assert begun - 1 <= started <= ended
    assert record["settings"]["record"] == {"value": str(path), "origin": "--record"}
    assert {"foreign", "writing"} <= {name.removeprefix("pass_") for name in record["counters"]}
    assert not desk.records(), "it is where it was asked for, and nowhere else"


def test_a_record_goes_to_a_pipe_too(desk: Desk) -> None:
    done = desk.run("-q", "--record", "/dev/stdout", "--", "true")
    assert json.loads(done.stdout)["exit"] == {"code": 0}


def test_records_are_private_and_the_last_hundred_are_kept(desk: Desk) -> None:
    runs = desk.home / ".local/state/forebay/runs"
    runs.mkdir(parents=True, mode=0o700)
    for number in range(105):
        (runs / f"20200101T000000.{number:03}Z-x-1.json").write_text("{}")
    (runs / "notes.txt").write_text("mine")
    desk.run("-q", "--", "true")
    left = sorted(path.name for path in runs.glob("*.json"))
    assert len(left) == 100
    assert left[0] == "20200101T000000.006Z-x-1.json"
    assert not left[-1].startswith("2020")
    assert stat.S_IMODE((runs / left[-1]).stat().st_mode) == 0o600
    assert (runs / "notes.txt").exists()


def test_quiet_is_quiet(desk: Desk) -> None:
    for words, env in ((["-q"], {}), (["--quiet"], {}), ([], {"FOREBAY_QUIET": "1"})):
        done = desk.run(*words, "--", "true", env=env)
        assert (done.returncode, done.stderr) == (0, "")


def test_of_many_ranks_the_first_speaks(desk: Desk) -> None:
    for rank, speaks in (("0", True), ("3", False)):
        done = desk.run("--", "true", env={"SLURM_PROCID": rank, "OMPI_COMM_WORLD_RANK": rank})
        assert ("serving" in done.stderr) == speaks
    assert desk.records()[-1]["settings"]["quiet"] == {"value": True, "origin": "$SLURM_PROCID"}
    assert desk.records()[-2]["settings"]["quiet"] == {"value": False, "origin": "default"}


def test_a_closed_standard_error_is_no_fault(desk: Desk) -> None:
    words = [str(support.command()), "run", "--source", "source", "--tier", "tier=64M", "--", "sh", "-c", "exit 4"]
    shell = ["sh", "-c", '"$@" 2>&-', "sh", *words]
    assert subprocess.run(shell, cwd=desk.root, env=desk.environment, check=False).returncode == 4


def test_a_state_directory_that_fails_does_not_change_the_exit(desk: Desk) -> None:
    state = desk.home / ".local/state/forebay"
    state.mkdir(parents=True)
    (state / "runs").write_text("in the way")
    done = desk.run("--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert "the record was not written" in done.stderr
