"""Time to the first step: phases of a run by the files that its programs open before it, and what would shorten it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.testbed import have_fuse, slowfs
from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_read_ahead import weights

pytestmark = pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or "")

MODULES, IMAGES = 12, 6
WEIGHTS = 4 << 20
# Imports, loads weights and settings, and reads data, as programs do that know nothing of Forebay.
PROGRAM = """
import sys
sys.path.insert(0, "net/code")
for number in range(12):
    __import__(f"m{number}")
open("net/config.json").read()
open("net/model.safetensors", "rb").read()
for number in range(6):
    open(f"net/data/{number}.jpg", "rb").read()
"""
# Reads data by the loader, whose batches have two samples; the data's other files are opened after the first batch.
LOADED = """
import torch, forebay.torch
class Images(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, at): return len(open(f"net/data/{at}.jpg", "rb").read())
open("net/code/m0.py").read()
batches = iter(forebay.torch.DataLoader(Images(), batch_size=2, report=False))
next(batches)
open("net/code/m1.py").read()
list(batches)
"""
# A training loop whose session tells of its step boundaries.
FORKABLE = """
import torch, forebay.clone
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
none = dict(scheduler=None, scaler=None, ema=None, loader=None)
session = forebay.clone.session(model=model, optimizer=optimizer, job="first-step", **none)
for step in range(2):
    open(f"net/data/{step}.jpg", "rb").read()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    session.point(epoch=0, step=step + 1)
session.close()
"""


@contextmanager
def net(desk: Desk, **slow: float) -> Iterator[None]:
    """A slow source at `net` with code, settings, weights and data."""
    for directory in (desk.source / "code", desk.source / "data", desk.root / "net"):
        directory.mkdir()
    for number in range(MODULES):
        (desk.source / f"code/m{number}.py").write_text(f"value = {'1' * (100 + number)}\n")
    for number in range(IMAGES):
        (desk.source / f"data/{number}.jpg").write_bytes(os.urandom(5_000 + number))
    (desk.source / "config.json").write_text('{"layers": 2}')
    weights(desk.source / "model.safetensors", 1, WEIGHTS)
    support.settle(desk.source)
    asked: dict[str, Any] = {"mbps": 0, "open_ms": 0, "meta_us": 0, "read_us": 0, "slots": 16, "attr_ttl_ms": 60_000, **slow}
    with slowfs(desk.source, desk.root / "net", **asked):
        yield


def run(desk: Desk, program: str, *options: str) -> tuple[dict[str, Any], str]:
    """Returns the part of the record on the first step, and the summary."""
    words = ("run", "--source", "net", "--tier", "tier=64M", "--freshness", "immutable", *options)
    done = desk.type(*words, "--", sys.executable, "-c", program, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    first_step: dict[str, Any] = desk.records()[-1]["first_step"]
    return first_step, done.stderr


def phases(first_step: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in first_step["phases"]}


def sizes(desk: Desk, pattern: str) -> dict[str, int]:
    found = [path.stat().st_size for path in desk.source.glob(pattern)]
    return {"opens": len(found), "bytes": sum(found)}


# The agent sees that weights have been read to their end when it looks next.
LASTING = f"{PROGRAM}import time\ntime.sleep(2)\n"
FILES = {"imports": "code/*.py", "weights": "*.safetensors", "settings": "*.json", "first_batch": "data/*.jpg"}
NOTHING = {"opens": 0, "bytes": 0}


def test_phases_follow_each_other_and_have_the_bytes_of_their_files(desk: Desk) -> None:
    with net(desk, open_ms=20):
        first, summary = run(desk, PROGRAM)
        seen = phases(first)
        assert {name: seen[name]["source"] for name in FILES} == {name: sizes(desk, pattern) for name, pattern in FILES.items()}
        assert all(seen[name]["tiers"] == [NOTHING] for name in FILES)
        for phase in seen.values():
            assert phase["waited_s"] >= 0.02 * phase["source"]["opens"]
        begins = [seen[name]["begin_s"] for name in ("start", "imports", "settings", "weights", "first_batch")]
        assert begins == sorted(begins)
        assert seen["start"]["end_s"] == seen["imports"]["begin_s"]
        assert seen["imports"]["end_s"] - seen["imports"]["begin_s"] >= 0.02 * (MODULES - 1)
        assert seen["weights"]["end_s"] >= seen["weights"]["begin_s"]
        # Nobody says when the first step is.
        assert (first["batch_s"], first["step_end_s"], seen["first_batch"]["end_s"]) == (None, None, None)
        assert "first step:          not told by the program; the first file of data was opened after" in summary
        assert f"{MODULES} opens: " in summary

        second, _ = run(desk, PROGRAM)
        assert {name: phases(second)[name]["tiers"] for name in FILES} == {name: [sizes(desk, FILES[name])] for name in FILES}
        assert all(phases(second)[name]["source"] == NOTHING for name in FILES)


@pytest.mark.parametrize(
    ("slow", "program", "options", "cause", "advice"),
    [
        ({"open_ms": 400}, PROGRAM, (), "imports took longest", "--libraries copies shared libraries, too"),
        ({"open_ms": 400}, PROGRAM, ("--libraries",), "imports took longest", "the next run finds copies here"),
        ({"mbps": 0.8}, LASTING, (), "weights took longest", "forebay warm --from RUN"),
        ({"mbps": 0.8}, LASTING, ("--prefetch", "follow"), "weights took longest", "--prefetch auto"),
        ({}, f"import time\ntime.sleep(2)\n{PROGRAM}", (), "start took longest", "no copy makes it shorter"),
    ],
    ids=["imports", "imports with libraries", "weights", "weights that are followed", "start"],
)
def test_a_sentence_names_what_took_longest_and_what_would_help(
    desk: Desk, slow: dict[str, float], program: str, options: tuple[str, ...], cause: str, advice: str
) -> None:
    with net(desk, **slow):
        first_step, summary = run(desk, program, *options)
    assert cause in first_step["advice"]
    assert advice in first_step["advice"]
    assert first_step["advice"] in summary


def test_a_loader_tells_its_first_batch_and_later_files_are_not_counted(desk: Desk) -> None:
    pytest.importorskip("torch")
    with net(desk, open_ms=500):
        first_step, summary = run(desk, LOADED)
        page = desk.type("report")
    seen = phases(first_step)
    # Torch itself is not below the source.
    assert seen["imports"]["source"] == sizes(desk, "code/m0.py")
    assert seen["first_batch"]["source"] == sizes(desk, "data/[01].jpg")
    assert seen["first_batch"]["end_s"] == first_step["batch_s"] == first_step["last_batch_s"]
    assert seen["first_batch"]["end_s"] - seen["first_batch"]["begin_s"] >= 2 * 0.5
    assert first_step["processes"] == 1
    assert "to the first batch of a loader" in summary
    assert page.returncode == 0
    html = (desk.root / "forebay-report.html").read_text()
    assert "Time to the first step" in html
    assert "to the first batch of a loader" in html


def test_a_session_tells_the_end_of_the_first_step(desk: Desk) -> None:
    pytest.importorskip("torch")
    with net(desk):
        first_step, summary = run(desk, FORKABLE)
    assert first_step["batch_s"] is None
    assert phases(first_step)["first_batch"]["source"] == sizes(desk, "data/0.jpg")
    assert phases(first_step)["first_batch"]["end_s"] == first_step["step_end_s"]
    assert "to the end of the first step, as its session tells" in summary


def test_processes_of_a_run_are_counted_together(desk: Desk) -> None:
    with net(desk, open_ms=20):
        program = "import subprocess, sys\nparts = [subprocess.Popen([sys.executable, '-c', sys.argv[1]]) for _ in range(3)]"
        ended = "\nsys.exit(max(part.wait() for part in parts))"
        words = ("run", "--source", "net", "--tier", "tier=64M", "--", sys.executable, "-c", program + ended, PROGRAM)
        done = desk.type(*words, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    seen = phases(desk.records()[-1]["first_step"])
    for name, pattern in FILES.items():
        opened, size = seen[name]["source"], sizes(desk, pattern)
        # The copy of one process may answer another.
        assert opened["opens"] + seen[name]["tiers"][0]["opens"] == 3 * size["opens"]
        assert opened["bytes"] + seen[name]["tiers"][0]["bytes"] == 3 * size["bytes"]


def test_a_program_that_reads_nothing_has_no_first_step(desk: Desk) -> None:
    done = desk.run("--", "true")
    assert done.returncode == 0
    assert "first step:" not in done.stderr
    assert desk.records()[-1]["first_step"] is None


def test_a_record_without_it_is_shown_without_it(desk: Desk) -> None:
    assert desk.run("--record", "run.json", "--", "true").returncode == 0
    assert desk.type("report", "run.json").returncode == 0
    assert "Time to the first step" not in Path(desk.root / "forebay-report.html").read_text()
