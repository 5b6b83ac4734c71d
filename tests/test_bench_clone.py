"""Figures of `make bench-clone`, made of the ranks' reports: measures, bars, ratios.

And that its jobs are forked, and its ways bring states over.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench.report
from bench import clone_page, clone_peers
from bench.clone import SCENARIOS, CloneBench, CloneSize, of_model
from bench.clone_forks import AFTER, CloneResults, Forked, add, cost, forked_at, grown, results, wanted
from bench.clone_jobs import node, ranks
from bench.clone_peers import OURS, PEERS, TOLD, Brought, against
from bench.programs.clone_cost import Own
from bench.report import BenchReport
from bench.session import PROGRAMS, ProgramError

pytestmark = pytest.mark.usefixtures("idle_machine")

MIB = 1 << 20
# A job that is forked at its third step; what is wrong in it, a test changes.
FORKED = 2


def step(number: int, *, seconds: float = 1.0, forked: bool = False, **said: Any) -> dict[str, Any]:
    """A step that begins at its number, in seconds."""
    fork = [{"bytes": 512 * MIB, "aside_bytes": 256 * MIB, "stall_s": 0.004}] if forked else []
    times = {"begin": float(number), "point": number + seconds, "seconds": seconds}
    costs = {"own_wall_s": 0.0, "own_cpu_s": 0.0}
    return {"step": number, "loss": 0.5 / (number + 1), **times, **costs, "fork": fork, "digests": {"a": "1", "b": "2"}, **said}


def run(**last: Any) -> dict[str, Any]:
    """All steps of a source; the one that is forked, and the next, take longer."""
    steps = [step(number, forked=number == FORKED) for number in range(FORKED + 1 + AFTER)]
    for number in (FORKED, FORKED + 1):
        steps[number]["seconds"] = 1.25
    for number in range(FORKED, len(steps)):
        steps[number] |= {"own_wall_s": 0.005, "own_cpu_s": 0.03}
    return {"before": {"own_wall_s": 0.0, "own_cpu_s": 0.0}, "steps": steps, "digests": {"a": "3", "b": "4"}, **last}


def became(ready: float, **digests: str) -> dict[str, Any]:
    return {"ready": ready, "digests": {"a": "1", "b": "2", **digests}}


def later(**digests: str) -> dict[str, Any]:
    steps = [step(number) for number in range(FORKED + 1, FORKED + 1 + AFTER)]
    return {"steps": steps, "digests": {"a": "3", "b": "4", **digests}}


def test_the_measures_are_those_of_the_rank_that_fared_worst() -> None:
    slow = run()
    slow["steps"][FORKED]["point"] += 0.5
    clones = results([run(), slow], [FORKED, FORKED], [became(4.0), became(4.25)], [later(), later()], 0.02)
    assert clones.readiness_s == pytest.approx(4.25 - 3.5)
    assert clones.standby_s == pytest.approx(4.25 - FORKED)
    assert (clones.differing, clones.differing_later) == (0, 0)
    found = cost([run(), slow], [FORKED, FORKED], 0.5, clones)
    assert (found.step_s, found.overhead_s) == pytest.approx((1.0, 0.5))
    assert (found.stall_s, found.told_stall_s, found.cpu_s) == pytest.approx((0.005, 0.004, 0.03))


def test_one_entry_or_loss_that_differs_is_counted() -> None:
    others = later(b="5")
    others["steps"][3]["loss"] += 1e-15
    found = results([run()], [FORKED], [became(4.0, a="0", c="6")], [others], 0.02)
    assert (found.differing, found.differing_later) == (2, 2)


def test_several_clones_of_one_rank_are_held_against_the_one_source() -> None:
    found = results([run()], [FORKED], [became(4.0), became(5.0, a="0")], [later(), later()], 0.02)
    assert found.differing == 1
    assert found.readiness_s == pytest.approx(2.0)


def test_what_a_fork_costs_is_counted_from_its_announcement_to_the_end_of_the_next_step() -> None:
    told = run()
    for number, one in enumerate(told["steps"]):
        one["own_cpu_s"] = float(number + 1)
    assert grown(told, FORKED, "own_cpu_s") == 3.0
    assert grown(told, 0, "own_cpu_s") == 2.0


def test_a_job_that_was_not_forked_is_no_measure() -> None:
    with pytest.raises(ValueError, match="not forked in 1 steps"):
        forked_at({"steps": [step(1)]})


def burn(seconds: float) -> None:
    """Takes so much of the processor, in this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_session_s_threads_and_calls_are_its_cost_and_training_is_not() -> None:
    begin, burnt, end = threading.Event(), threading.Event(), threading.Event()

    def train() -> None:
        begin.wait()
        burn(0.2)
        burnt.set()
        end.wait()

    old = threading.Thread(target=train, daemon=True)
    old.start()
    own = Own()
    before = own.cpu_s
    new = threading.Thread(target=burn, args=(0.1,))
    new.start()
    burn(0.2)
    own.call(lambda: burn(0.05))
    begin.set()
    burnt.wait()
    new.join()
    cost = own.cpu_s - before
    end.set()
    old.join()
    # Nothing of the 0.4 s that were taken otherwise.
    assert 0.15 <= cost < 0.3
    assert own.wall_s >= 0.05


def test_what_is_between_two_hooks_is_a_cost() -> None:
    class Optimizer:
        def __init__(self) -> None:
            self.before: list[Callable[[], None]] = []
            self.after: list[Callable[[], None]] = []
            self.register_step_pre_hook = self.before.append
            self.register_step_post_hook = self.after.append

    own, optimizer = Own(), Optimizer()
    with own.watching(optimizer):
        optimizer.register_step_pre_hook(lambda: burn(0.03))
        optimizer.register_step_post_hook(lambda: burn(0.02))
    for hook in optimizer.before:
        hook()
    assert own.wall_s >= 0.03
    burn(0.01)
    for hook in optimizer.after:
        hook()
    assert own.wall_s >= 0.05


def forked(**changed: Any) -> Forked:
    """Returns a fork that keeps every bar."""
    kept: dict[str, Any] = {
        "bytes": 1024 * MIB,
        "aside_bytes": 512 * MIB,
        "step_s": 1.0,
        "overhead_s": 0.01,
        "stall_s": 0.009,
        "told_stall_s": 0.009,
        "cpu_s": 0.055,
        "agent_s": 0.09,
        "clones": CloneResults(standby_s=1.2, readiness_s=0.14, memcpy_s=0.1, differing=0, differing_later=0),
    }
    of_clones = {name: changed.pop(name) for name in list(changed) if name in CloneResults.__dataclass_fields__}
    return Forked(**{**kept, "clones": replace(kept["clones"], **of_clones), **changed})


# A program that is none of the bench's.
WORDS = [sys.executable, "-c", "raise SystemExit('no such model')"]
MISSED = {
    "differing": (1, "entries that differ at the fork"),
    "differing_later": (1, f"entries and losses that differ {AFTER} steps on"),
    "stall_s": (0.011, "stall over the larger of 1 % of a step and 2 ms"),
    "cpu_s": (0.0701, "the training process's CPU, less 0.1 s a GiB copied aside"),
    "agent_s": (0.11, "the agent's CPU"),
    "readiness_s": (0.16, "readiness, verification included, over a memcpy"),
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchReport:
    monkeypatch.setattr(bench.report, "OUT", tmp_path)
    return BenchReport("clone", tuple(SCENARIOS), quick=False, commit="c0ffee")


def missed(report: BenchReport) -> list[str]:
    return [row.metric for row in report.rows if row.bar is not None and row.holds != "yes"]


def test_a_job_that_keeps_every_bar_holds(report: BenchReport) -> None:
    add(report, "nt3-sgd: 1 + 1 ranks", [forked()] * 10)
    assert missed(report) == []
    # A short step may be held up for 2 ms.
    add(report, "nt3-adamw: 1 + 1 ranks", [forked(step_s=0.01, stall_s=0.0019)] * 10)
    assert missed(report) == []


@pytest.mark.parametrize("what", MISSED)
def test_each_bar_can_be_missed(report: BenchReport, what: str) -> None:
    value, metric = MISSED[what]
    add(report, "nt3-sgd: 1 + 1 ranks", [forked(**{what: value})] * 10)
    assert missed(report) == [metric]


def test_a_fork_that_is_dropped_is_told_and_another_is_asked_for(report: BenchReport) -> None:
    lost = forked(clones=None)
    coming = iter([lost, *[forked()] * 9, lost, forked()])
    found = wanted(10, lambda: next(coming))
    assert len(found) == 12
    add(report, "nt3-sgd: 1 + 1 ranks", found)
    assert missed(report) == ["forks dropped, since the next step came before the state was read"]
    with pytest.raises(ProgramError, match="of 4 forks 4 were dropped"):
        wanted(2, lambda: lost)


def test_each_peer_is_a_bar_of_its_own(report: BenchReport) -> None:
    ways = [(OURS, True), *((way, digest) for way in PEERS for digest in (False, True))]
    found = {way: [Brought(0.0, 0.2, 0.2)] * 10 for way in ways}
    found[OURS, True] = [Brought(0.0, 0.1, 0.1)] * 10
    found["gloo", False] = [Brought(0.0, 0.05, 0.05)] * 10
    found["HDF5", True] = [Brought(0.0, 0.2, 0.2)] * 9 + [Brought(0.0, 0.2, 0.2, wrong=1)]
    against(report, "peers: nt3, sgd, 2 + 2 ranks", found)
    assert missed(report) == ["readiness, verification included, over gloo", "HDF5, with digests: tensors that arrived wrong"]


def test_the_tables_have_the_worst_of_each_bar(report: BenchReport) -> None:
    add(report, "nt3-sgd: 1 + 1 ranks", [forked()] * 10)
    add(report, "nt3-sgd: 2 + 2 ranks", [forked(readiness_s=0.16)] * 10)
    report.save()
    rows = json.loads(report.path.read_text())["rows"]
    printed = "\n".join([*clone_page.bars(rows), *clone_page.jobs(rows)])
    assert "| readiness, verification included, over a memcpy | 1.6 | nt3-sgd: 2 + 2 ranks | 1.5 | 1 of 2 |" in printed
    assert "| nt3-sgd: 2 + 2 ranks |" in printed
    assert "| **1.6** |" in printed


@pytest.mark.long
def test_jobs_are_forked_and_compared(tmp_path: Path, report: BenchReport) -> None:
    """Two torchruns of the bench's own program, one huge layer made small: whatever the time, the state is exact."""
    of_model("nt3", "adamw", CloneBench(tmp_path, CloneSize(forks=1, ranks=(1,), seconds=0.0, nt3="nt3-small")), report)
    rows = {row.metric: row for row in report.rows if row.scenario == "nt3-adamw: 1 + 1 ranks"}
    assert [rows[MISSED[what][1]].value for what in ("differing", "differing_later")] == [0, 0]
    assert rows["readiness, verification included, over a memcpy"].value > 0
    assert rows["the training process's CPU, less 0.1 s a GiB copied aside"].value > -0.1


@pytest.mark.long
def test_every_way_brings_the_state_over(tmp_path: Path, report: BenchReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone_peers, "RANKS", 1)
    ways = [(way, True) for way in (*PEERS, *TOLD, "mpi4py pickled")]
    with node(tmp_path) as here:
        found = clone_peers.measure(here, report, "peers: x", "nt3-small", "adamw", ways, 1)
    assert {way: [one.wrong for one in brought] for way, brought in found.items()} == {way: [0] for way in [(OURS, True), *ways]}
    assert all(one.readiness_s > 0 for brought in found.values() for one in brought)


@pytest.mark.long
def test_a_part_that_is_left_out_is_missed() -> None:
    done = subprocess.run([sys.executable, PROGRAMS / "clone_ablation.py", "1"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["not_caught"], found["not_asked_for"]) == ([], [])
    assert found["parts"] >= 15
    # An equal loss proves nothing.
    assert "model/gradients" in found["not_in_the_losses"]


def test_a_program_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    with node(tmp_path) as here, pytest.raises(ProgramError, match=r"not all ranks came: no such model"), ranks(here, 1, WORDS):
        pass
