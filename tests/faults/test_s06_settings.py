"""S6: LD_PRELOAD and settings as a means of attack. That setuid programs have no preload library is F23's test."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests import support
from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace here")
def test_s06_the_library_opens_the_runs_pages_and_nothing_else(covered: CoveredSource, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    covered.run("strace", "-o", trace, "-e", "trace=openat", covered.compile("nothing"), check=True)
    opened = set(re.findall(r'openat\(AT_FDCWD, "(.*?)"', trace.read_text()))
    of_the_loader = {path for path in opened if path.startswith(("/lib", "/usr/lib", "/etc/ld.so")) or path.endswith("_preload.so")}
    assert {re.sub(r"\d+$", "N", Path(path).name) for path in opened - of_the_loader} == {"run.N", "control"}


@pytest.mark.parametrize("content", ["", "nonsense", "x" * 100_000])
def test_s06_a_false_page_switches_it_off(covered: CoveredSource, tmp_path: Path, content: str) -> None:
    page = tmp_path / "page"
    page.write_text(content)
    ran = covered.run("sh", "-c", f'FOREBAY_RUN="{page}" cat f1', check=True)
    assert ran.out == b"file 1\n"
    assert ran.counters["source_opens"] == 0


def test_s06_the_current_directory_gives_no_settings(covered: CoveredSource, tmp_path: Path) -> None:
    for name in ("forebay.toml", ".forebay.toml", "config.toml", ".config/forebay/config.toml", "forebay/config.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("nonsense = [")
    ran = covered.place.run("cat", covered.source / "f1", cwd=tmp_path)
    assert (ran.status, ran.out) == (0, b"file 1\n")


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_s06_settings_that_others_can_write_are_refused(covered: CoveredSource, tmp_path: Path, mode: int) -> None:
    config = tmp_path / "config.toml"
    config.write_text("keep = false\n")
    config.chmod(mode)
    ran = covered.place.run("true", environment={"FOREBAY_CONFIG": str(config)}, check=False)
    assert ran.status == 2
    assert str(config).encode() in ran.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_s06_settings_of_somebody_else_are_refused(covered: CoveredSource, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("keep = false\n")
    os.chown(config, support.NOBODY, support.NOBODY)
    ran = covered.place.run("true", environment={"FOREBAY_CONFIG": str(config)}, check=False)
    assert ran.status == 2
    assert str(config).encode() in ran.err
