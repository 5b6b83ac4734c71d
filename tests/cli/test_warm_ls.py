"""`forebay warm` fills tiers ahead of a job; `forebay ls` says what is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk

FILES = 40
BYTES = 5000


@pytest.fixture
def data(desk: Desk) -> Desk:
    """A desk with forty small files in two directories, and a large one."""
    (desk.source / "file").unlink()
    for number in range(FILES):
        path = desk.source / ("even" if number % 2 == 0 else "odd") / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * BYTES)
    (desk.source / "large").write_bytes(os.urandom(3_000_000))
    # Its target is found by its own path.
    (desk.source / "link").symlink_to("large")
    support.settle(desk.source)
    return desk


def warm(desk: Desk, *words: str | Path, tier: str = "tier=64M") -> str:
    done = desk.type("warm", "--source", "source", "--tier", tier, "--freshness", "immutable", *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()[-1].removeprefix("forebay: warm: ").split(", after ")[0]


def test_a_job_finds_every_file_copied(data: Desk) -> None:
    assert warm(data, "source") == f"{FILES + 1} files (3.1 MiB) copied, 0 cached before"
    # When they have been taken over.
    script = '"$0" -E "$1" && cat source/*/* source/large | wc -c'
    done = data.run("--freshness", "immutable", "--", "sh", "-c", script, sys.executable, support.IDLE)
    assert int(done.stdout) == FILES * BYTES + 3_000_000
    record = data.records()[-1]
    assert record["tiers"][0]["opens"] == FILES + 1
    assert record["counters"]["handed_over"] == 0


def test_what_is_cached_is_not_read_again(data: Desk) -> None:
    # The agent stays: so all of them are known to the second run at once.
    assert warm(data, "source/even", "--keep") == f"{FILES // 2} files (97.7 KiB) copied, 0 cached before"
    assert warm(data, "source", "--keep") == f"{FILES // 2 + 1} files (3.0 MiB) copied, {FILES // 2} cached before"


def test_what_does_not_fit_is_counted(data: Desk) -> None:
    said = warm(data, "source", tier="tier=150K")
    copied = int(said.split(" ")[0])
    assert 0 < copied <= 150 * 1024 // BYTES
    assert "not copied: " in said


def test_a_file_that_cannot_be_read_is_told(data: Desk) -> None:
    (data.source / "odd/hidden").write_bytes(b"x")
    (data.source / "odd/hidden").chmod(0)
    data.root.chmod(0o755)
    for path in (data.root, data.runtime, data.home, data.tier):
        os.chown(path, support.NOBODY, support.NOBODY)
    done = data.type("warm", "--source", "source", "--tier", "tier=64M", "source/odd", uid=support.NOBODY)
    assert done.returncode == 1
    assert f"forebay: {data.source}/odd/hidden: Permission denied" in done.stderr
    assert f"{FILES // 2} files" in done.stderr


def test_what_is_no_file_is_told(data: Desk) -> None:
    os.mkfifo(data.source / "pipe")
    done = data.type("warm", "--source", "source", "--tier", "tier=64M", "source/pipe")
    assert done.returncode == 1
    assert f"forebay: {data.source}/pipe: it is neither a file nor a directory" in done.stderr


def test_names_take_one_line(data: Desk) -> None:
    (data.source / "odd/two\nlines").write_bytes(b"x")
    support.settle(data.source)
    warm(data, "source/odd")
    assert f"{data.source}/odd/two?lines" in data.type("ls", "-l").stdout


def test_a_listing_that_cannot_be_written_is_told(data: Desk) -> None:
    warm(data, "source")
    with Path("/dev/full").open("w") as full:
        words = [str(support.command()), "ls"]
        done = subprocess.run(words, cwd=data.root, env=data.environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "forebay: standard output: No space left on device (os error 28)\n"


def test_a_listing_by_directory(data: Desk) -> None:
    assert data.type("ls").stdout.startswith("nothing is cached (")
    warm(data, "source")
    lines = [line.split(maxsplit=4) for line in data.type("ls").stdout.splitlines()]
    assert [(words[2], words[-1]) for words in lines[:-1]] == [
        ("1", str(data.source)),
        ("20", f"{data.source}/even"),
        ("20", f"{data.source}/odd"),
    ]
    assert lines[-1][:4] == ["3.1", "MiB", "41", "files"]
    assert lines[-1][-1] == f"in all, in {data.tier}"


def test_a_listing_of_files(data: Desk) -> None:
    warm(data, "source")
    files = [json.loads(line) for line in data.type("ls", "--json", "--tier", "tier", "source/odd").stdout.splitlines()]
    assert sorted(row["file"] for row in files) == sorted(str(path) for path in (data.source / "odd").iterdir())
    for row in files:
        assert Path(row["copy"]).read_bytes() == Path(row["file"]).read_bytes()
        assert row["tier"] == str(data.tier)
    long = data.type("ls", "-l", "source/large").stdout.splitlines()
    assert long[0].split() == ["3,000,000", f"{data.source}/large"]


def test_a_listing_changes_nothing(data: Desk) -> None:
    warm(data, "source")
    support.wait_until(lambda: not support.is_held(data.runtime, data.tier), "the agent's end")
    before = {path: path.stat().st_mtime_ns for path in data.tier.rglob("*")}
    assert data.type("ls").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in data.tier.rglob("*")} == before
    data.type("clean", "--tier", "tier")
    assert data.type("ls").stdout.startswith("nothing is cached (")
    assert not list(data.tier.iterdir())


def test_a_listing_while_an_agent_works(data: Desk) -> None:
    warm(data, "source/even", "--keep")
    assert f"{FILES // 2} files" in data.type("ls").stdout
    # Other copies are made meanwhile by the same agent.
    warm(data, "source/odd", "--keep")
    assert f"{FILES} files" in data.type("ls").stdout


def test_forebay_off_warms_nothing(data: Desk) -> None:
    assert "unset it" in data.refuse("warm", "source", env={"FOREBAY": "off"})
