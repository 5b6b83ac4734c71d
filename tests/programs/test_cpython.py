"""CPython's own tests of files and processes come to the same outcome under the preload, with their files under the source."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from tests.support import Place

SUITES = [
    "test_io",
    "test_os",
    "test_mmap",
    "test_posix",
    "test_shutil",
    "test_pathlib",
    "test_zipfile",
    "test_tarfile",
    "test_subprocess",
]


@cache
def python_with_tests() -> str:
    """An interpreter that has its own tests."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3"):
        looked = subprocess.run([python, "-c", "import test.libregrtest, test.test_tarfile"], capture_output=True, check=False)
        if looked.returncode == 0:
            return python
    pytest.skip("no Python here has its own tests: apt-get install libpython3-testsuite")


def words(python: str, directory: Path, results: Path) -> list[str]:
    directory.mkdir()
    return [python, "-m", "test", "--tempdir", str(directory), "--junit-xml", str(results), "--quiet", *SUITES]


def outcomes(results: Path) -> dict[str, str]:
    """What became of each test."""
    found = {}
    for case in ET.parse(results).getroot().iter("testcase"):  # noqa: S314
        what = next((child.tag for child in case if child.tag in ("error", "failure", "skipped")), case.get("result", ""))
        found[f"{case.get('classname', '')}.{case.get('name')}"] = what
    return found


@pytest.mark.timeout(900)
def test_cpython_s_own_tests(place: Place) -> None:
    """Both runs at once: the suites wait more than they work."""
    python = python_with_tests()
    plain_dir, served_dir = place.root / "plain", place.source / "served"
    plain_xml, served_xml = place.root / "plain.xml", place.root / "served.xml"
    plain_words, served_words = words(python, plain_dir, plain_xml), words(python, served_dir, served_xml)
    environment = {**place.environment(), "TMPDIR": str(plain_dir)}
    with ThreadPoolExecutor() as pool:
        plain_run = pool.submit(
            subprocess.run,
            plain_words,
            env=environment,
            cwd=place.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=800,
        )
        served = place.run(*served_words, environment={"TMPDIR": str(served_dir)}, freshness="ttl=60", timeout=800, check=False)
        plain = plain_run.result()
    expected, got = outcomes(plain_xml), outcomes(served_xml)
    assert len(expected) > 1500
    differing = {name: (expected.get(name), got.get(name)) for name in expected.keys() | got.keys() if expected.get(name) != got.get(name)}
    assert differing == {}, served.out.decode(errors="replace")[-5000:]
    assert (served.status == 0) == (plain.returncode == 0)
    assert served.counters["tombstones"] > 1000
    assert served.counters["source_opens"] > 500
    assert list(served_dir.iterdir()) == []
