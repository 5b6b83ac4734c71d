"""Completion and manual pages."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Desk

# Asks bash itself what it would offer for the words.
ASK = """
source "$1"
COMP_WORDS=(forebay {words}) COMP_CWORD={at} COMP_LINE="forebay {words}" COMP_POINT=${{#COMP_LINE}}
_forebay forebay "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def offered(desk: Desk, tmp_path: Path, words: str) -> set[str]:
    script = tmp_path / "forebay.bash"
    script.write_text(desk.type("completion", "bash").stdout)
    ask = ASK.format(words=words, at=len(words.split()))
    return set(subprocess.run(["bash", "-c", ask, "bash", script], capture_output=True, text=True, check=True).stdout.split())


def test_bash_completes_commands_and_options(desk: Desk, tmp_path: Path) -> None:
    assert offered(desk, tmp_path, "wa") == {"warm"}
    assert "--freshness" in offered(desk, tmp_path, "run --fre")
    assert offered(desk, tmp_path, "a") == set(), "what is not for people is not offered"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "elvish", "powershell"])
def test_every_shell_has_a_script(desk: Desk, shell: str) -> None:
    done = desk.type("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "freshness" in done.stdout


def test_manual_pages_are_written_and_can_be_shown(desk: Desk, tmp_path: Path) -> None:
    done = desk.type("man", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = {path.name for path in tmp_path.iterdir()}
    assert {"forebay.1", "forebay-run.1", "forebay-warm.1", "forebay-ls.1"} <= pages
    assert "forebay-agent.1" not in pages
    assert "--freshness" in (tmp_path / "forebay-run.1").read_text().replace("\\-", "-")
    if groff := shutil.which("groff"):
        shown = subprocess.run([groff, "-man", "-Tascii", "-ww", tmp_path / "forebay-run.1"], capture_output=True, text=True, check=True)
        assert "FOREBAY" in shown.stdout.upper()
