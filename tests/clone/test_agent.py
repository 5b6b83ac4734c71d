"""The fork agent's start, and the agent under faults: it has no descriptors left, or is stopped."""

import contextlib
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
import forebay.clone as clone
from forebay import _core
from forebay.clone import _source
from tests import support
from tests.clone.forks import CloneNode, Opened, taking, train, train_until, trained, wait_for_state
from tests.clone.jobs import full

CONNECTIONS = 20
# Starts the agent while a file is open that programs inherit. Prints the agent's directory if it then has no child.
STARTS = """
import os, sys, forebay
from forebay import _core
os.set_inheritable(os.open(sys.argv[1], os.O_RDONLY), True)
directory = _core.start_fork_agent(forebay.command())
try:
    print(os.wait())
except ChildProcessError:
    print(directory)
"""


def busy_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def few_descriptors(pid: int, spare: int) -> Iterator[None]:
    """A process gets so many more descriptors, and no more."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    held = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + spare, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_an_agent_is_started_as_nobody_s_child_and_inherits_nothing(here: CloneNode) -> None:
    command = [sys.executable, "-c", STARTS, __file__]
    environment = here.environment | {"LD_PRELOAD": str(forebay.preload_library()), "AWS_PROFILE": "training"}
    started = subprocess.run(command, env=environment, cwd=support.ROOT, capture_output=True, text=True, check=False)
    assert started.stdout == f"{here.forks}\n", started.stderr
    agent = Path(f"/proc/{here.agent_pid()}")
    assert (agent / "cmdline").read_bytes().split(b"\0")[1:] == [b"agent", b""]
    held = []
    for descriptor in (agent / "fd").iterdir():
        # The agent opens and closes files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            held.append(descriptor.readlink())
    assert Path(__file__) not in held
    variables = {line.partition(b"=")[0] for line in (agent / "environ").read_bytes().split(b"\0")}
    assert b"FOREBAY_RUNTIME_DIR" in variables
    assert not variables & {b"LD_PRELOAD", b"AWS_PROFILE"}


@pytest.fixture
def alone(here: CloneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on a node without an agent."""
    for name, value in here.own.items():
        monkeypatch.setenv(name, value)
    here.kill_agent()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/nowhere", "start /nowhere: No such file or directory"),
        ("/bin/false", "start /bin/false: exit status: 1"),
        ("/bin/true", "the agent could not start: it was killed"),
    ],
)
def test_an_agent_that_does_not_start_is_told(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _core.start_fork_agent(Path(command))


@pytest.mark.usefixtures("alone")
def test_a_signal_ends_the_wait_for_an_agent(tmp_path: Path) -> None:
    """The command leaves a process that never answers."""
    command, told = tmp_path / "command", tmp_path / "pid"
    command.write_text(f"#!/bin/sh\nsleep {support.LONG_S} &\necho $! > {told}\n")
    command.chmod(0o755)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            _core.start_fork_agent(command)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    os.kill(int(told.read_text()), signal.SIGKILL)


def test_an_agent_without_descriptors_waits_for_somebody_to_leave(here: CloneNode, opened: Opened) -> None:
    _ = trained(opened)
    pid = here.agent_pid()
    with few_descriptors(pid, 3), contextlib.ExitStack() as connections:
        for _ in range(CONNECTIONS):
            connections.enter_context(here.connect())
        log = here.forks / "agent.log"
        support.wait_until(lambda: "no new connection is accepted until another one closes" in log.read_text(), "a full agent")
        before = busy_s(pid)
        # The listening socket is readable all the time.
        time.sleep(2)
        assert busy_s(pid) - before < 0.5
        connections.close()
        assert [job["job"] for job in here.jobs()] == ["trunk"]
    assert log.read_text().count(" fallback ") == 1


def test_a_refused_clone_is_found_in_the_log(here: CloneNode, opened: Opened) -> None:
    """The line has the process that was refused, and the reason that it was told."""
    opened(full(1))
    assert here.refusals() == []
    done = here.type("clone", "nosuch", "--", "true")
    assert done.returncode == 2
    (line,) = here.refusals()
    assert re.search(r' WARN refused kind="\w+" pid=\d+ why=".*nosuch', line), line
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        mine.failed("the state is of another model")
        with pytest.raises(ConnectionError, match="the state is of another model"):
            wait_for_state(mine)
    (_, line, *_) = here.refusals()
    assert f"pid={os.getpid()} " in line, line
    assert "rank 0 of the clone could not load its state: the state is of another model" in line


def test_ranks_that_join_the_next_agent_apart_are_asked_when_all_look(here: CloneNode, opened: Opened) -> None:
    opened(full(1), job="other")
    ranks = [_core.Rank(str(here.forks), "duo", rank, 2, False, 0) for rank in range(2)]
    here.kill_agent()
    directory = _source._agent()
    ranks[0] = _core.Rank(directory, "duo", 0, 2, True, 0)
    done = here.type("clone", "duo", "--", "true")
    assert done.returncode == 2
    assert "the fork agent was replaced, and 1 of the 2 ranks of duo have come to the new one" in done.stderr
    ranks[1] = _core.Rank(directory, "duo", 1, 2, True, 0)
    ranks[0].measured(1)
    with here.cloning("duo", "--at", "5"):
        assert ranks[0].due(1, 4) == ([], False, None), "rank 1 would not know of it"
        ranks[1].measured(1)
        points = itertools.count(2)
        support.wait_until(lambda: ranks[0].due(next(points), 4)[2] is not None, "the fork")
        last = next(points)
        assert [len(rank.due(last, 5)[0]) for rank in ranks] == [1, 1]


def test_an_agent_that_ends_before_the_first_step_is_followed_by_the_next(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", 0.0)
    made = full(1)
    session = opened(made)
    here.kill_agent()
    step = train_until(made, session, lambda: [job["bytes"] > 0 for job in here.jobs()] == [True])
    with here.cloning("trunk", "--at", str(step + 2)) as asked:
        step = train(made, session, 4, step)
        assert opened(full(2), asked=asked).resumed == {"epoch": 0, "step": step - 2}


def test_an_agent_that_is_stopped_holds_nobody_for_long(here: CloneNode, opened: Opened) -> None:
    # To make one is to seed this process's generators: the last is the one that trains.
    other, made = full(2), full(1)
    session = opened(made)
    step = train(made, session, 1)
    pid = here.agent_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(clone.CloneError, match=rf"the agent has not answered in 10 s: where it is stopped, .*kill -CONT {pid}\b"):
            opened(other, job="other")
        done = here.type("clone", "ls")
        assert done.returncode == 2
        assert f"kill -CONT {pid}" in done.stderr
        step = train(made, session, 3, step)
        session.close()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert opened(other, job="other").job == "other"
    plain = full(1)
    train(plain, None, step - 1)
    assert made.losses == plain.losses
