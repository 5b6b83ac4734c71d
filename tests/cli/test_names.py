"""Sources by a name that the command was not told: not served, and said."""

import sys
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk

READ = "import sys\nfor path in open(sys.argv[1]).read().split(): open(path).read()"


def configured(desk: Desk, directory: Path) -> Path:
    """A program's own configuration, which names files of the source by this directory."""
    for number in range(3):
        (desk.source / "train").mkdir(exist_ok=True)
        (desk.source / f"train/{number}").write_text("data")
    support.settle(desk.source)
    config = desk.root / "config.txt"
    config.write_text("\n".join(f"{directory}/train/{number}" for number in range(3)))
    return config


@pytest.mark.parametrize("below", [False, True], ids=["the source", "a directory of it"])
def test_a_link_that_only_a_program_s_configuration_names(desk: Desk, below: bool) -> None:
    """In a directory where no link is looked for; the advice that is given works."""
    links = desk.root / "elsewhere/links"
    links.mkdir(parents=True)
    link = links / "train" if below else links / "data"
    link.symlink_to(desk.source / "train" if below else desk.source)
    config = configured(desk, links if below else link)
    done = desk.run("--", sys.executable, "-c", READ, str(config))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "not served:" in line]
    assert f"3 opens by {link}, another name of a source; add --source {link}" in line
    record = desk.records()[-1]
    assert (record["other_name"], record["counters"]["pass_other_name"], record["derived"]["source_opens"]) == (str(link), 3, 0)
    done = desk.run("--source", link, "--", sys.executable, "-c", READ, str(config))
    record = desk.records()[-1]
    assert (record["other_name"], record["counters"]["pass_other_name"], record["derived"]["source_opens"]) == (None, 0, 3)
    assert "not served:" not in done.stderr


def test_a_link_to_a_single_file(desk: Desk) -> None:
    link = desk.root / "elsewhere/file"
    link.parent.mkdir()
    link.symlink_to(desk.source / "file")
    done = desk.run("--", sys.executable, "-c", "import sys; open(sys.argv[1] + '/file').read()", str(link.parent))
    assert "not served:          1 open by links to single files of a source" in done.stderr
    assert desk.records()[-1]["other_name"] is None


def test_a_source_that_is_named_by_a_link_is_served_by_both_names(desk: Desk) -> None:
    link = desk.root / "elsewhere"
    link.symlink_to(desk.source)
    for directory in (link, desk.source):
        config = configured(desk, directory)
        done = desk.type("run", "--source", link, "--tier", "tier=64M", "--", sys.executable, "-c", READ, str(config))
        assert done.returncode == 0, done.stderr
        assert desk.records()[-1]["derived"]["source_opens"] == 3
        assert "not served:" not in done.stderr


def test_other_files_are_nobody_s_concern(desk: Desk) -> None:
    """On the same file system as the source, and by names that lead nowhere."""
    (desk.root / "beside").write_text("x")
    code = "import sys\nfor path in sys.argv[1:]:\n  try: open(path).read()\n  except OSError: pass"
    done = desk.run("--", sys.executable, "-c", code, str(desk.root / "beside"), str(desk.root / "missing/file"))
    record = desk.records()[-1]
    assert (record["other_name"], record["counters"]["pass_other_name"]) == (None, 0)
    assert "not served:" not in done.stderr
