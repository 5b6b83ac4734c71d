"""F9: the agent dies by SIGKILL at any step.

The program goes on, no partial copy is ever served, and the next agent clears up.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.harness import (
    BIG,
    CORPUS,
    SMALL,
    agent_under,
    fill,
    needs_root,
    needs_strace,
    processes_of,
    read_adopted,
    read_all,
    traced,
)
from tests.support import LONG_S, WORKER, Place, Worker, read, wait_until, warm

pytestmark = [needs_root, needs_strace]

# Calls that change something on a tier or in the agent's directory. strace counts each by thread: with the first thread
# that comes to its Nth such call all die, before the call is carried out.
CALLS = ["openat", "openat2", "mkdirat", "pwrite64", "write", "ftruncate", "fallocate", "unlinkat", "flock", "bind", "close"]
FEW_FROM_START = [
    ("mkdirat", 2),
    ("flock", 1),
    ("flock", 2),
    ("openat2", 2),
    ("ftruncate", 2),
    ("bind", 2),
    ("openat2", 5),
    ("pwrite64", 2),
]
FEW_DURING_COPIES = [
    ("openat2", 1),
    ("mkdirat", 1),
    ("openat2", 2),
    ("pwrite64", 1),
    ("pwrite64", 2),
    ("pwrite64", 4),
    ("close", 2),
    ("close", 9),
]


def all_is_well(place: Place) -> None:
    """The next agent serves every byte right, counts exactly the files of the tier, and copies those that it lacks."""
    with place.worker() as worker:
        for name, content in CORPUS.items():
            assert read(worker, place.source / name) == content
        place.idle()
        warm(place, worker, *(place.source / name for name in CORPUS))
        tier = place.idle()["tiers"][0]
        copies = place.objects()
        assert sorted(copy.read_bytes() for copy in copies) == sorted(CORPUS.values())
        assert (tier["files"], tier["used_bytes"]) == (len(copies), sum(map(len, CORPUS.values())))
    place.stop()


def crash_from_start(place: Place, call: str, nth: int) -> bool:
    """Kills an agent at its Nth call of that kind after its start; tells whether it came that far."""
    log = place.root / "strace"
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"]
    with agent_under(place, "strace", "-f", "-qq", "-o", str(log), *inject) as agent:
        wait_until(lambda: place.agents() or agent.poll() is not None, "an agent, or its end")
        # Where it is dead already this run starts an agent of its own.
        with place.worker() as worker:
            # Whatever it does with one of each it has done, then.
            for name in CORPUS:
                read(worker, place.source / name)
            wait_until(lambda: agent.poll() is not None or is_idle(place), "all copies, or its end")
        if agent.poll() is None:
            # It has something to do at its end, too; and may die of it.
            place.stop()
            wait_until(lambda: agent.poll() is not None, "the end of the agent")
    return "killed by SIGKILL" in log.read_text()


def is_idle(place: Place) -> bool:
    """Returns True if the agent has nothing to do; False if it dies of the question."""
    with suppress(OSError, ValueError):
        status = place.status()
        return status.get("in_flight") == 0 and status.get("adopting") is False
    return False


def shake(place: Place, nth: int) -> None:
    """Leaves the next agent something to do: all, or half of it."""
    # With the list of what this command has read, the agent would copy it all before it is traced.
    shutil.rmtree(place.root / "state/reads", ignore_errors=True)
    if nth % 2:
        for root in place.tier.glob("forebay-*"):
            shutil.rmtree(root)
    else:
        for copy in place.objects()[::2]:
            copy.unlink()


def test_f09_killed_at_a_step_after_its_start(place: Place) -> None:
    fill(place, SMALL[0])
    for call, nth in FEW_FROM_START:
        shake(place, 1)
        assert crash_from_start(place, call, nth), (call, nth)
        all_is_well(place)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_f09_killed_at_every_step_after_its_start(place: Place) -> None:
    fill(place, SMALL[0])
    killed = 0
    for call in CALLS:
        for nth in range(1, 41):
            shake(place, nth)
            killed += (died := crash_from_start(place, call, nth))
            all_is_well(place)
            # Every other time there is less to do.
            if not died and nth % 2:
                break
    assert killed >= len(FEW_FROM_START)


def crash_during_copies(place: Place, call: str, nth: int, within_s: float = LONG_S) -> bool:
    """Kills an agent when a thread of it comes to its Nth call of that kind after a program has begun to read.

    Tells whether one did.
    """
    with place.worker() as worker:
        # The recovery is over.
        place.idle()
        agent = place.agent_pid()
        with traced(place, agent, "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"):
            deadline = time.monotonic() + within_s
            while Path(f"/proc/{agent}/root").exists() and time.monotonic() < deadline:
                for name, content in CORPUS.items():
                    assert read(worker, place.source / name) == content
                # Each call of the agent goes through strace: with more and more to take it would never come to copy.
                time.sleep(0.05)
            killed = not Path(f"/proc/{agent}/root").exists()
            # With nobody to hand anything to.
            for name, content in CORPUS.items():
                assert read(worker, place.source / name) == content
    return killed


def test_f09_killed_at_a_step_of_a_copy(place: Place) -> None:
    for call, nth in FEW_DURING_COPIES:
        shake(place, 1)
        assert crash_during_copies(place, call, nth), (call, nth)
        all_is_well(place)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_f09_killed_at_every_step_of_a_copy(place: Place) -> None:
    killed = 0
    for call in CALLS:
        for nth in range(1, 41):
            shake(place, 1)
            died = crash_during_copies(place, call, nth, within_s=2)
            killed += died
            all_is_well(place)
            if not died:
                break
    assert killed >= len(FEW_DURING_COPIES)


def test_f09_a_partial_copy_is_not_served_and_is_reaped(place: Place) -> None:
    fill(place, SMALL[0])
    (whole,) = place.objects()
    # As it may lie there after a power loss: named as a copy, longer or shorter than it should be, in no record.
    root = whole.parents[1]
    for digits, content in (("0123456789abcd00", b""), ("0123456789abcd01", CORPUS[BIG][:4096])):
        partial = root / digits[-2:] / digits
        partial.parent.mkdir(mode=0o700, exist_ok=True)
        partial.write_bytes(content)
        partial.chmod(0o400)
    read_all(place, SMALL[0], BIG)
    # However short the run was, its agent does not end before it has looked for leftovers.
    wait_until(lambda: not processes_of(place), "the agent's end")
    contents = [copy.read_bytes() for copy in place.objects()]
    assert CORPUS[SMALL[0]] in contents
    assert set(contents) <= {CORPUS[SMALL[0]], CORPUS[BIG]}
    assert read_adopted(place, SMALL[0]).from_tier == 1


def test_f09_the_program_outlives_the_agent(place: Place) -> None:
    paths = [place.source / name for name in SMALL]
    with place.worker() as worker:
        warm(place, worker, *paths[:6])
        agent = place.agent_pid()
        os.kill(agent, 9)
        wait_until(lambda: not Path(f"/proc/{agent}/root").exists(), "its end")
        for path in paths * 2:
            assert read(worker, path) == CORPUS[path.name]
        # Others are not kept out: the next run starts an agent beside this program.
        assert read_all(place, *SMALL[:6], rounds=2).ran.record["agent"]
        for path in paths * 2:
            assert read(worker, path) == CORPUS[path.name]
    assert worker.ran
    assert worker.ran.status == 0
    assert worker.ran.counters["dropped_no_agent"] >= 1
    assert worker.ran.record["agent"] is None
    assert b"the agent was gone before the program's end" in worker.ran.err


def test_f09_the_programs_children_outlive_the_command(place: Place) -> None:
    paths = [place.source / name for name in SMALL]
    # The program itself, a shell here, is killed with the command.
    words = place.words(["sh", "-c", '"$0" -E "$1"; true', place.python, str(WORKER)], place.record_path())
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=place.environment(), cwd=place.root, stdin=pipe, stdout=pipe, stderr=pipe) as run:
        worker = Worker(run)
        program = worker.do("os.getpid()")
        warm(place, worker, *paths[:6])
        run.kill()
        # The run has ended with its command, and with the last run the agent.
        wait_until(lambda: not processes_of(place), "the agent's end")
        for path in paths * 2:
            assert read(worker, path) == CORPUS[path.name]
        assert read_adopted(place, *SMALL).from_tier >= 6
        for path in paths * 2:
            assert read(worker, path) == CORPUS[path.name]
        os.kill(program, signal.SIGKILL)


def test_f09_the_source_is_untouched(place: Place) -> None:
    before = subprocess.run(["stat", "-c", "%n %i %s %Y %Z %a", *sorted(place.source.iterdir())], check=True, capture_output=True).stdout
    assert crash_during_copies(place, "pwrite64", 3)
    all_is_well(place)
    after = subprocess.run(["stat", "-c", "%n %i %s %Y %Z %a", *sorted(place.source.iterdir())], check=True, capture_output=True).stdout
    assert after == before


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_f09_a_run_that_joins_an_agent_which_is_just_ending(place: Place, ending: signal.Signals) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / SMALL[0])
        agent = place.agent_pid()
        # It can be connected to, and does not answer any more.
        os.kill(agent, signal.SIGSTOP)
        words = place.words(["echo", "ran"], place.record_path())
        with subprocess.Popen(words, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            time.sleep(0.5)
            assert run.poll() is None
            os.kill(agent, ending)
            os.kill(agent, signal.SIGCONT)
            out, err = run.communicate(timeout=LONG_S)
        assert (run.returncode, out) == (0, b"ran\n"), err
        assert read(worker, place.source / SMALL[0]) == CORPUS[SMALL[0]]
