"""Pages in a real browser: `forebay report` of a real run, `forebay plan`; in light and in dark, wide and narrow."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import browser, support
from tests.cli.conftest import Desk
from tests.cli.test_plan import PLAN

# Reads every file of the source three times, with time to be looked at.
EPOCHS = (
    support.WAIT_UNTIL_IDLE
    + """
for epoch in range(3):
    for path in sorted(Path("source").iterdir()):
        path.read_bytes()
        time.sleep(0.005)
    wait_until_idle()
"""
)


# What sessions tell of a fork: the clone asked before the state was taken.
FORKED = """
import time
from forebay.clone._events import tell

begun = time.time()
whose = {"rank": 0, "ranks": 1, "epoch": 0, "step": 1200, "bytes": 4096}
costs = {"copied": 1024, "aside": 512, "stall_s": 0.25, "window_s": 0.25, "closing_s": 0.125, "before_s": 0.5, "after_s": 0.75}
tell("taken", {"job": "trunk", **whose, "at": begun + 0.5, **costs})
lineage = {"parent": "trunk", "digest": "0123456789abcdef", "changes": {"lr": 0.5}}
times = {"asked_at": begun, "state_at": begun + 0.5, "loaded_at": begun + 2.0, "exists_at": begun + 2.0}
tell("became", {"job": "trunk.1", **whose, **lineage, **times})
"""
LOADED = """
from types import SimpleNamespace

from forebay.loader._report import EpochReport, TrainingWait, WaitTimeline
from forebay.loader._reporter import LoaderReporter

counts = {"from_memory": 10, "from_source": 30, "source_bytes": 300 << 10, "rank_reads": 15, "rank_queued_us": 30000}
for rank in range(2):
    course = WaitTimeline(6.4, [4.0, 4.0 + rank], [0.25, 0.25])
    report = EpochReport(
        epoch=7, samples=640, skipped=0, seconds=12.5, source_wait_s=8.0 + rank, decode_wait_s=0.5, ideal_s=5.0, read_bytes=367000,
        workers=8, processors=8, begun_at=1795432621.25, waits=(TrainingWait(3.5, 7.2, "source"),), course=course,
    )
    LoaderReporter("0", rank, 2, SimpleNamespace(since=lambda: counts), is_saying=False).end(report)
"""


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser.browser() as found:
        yield found


def check(opened: Any, page: Path, plots: int) -> str:  # noqa: ANN401  (typed only where it is installed)
    """Nobody has to complain, whatever the colours and the window; gives what is written there."""
    seen = [browser.look(opened, page, scheme, width) for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 420))]
    assert [one["complaints"] for one in seen] == [[], [], []]
    assert [one["plots"] for one in seen] == [plots] * 3
    assert seen[0]["background"] != seen[1]["background"]
    text: str = seen[0]["text"]
    return text


def test_a_report(opened: Any, desk: Desk) -> None:  # noqa: ANN401
    for number in range(40):
        (desk.source / f"{number:03}.jpg").write_bytes(bytes(20_000 + 1000 * number))
    (desk.source / "file").unlink()
    support.settle(desk.source)
    ran = desk.run("--freshness", "immutable", "--", sys.executable, "-c", EPOCHS)
    assert ran.returncode == 0, ran.stderr
    done = desk.type("report", "--output", "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(desk.root / "page.html")
    text = check(opened, desk.root / "page.html", plots=6)
    for said in (
        "Local tiers answered 80 of 120 opens (66.7 %)",
        "No more was possible",
        "Epochs",
        "Throughput",
        "Cache fill",
        "ends of epochs",
    ):
        assert said in text, said


@pytest.mark.parametrize(
    ("words", "plots", "said"),
    [
        (("true",), 4, ("there was nothing to serve", "None were found")),
        ((sys.executable, "-c", FORKED), 5, ("the job stands still",)),
        ((sys.executable, "-c", LOADED), 5, ("What ranks waited for",)),
    ],
    ids=["nothing", "forks", "loaders"],
)
def test_a_report_of(opened: Any, desk: Desk, words: tuple[str, ...], plots: int, said: tuple[str, ...]) -> None:  # noqa: ANN401
    desk.run("-q", "--", *words)
    assert desk.type("report", "--output", "page.html").returncode == 0
    text = check(opened, desk.root / "page.html", plots)
    assert [line for line in said if line not in text] == []


def test_a_plan(opened: Any, desk: Desk) -> None:  # noqa: ANN401
    (desk.root / "plan.toml").write_text(PLAN)
    assert desk.type("plan", "plan.toml", "--page", "page.html").returncode == 0
    text = check(opened, desk.root / "page.html", plots=15)
    assert "Steps by GPU" in text


BAD = """<!doctype html><html><head><style>
  body { background: white } .pale { color: #ccc } .wide { width: 3000px }
</style></head><body>
<p class="pale">pale</p><p class="wide">wide</p><img src="http://127.0.0.1:9/x.png"><script>throw new Error("thrown")</script>
<figure><svg width="300" height="200"><text x="10" y="20">one</text><text x="12" y="22">other</text>
<text x="290" y="90">beyond</text></svg></figure>
</body></html>"""


def test_what_is_bad_is_complained_of(opened: Any, tmp_path: Path) -> None:  # noqa: ANN401
    page = tmp_path / "bad.html"
    page.write_text(BAD)
    complaints = "\n".join(browser.look(opened, page, "light")["complaints"])
    for said in (
        '"pale" has',
        "wide, the window 1280",
        "request: http://127.0.0.1:9/x.png",
        "thrown",
        '"other" runs into "one"',
        '"beyond" is cut off',
        "stands out",
    ):
        assert said in complaints, (said, complaints)
