"""`forebay profile`: measures within bounds, says what it measured, leaves nothing behind.

What it writes can be planned with.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.cli.conftest import Desk

# In a checkout the package is the one that was built into the environment, but for its code.
PACKAGE = {"PYTHONPATH": str(support.ROOT / "python")}

PREPARE = """
import hashlib

def digest(sample):
    assert isinstance(sample, bytes)
    print("a word that is nobody's business")
    hashlib.sha256(sample * 20).digest()

class Inner:
    digest = staticmethod(digest)

def picky(sample):
    raise ValueError("no image\\nat all")

def dies(sample):
    import os
    os._exit(3)

thing = 3
"""


@pytest.fixture
def samples(desk: Desk) -> Path:
    """Sixty samples of 1 to 60 KB, some in folders."""
    for number in range(60):
        folder = desk.source / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / str(number)).write_bytes(os.urandom(1000 * (number + 1)))
    (desk.root / "prepare.py").write_text(PREPARE)
    return desk.source


def short(*more: str) -> list[str]:
    return ["--threads", "1,2", "--seconds", "0.2", "--output", "profile.toml", *more]


def tree(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}


def rounds(profile: Path, place: str) -> list[dict[str, Any]]:
    """The tables of one place. What stands in them is written alike in TOML and in JSON."""
    tables = re.findall(rf"^\[\[measured\.{place}\]\]\n((?:\w+ = .+\n)+)", profile.read_text(), re.MULTILINE)
    return [{key: json.loads(value) for key, value in (line.split(" = ", 1) for line in table.splitlines())} for table in tables]


def test_it_measures_and_leaves_only_the_profile(desk: Desk, samples: Path) -> None:
    before = tree(desk.root)
    done = desk.type("profile", samples, "--tier", "tier", *short("--peer-bandwidth", "100 Gbit/s"))
    assert done.returncode == 0, done.stderr
    assert tree(desk.root) - before == {str(desk.root / "profile.toml")}
    for said in ("source", "local", "p50", "p99", "page cache was dropped", str(desk.tier), "profile.toml"):
        assert said in done.stdout, done.stdout
    text = (desk.root / "profile.toml").read_text()
    assert 'link = "12.5 GB/s"' in text
    assert "samples = 61" in text
    for place in ("source", "local"):
        found = rounds(desk.root / "profile.toml", place)
        assert [reading["threads"] for reading in found] == [1, 2]
        for reading in found:
            assert reading["samples"] > 0
            assert reading["read_s"] == sorted(reading["read_s"])
            assert reading["read_s"][0] >= reading["first_byte_s"][0] > 0


def test_what_it_reads_is_bounded(desk: Desk, samples: Path) -> None:
    done = desk.type("profile", samples, "--threads", "2", "--seconds", "600", "--bytes", "100K", "--output", "profile.toml")
    assert done.returncode == 0, done.stderr
    (reading,) = rounds(desk.root / "profile.toml", "source")
    # Reads that were under way when the bound was reached are ended: one a thread, of at most 60 KB.
    assert 102_400 <= reading["bytes"] <= 102_400 + 2 * 60_000
    assert reading["again"] == 0


def test_a_callable_is_measured_and_the_profile_can_be_planned_with(desk: Desk, samples: Path) -> None:
    call = ["--preprocess", "prepare:Inner.digest", "--python", sys.executable]
    done = desk.type("profile", samples, *short(*call), env=PACKAGE)
    assert done.returncode == 0, done.stderr
    assert "prepare" in done.stdout
    assert "past " in done.stdout
    plan = ["plan", "profile.toml", "--json", "--set", "job.step=5 ms", "--set", "job.batch=2", "--page", "page.html"]
    line = desk.refuse(*plan)
    assert "cluster.gpus is missing" in line
    done = desk.type(*plan, "--set", "cluster.gpus=2", "--set", "cluster.cache=1 MB", "--set", "cluster.threads=4")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found["policies"][0]["warm"]["samples_by_origin"].values()) >= 60
    assert "as forebay profile measured it" in (desk.root / "page.html").read_text()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("prepare", ["prepare", "module:function"]),
        ("prepare:nothing", ["prepare has no nothing"]),
        ("prepare:thing", ["can't be called"]),
        ("nowhere:digest", ["nowhere can't be imported", "No module named"]),
        ("prepare:picky", ["ValueError: no image at all", "source/"]),
        ("prepare:dies", ["a worker process died"]),
    ],
)
def test_a_callable_that_can_t_be_measured_is_named(desk: Desk, samples: Path, call: str, named: list[str]) -> None:
    done = desk.type("profile", samples, *short("--preprocess", call, "--python", sys.executable), env=PACKAGE)
    assert (done.returncode, done.stdout) == (2, "")
    # A word on progress may come before it on a slow machine.
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"forebay: --preprocess {call}: "), done.stderr
    assert all(word in line for word in named), line
    assert not (desk.root / "profile.toml").exists()


def test_an_interpreter_that_can_t_do_it_is_named(desk: Desk, samples: Path) -> None:
    bare = desk.root / "python"
    bare.write_text('#!/bin/sh\nshift 2\nexec python3 -S -c "raise ModuleNotFoundError(\\"No module named \'forebay\'\\")"\n')
    bare.chmod(0o755)
    for python, named in [("./nowhere", "No such file"), (str(bare), "install forebay there")]:
        done = desk.type("profile", samples, *short("--preprocess", "prepare:digest", "--python", python))
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert f"--python {python}" in line, line
        assert named in line, line


def test_what_can_t_be_run_is_told_before_anything_is_read(desk: Desk, samples: Path) -> None:
    for call, python in (("nowhere:digest", sys.executable), ("prepare:digest", "./nowhere"), ("prepare:digest", sys.executable)):
        # Who reads there says that there is nothing.
        done = desk.type("profile", "tier", *short("--preprocess", call, "--python", python), env=PACKAGE)
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert ("no file to read" in line) is ("nowhere" not in f"{call} {python}"), line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], ["nowhere", "No such file"]),
        (["source/file"], ["source/file", "not a directory"]),
        (["source", "--tier", "nowhere"], ["nowhere"]),
        (["source", "--threads", "1,0"], ["--threads", "'0'", "1,2,4,8"]),
        (["source", "--threads", "four"], ["'four'"]),
        (["source", "--seconds", "0"], ["--seconds", "more than 0"]),
        (["source", "--seconds", "nan"], ["--seconds", "more than 0"]),
        (["source", "--bytes", "5"], ["--bytes", "missing unit"]),
        (["source", "--peer-bandwidth", "100"], ["--peer-bandwidth", "100", "400 Gbit/s"]),
        (["tier"], ["no file to read", "tier"]),
    ],
)
def test_bad_input_is_refused_in_one_line(desk: Desk, words: list[str], named: list[str]) -> None:
    line = desk.refuse("profile", "--output", "profile.toml", *words)
    assert all(word in line for word in named), line
    assert not (desk.root / "profile.toml").exists()


def test_a_profile_is_not_written_over_unasked(desk: Desk, samples: Path) -> None:
    (desk.root / "profile.toml").write_text("precious")
    line = desk.refuse("profile", "source", *short())
    assert "profile.toml" in line
    assert "--force" in line
    assert (desk.root / "profile.toml").read_text() == "precious"
    assert desk.type("profile", samples, *short("--force")).returncode == 0
    assert "[measured]" in (desk.root / "profile.toml").read_text()
