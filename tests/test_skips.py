"""The promise of conftest.py, shown on a small suite of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="no FUSE here")
def test_skips():
    pass
"""


@pytest.mark.parametrize(("ci", "code"), [("0", 0), ("1", 1)])
def test_a_skip_fails_only_in_ci(tmp_path: Path, ci: str, code: int) -> None:
    (tmp_path / "conftest.py").write_bytes(Path(__file__).with_name("conftest.py").read_bytes())
    (tmp_path / "test_suite.py").write_text(SUITE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "FOREBAY_CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stdout
    assert ("test_suite.py::test_skips: Skipped: no FUSE here" in run.stdout) == (ci == "1")
