"""F50, F51: any process is killed or stopped at any message: the others end, and training goes on undisturbed.

Clones and sources are processes of their own, which are no training programs; the parent that is forked trains in the
test's process.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import forebay.clone as clone
from forebay.clone import _description, _read_lease, _source
from forebay.clone._read_lease import ParentTensors
from forebay.clone._resume import CloneRequest
from tests import support
from tests.clone.forks import CloneNode, Opened, refusal, taking, train, wait_for_state
from tests.clone.jobs import full
from tests.clone.test_read_lease import Parent, forked


class Other:
    """A process that has come to a stage, or will."""

    def __init__(self, here: CloneNode, *words: str, **environment: str) -> None:
        command = [sys.executable, "-m", "tests.clone.played", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env={**here.environment, **environment}, cwd=support.ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.stage = words[1]

    def arrive(self) -> None:
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said == f"{self.stage}\n", self.process.communicate()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def other(here: CloneNode, *words: str, **environment: str) -> Iterator[Other]:
    made = Other(here, *words, **environment)
    try:
        yield made
    finally:
        made.end()


STAGES = ["asked", "state", "part", "read", "confirmed", "exists"]


@pytest.mark.parametrize("signaled", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("stage", STAGES)
def test_f51_a_clone_that_is_killed_or_stopped_at_any_message(
    stage: str, signaled: signal.Signals, here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = Parent(opened)
    with here.cloning("trunk") as asked, other(here, "clone", stage, FOREBAY_CLONE=asked) as played:
        if stage == "asked":
            # It is waited for from now on, and gone at the latest when the state has been taken.
            played.arrive()
            played.process.send_signal(signaled)
            if signaled == signal.SIGKILL:
                played.process.wait()
            parent.train(5)
        else:
            parent.fork()
            # The main thread has time for the clone's question; without a step the window stays open.
            support.wait_until(lambda: has_said(played), "the clone")
            played.arrive()
            played.process.send_signal(signaled)
            if signaled == signal.SIGKILL:
                played.process.wait()
            parent.train(3)
        if signaled == signal.SIGKILL and stage != "exists":
            refusal(asked, "rank 0 of the clone has ended before all had their states")
        assert [job["clones"] for job in here.jobs() if job["job"] == "trunk"] == [int(stage == "exists")]
    assert "can't be forked any more" not in capfd.readouterr().err
    parent.check()
    # And it can be forked again.
    with parent.forked(here) as again:
        parent.train(1)
        assert again.read() == again.was
    parent.check()


def has_said(played: Other) -> bool:
    """Returns True if the program has come to its stage, or ended.

    Asked again and again, so that this thread is between two instructions now and then.
    """
    assert played.process.stdout
    readable, _, _ = select.select([played.process.stdout], [], [], 0)
    return bool(readable)


@pytest.mark.parametrize("signaled", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("stage", ["registered", "near", "due", "offered", "closed"])
def test_f51_a_source_that_is_killed_or_stopped_at_any_message(
    stage: str, signaled: signal.Signals, here: CloneNode, opened: Opened
) -> None:
    """A clone of it is told, or waits as long as it wants to and no longer."""
    opened(full(1))
    with contextlib.ExitStack() as stack:
        played = stack.enter_context(other(here, "source", stage, str(here.forks)))
        support.wait_until(lambda: any(job["job"] == "played" and job["ranks_here"] for job in here.jobs()), "the job")
        asked = stack.enter_context(here.cloning("played"))
        mine = taking(asked)
        played.arrive()
        played.process.send_signal(signaled)
        if signaled == signal.SIGKILL:
            played.process.wait()
        if stage in ("offered", "closed"):
            state = wait_for_state(mine)
            ready = play_state(asked, state)
            if signaled == signal.SIGKILL and stage == "offered":
                with pytest.raises(clone.CloneError, match="no clone: its parent has ended in the step after"):
                    ready.confirm(time.sleep)
            elif stage == "offered":
                ready._wait_s = 0.05
                with pytest.raises(clone.CloneError, match=r"came to no further step in 0\.05 s"):
                    ready.confirm(time.sleep)
            else:
                ready.confirm(time.sleep)
            for descriptor in state[2]:
                os.close(descriptor)
        elif signaled == signal.SIGKILL:
            refusal(asked, "played has ended, or called close()")
        else:
            assert mine.state(0.05) is None


def play_state(asked: str, state: tuple[str, int, list[int], int]) -> ParentTensors:
    _, reader, (text, _, *lying), _ = state
    _, manifest = _description.read(CloneRequest.from_json(asked).secret.read_bytes(), text)
    return ParentTensors(manifest, reader, lying, float(support.PROGRAM_S))


@pytest.mark.parametrize(
    ("owner", "where"), [(_source.ForkSource, "point"), (_read_lease.ReadLease, "_close"), (_source.ForkSource, "repeat")]
)
def test_f50_an_exception_in_our_hooks_is_told_and_training_goes_on(
    owner: type, where: str, here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with forked(here, opened) as (parent, played):

        def fails(*_: object) -> None:
            raise RuntimeError("no way")

        monkeypatch.setattr(owner, where, fails)
        parent.train(2)
        assert "this job can't be forked any more: no way\n" in capfd.readouterr().err
        assert parent.session._source is None
        with contextlib.suppress(clone.CloneError):
            # Either the copy-on-write buffer had all that it needs by then, or it is told that there is nobody left to
            # ask.
            played.read()
            played.remote.confirm(time.sleep)


def test_a_program_that_forgets_its_points_is_named(here: CloneNode, opened: Opened) -> None:
    made = full(1)
    session = opened(made)
    with here.cloning("trunk") as asked:
        train(made, None, 3)
        with pytest.raises(clone.CloneError, match=r"trunk came to no point\(\) in 0\.05 s: does it train, and call"):
            opened(full(2), asked=asked, wait_s=0.05)
    assert session.forks == []
