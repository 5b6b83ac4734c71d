"""Signals: those sent to the command reach the program, those of the terminal reach it once, and job control works."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk

# Says "ready PID", then the name of each signal that comes, and ends at SIGTERM with 7.
LISTENER = """
import os, signal, sys, time
def say(number, frame):
    print(signal.Signals(number).name if number < 34 else number, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in [*{numbers}]:
    signal.signal(number, say)
print("ready", os.getpid(), flush=True)
# A pause would miss a signal that comes right before it.
while True:
    time.sleep(0.1)
"""
PASSED_ON = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGCONT]


def command(desk: Desk, *program: str) -> list[str]:
    return [str(support.command()), "run", "-q", "--source", str(desk.source), "--tier", f"{desk.tier}=64M", "--", *program]


def listener(numbers: list[signal.Signals]) -> str:
    return LISTENER.format(numbers=[int(number) for number in [*numbers, signal.SIGTERM]])


def listening(desk: Desk, numbers: list[signal.Signals]) -> list[str]:
    return command(desk, sys.executable, "-u", "-c", listener(numbers))


@contextmanager
def started(desk: Desk, words: list[str], prefix: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command and the process number of its program, which has said that it is ready."""
    with subprocess.Popen(
        [*prefix, *words], cwd=desk.root, env=desk.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout
            ready, number = process.stdout.readline().split()
            assert ready == "ready"
            yield process, int(number)
        finally:
            process.kill()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except FileNotFoundError:
        return True


def test_signals_sent_to_the_command_reach_the_program(desk: Desk) -> None:
    real_time = [signal.SIGRTMIN, signal.SIGRTMAX]
    with started(desk, listening(desk, [*PASSED_ON, *real_time])) as (process, _):
        assert process.stdout
        for number in [*PASSED_ON, *real_time]:
            process.send_signal(number)
            said = process.stdout.readline().strip()
            assert said == (signal.Signals(number).name if number < signal.SIGRTMIN else str(int(number)))
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "SIGTERM\n"
        assert process.wait(support.LONG_S) == 7
    assert desk.records()[-1]["exit"] == {"code": 7}


def test_a_program_that_does_not_listen_is_ended(desk: Desk) -> None:
    words = command(desk, "sleep", "1000")
    with subprocess.Popen(words, cwd=desk.root, env=desk.environment) as process:
        support.wait_until(lambda: children(process.pid, b"sleep"), "the program")
        process.terminate()
        assert process.wait(support.LONG_S) == -signal.SIGTERM
    assert desk.records()[-1]["exit"] == {"signal": signal.SIGTERM}


def children(pid: int, name: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue
        fields = stat.rsplit(b") ", 1)[1].split()
        if int(fields[1]) == pid and f"({name.decode()}".encode() in stat:
            found.append(int(entry.name))
    return found


def test_a_program_that_ignores_a_signal_outlives_it(desk: Desk) -> None:
    with started(desk, listening(desk, [signal.SIGINT])) as (process, pid):
        assert process.stdout
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "SIGINT\n"
        assert process.poll() is None
        assert not gone(pid)


def test_what_was_ignored_at_the_start_stays_ignored(desk: Desk) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)"
    words = command(desk, sys.executable, "-c", code)
    done = subprocess.run(["nohup", *words], cwd=desk.root, env=desk.environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_sigkill_takes_the_program_along(desk: Desk) -> None:
    with started(desk, listening(desk, [])) as (process, pid):
        process.kill()
        process.wait(support.LONG_S)
        support.wait_until(lambda: gone(pid), "the program's end")


def test_a_group_is_ended_as_a_whole(desk: Desk) -> None:
    with started(desk, listening(desk, [])) as (process, pid):
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(support.LONG_S) == -signal.SIGKILL
        support.wait_until(lambda: gone(pid), "the program's end")


class Terminal:
    """A shell with job control on a terminal of its own."""

    def __init__(self, desk: Desk) -> None:
        self.read = ""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(desk.root)
            environment = desk.environment | {"PS1": "$ ", "TERM": "dumb"}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)  # noqa: S606
        self.pid = pid
        attributes = termios.tcgetattr(self.fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.fd, termios.TCSANOW, attributes)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str, seconds: float = support.LONG_S) -> str:
        """Reads until the text comes, and gives what came before it."""
        deadline = time.monotonic() + seconds
        while text not in self.read:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"waited for {text!r}, and read {self.read!r}"
            self.read += os.read(self.fd, 4096).decode(errors="replace")
        before, self.read = self.read.split(text, 1)
        return before

    def close(self) -> None:
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Terminal]:
    made = Terminal(desk)
    yield made
    made.close()


def start_script(desk: Desk, terminal: Terminal, text: str) -> int:
    script = desk.root / "script.py"
    script.write_text(text)
    terminal.type(" ".join(command(desk, sys.executable, "-u", str(script))) + "\n")
    terminal.expect("ready ")
    return int(terminal.expect("\n"))


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def test_the_terminals_keys_reach_the_program_once(desk: Desk, terminal: Terminal) -> None:
    start_script(desk, terminal, listener([signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1]))
    terminal.type("\x03")
    terminal.expect("SIGINT")
    terminal.type("\x1c")
    assert "SIGINT" not in terminal.expect("SIGQUIT"), "Ctrl-C came twice"
    time.sleep(0.3)
    (ours,) = children(terminal.pid, b"forebay")
    os.kill(ours, signal.SIGTERM)
    assert "SIGQUIT" not in terminal.expect("SIGTERM"), "Ctrl-\\ came twice"
    terminal.type("echo status $?\n")
    terminal.expect("status 7")


def test_ctrl_c_ends_a_program_that_does_not_listen(desk: Desk, terminal: Terminal) -> None:
    terminal.type(" ".join(command(desk, "sleep", "1000")) + "\n")
    (pid,) = support.wait_until(lambda: children(terminal.pid, b"forebay"), "the command")
    support.wait_until(lambda: children(pid, b"sleep"), "the program")
    terminal.type("\x03")
    terminal.expect("$ ")
    terminal.type("echo status $?\n")
    terminal.expect("status 130")


# As editors do: put things in order, then stop by the default action.
EDITOR = """
import os, signal, time
def stop(number, frame):
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, stop)
signal.signal(signal.SIGTSTP, stop)
signal.signal(signal.SIGUSR1, lambda *_: print("SIGUSR1"))
print("ready", os.getpid())
# A pause would miss a signal that comes right before it.
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("text", [listener([signal.SIGUSR1]), EDITOR], ids=["stops at once", "puts things in order first"])
def test_ctrl_z_stops_both_and_fg_continues_both(desk: Desk, terminal: Terminal, text: str) -> None:
    pid = start_script(desk, terminal, text)
    for _ in range(3):
        terminal.type("\x1a")
        terminal.expect("Stopped")
        support.wait_until(lambda: state(pid) == "T", "the program's stop")
        terminal.type("fg\n")
        support.wait_until(lambda: state(pid) != "T", "the program's continuation")
        os.kill(pid, signal.SIGUSR1)
        terminal.expect("SIGUSR1")
    (ours,) = children(terminal.pid, b"forebay")
    support.wait_until(lambda: state(ours) != "T", "the command's continuation")


def test_closing_the_terminal_ends_the_program(desk: Desk) -> None:
    terminal = Terminal(desk)
    pid = start_script(desk, terminal, listener([]))
    terminal.close()
    support.wait_until(lambda: gone(pid), "the program's end")
