"""Read leases: clones read large tensors in place until the next step, and get the bytes of one step or none.

crates/agent/src/forks/read_lease/model.rs goes through all orders in which the two sides may look at what; here are
real memory, a real agent and real steps.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
import xxhash

import forebay.clone as clone
from forebay import _core
from forebay.clone import _description
from forebay.clone._read_lease import ParentTensors, ReadLease
from forebay.clone._resume import CloneRequest
from tests import support
from tests.clone.forks import CloneNode, Opened, refusal, taking, told, train, train_until, wait_for_state
from tests.clone.jobs import WIDE, full

PIECE = 4 << 20
# Of three pieces, of one that is not whole, and of a byte.
LENGTHS = [2 * PIECE + 64, 1000, 1]
WEIGHT = "model/parameters/head.weight"
MOMENTUM = "optimizer/state/0.4/momentum_buffer"
AVERAGE = "ema/parameters/module.head.weight"
LARGE = (WEIGHT, MOMENTUM, AVERAGE)
# Of each of these.
BYTES = WIDE * 36 * 3 * 4
LONG = float(support.PROGRAM_S)


class Tensors:
    """A source's memory, with a window on three tensors in it."""

    def __init__(self, readers: int = 1, aside: int = sum(LENGTHS) + 1000) -> None:
        self.memory, self.aside = _core.Shared(sum(LENGTHS)), _core.Shared(aside)
        self.starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
        self.content = os.urandom(sum(LENGTHS))
        self.write(self.content)
        self.window = _core.Window(
            [(self.memory.address + start, length) for start, length in zip(self.starts, LENGTHS, strict=True)], readers
        )
        self.target = ctypes.create_string_buffer(max(LENGTHS))

    def write(self, content: bytes) -> None:
        ctypes.memmove(self.memory.address, content, len(content))

    def step(self) -> None:
        """Every byte is another one."""
        ctypes.memset(self.memory.address, 0, sum(LENGTHS))

    def reading(self, reader: int = 0, mapped: _core.Mapped | None = None) -> _core.Reading:
        tensors = [(length, 0, start) for length, start in zip(LENGTHS, self.starts, strict=True)]
        return self.reading_of(tensors, reader, mapped)

    def reading_of(self, tensors: list[tuple[int, int, int]], reader: int = 0, mapped: _core.Mapped | None = None) -> _core.Reading:
        return _core.Reading(self.window.descriptor, tensors, reader, [(self.memory.descriptor, mapped)], self.aside.descriptor)

    def read(self, reading: _core.Reading, tensor: int, wait_s: float = LONG) -> str:
        return reading.read([(tensor, ctypes.addressof(self.target))], wait_s).hex()

    def digest(self, tensor: int) -> str:
        start = self.starts[tensor]
        return xxhash.xxh3_128_hexdigest(self.content[start : start + LENGTHS[tensor]])

    def close(self, stall_s: float = LONG) -> tuple[int, int, int]:
        return self.window.close(self.aside.address, self.aside.length, stall_s)


ALL = range(len(LENGTHS))


def test_what_was_read_in_place_is_not_copied() -> None:
    tensors = Tensors()
    reading = tensors.reading()
    assert [tensors.read(reading, tensor) for tensor in ALL] == [tensors.digest(tensor) for tensor in ALL]
    assert tensors.target.raw[:1] == tensors.content[-1:]
    assert reading.outcome == "open"
    assert tensors.close() == (0, 0, 0)
    assert reading.outcome == "kept"


def test_f50_what_was_not_read_before_the_step_is_read_as_it_was() -> None:
    tensors = Tensors(readers=3)
    first, second, gone = (tensors.reading(reader) for reader in range(3))
    assert tensors.read(first, 0) == tensors.digest(0)
    assert [tensors.read(second, tensor) for tensor in ALL] == [tensors.digest(tensor) for tensor in ALL]
    copied, left, readers = tensors.close()
    assert (copied, left, readers) == (sum(LENGTHS), 0, 0), "the third has read nothing"
    tensors.step()
    for reading in (first, gone):
        assert [tensors.read(reading, tensor) for tensor in ALL] == [tensors.digest(tensor) for tensor in ALL]


def test_f51_a_budget_drops_those_who_need_more_and_nobody_else() -> None:
    tensors = Tensors(readers=2, aside=1500)
    reading, has_all = tensors.reading(0), tensors.reading(1)
    for tensor in ALL:
        tensors.read(has_all, tensor)
    # From the last to the first: the small ones go to the copy-on-write buffer.
    assert tensors.close() == (1 + 1000 + 64, 2 * PIECE, 0b01)
    tensors.step()
    assert {reading.outcome, has_all.outcome} == {"dropped"}
    assert tensors.read(reading, 1) == tensors.digest(1)
    with pytest.raises(ConnectionAbortedError, match=r"the job's next step came before it was read, .*session\(aside=..., stall_s=...\)"):
        tensors.read(reading, 0)
    late = Tensors()
    copied, left, readers = late.close(stall_s=0)
    assert (copied, left, readers) == (0, sum(LENGTHS), 1), "no time, no bytes"


def test_f50_a_window_that_was_torn_says_so_to_all() -> None:
    tensors = Tensors()
    reading = tensors.reading()
    tensors.read(reading, 0)
    tensors.window.tear()
    assert reading.outcome == "torn"
    with pytest.raises(ConnectionAbortedError, match=r"changed its tensors between point\(\) and the optimizer's step"):
        tensors.read(reading, 1)


def read_all(tensors: Tensors, reading: _core.Reading, has_begun: threading.Event, digests: list[str]) -> None:
    for tensor in (1, 0, 2):
        digests.append(tensors.read(reading, tensor))
        has_begun.set()


def test_f50_a_step_in_the_middle_of_reading_is_never_seen() -> None:
    for _ in range(10):
        tensors = Tensors()
        reading, read = tensors.reading(), threading.Event()
        digests: list[str] = []

        thread = threading.Thread(target=read_all, args=(tensors, reading, read, digests))
        thread.start()
        assert read.wait(LONG)
        _, left, _ = tensors.close()
        tensors.step()
        thread.join()
        assert left == 0
        assert digests == [tensors.digest(tensor) for tensor in (1, 0, 2)]


def test_a_source_that_stands_still_while_it_closes_is_waited_for_so_long() -> None:
    tensors = Tensors()
    reading = tensors.reading()
    # As though the source had closed the last tensor's piece, and gone no further: bit 63 of its word, the fifth pair
    # from byte 64 on.
    descriptor = os.open(f"/proc/self/fd/{tensors.window.descriptor}", os.O_RDWR)
    os.pwrite(descriptor, b"\x80", 64 + 16 * 4 + 7)
    os.close(descriptor)
    with pytest.raises(TimeoutError, match="stands still in the middle of a step"):
        tensors.read(reading, 2, 0.05)


def test_nonsense_is_refused() -> None:
    tensors = Tensors()
    with pytest.raises(ValueError, match="invalid reader 63"):
        tensors.reading(63)
    with pytest.raises(ValueError, match="there is no tensor 3"):
        tensors.reading().read([(3, 1 << 20)], 1.0)
    with pytest.raises(ValueError, match="there is no arena 1"):
        tensors.reading_of([(length, 1, 0) for length in LENGTHS]).read([(0, 1 << 20)], 1.0)
    with pytest.raises(OSError, match=r"(?i)invalid"):
        tensors.reading_of([(1 << 40, 0, 0)])
    with pytest.raises(OSError, match=r"(?i)invalid"):
        _core.Reading(tensors.memory.descriptor, [(sum(LENGTHS) * PIECE, 0, 0)], 0, [], tensors.aside.descriptor)
    with pytest.raises(OSError, match=r"(?i)invalid"):
        _core.Window([], 17)
    beyond = tensors.reading_of([(length, 0, PIECE) for length in LENGTHS])
    with pytest.raises(OSError, match="end of file"):
        tensors.read(beyond, 0, 1.0)


@dataclass
class Played:
    """A rank of a clone, played by the test.

    It has its state in hand, and has read nothing of its parent's memory.
    """

    asked: str
    taking: _core.Taking
    manifest: clone.Manifest
    remote: ParentTensors
    descriptors: list[int]
    # The digests of what it may read, as they were at the fork.
    was: dict[str, str] = field(default_factory=dict)

    def read(self, *paths: str) -> dict[str, str]:
        """The digests of what was read; of all, if no paths are named."""
        digests = {}
        for number, entry in enumerate(self.manifest.in_place):
            if not paths or entry.path in paths:
                buffer = ctypes.create_string_buffer(entry.length)
                digests[entry.path] = self.remote.read([(number, ctypes.addressof(buffer))]).hex()
        return digests

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def play(asked: str, mine: _core.Taking) -> Played:
    _, reader, descriptors, _ = wait_for_state(mine)
    text, _, *lying = descriptors
    _, manifest = _description.read(CloneRequest.from_json(asked).secret.read_bytes(), text)
    return Played(asked, mine, manifest, ParentTensors(manifest, reader, lying, LONG), descriptors)


class Parent:
    """A job that has just been forked, as its session stands: no step has come since."""

    def __init__(self, opened: Opened, **limits: object) -> None:
        self.made = full(1, width=WIDE)
        self.session = opened(self.made, **{"stall_s": LONG, **limits})
        self.step = train(self.made, self.session, 2)

    def fork(self) -> dict[str, str]:
        """Trains until the state has been taken; the digests of what clones read in its place."""
        before = len(self.session.forks)
        self.step = train_until(self.made, self.session, lambda: len(self.session.forks) > before, self.step)
        entries = {entry.path: entry.digest for entry in self.made.inventory(counters={}).manifest().entries}
        return {path: entries[path] for path in LARGE}

    @contextlib.contextmanager
    def forked(self, here: CloneNode) -> Iterator[Played]:
        """Forks it; gives its clone, which has its state in hand."""
        with here.cloning("trunk") as asked:
            mine = taking(asked)
            was = self.fork()
            played = play(asked, mine)
            played.was = was
            yield played
            played.close()

    def train(self, steps: int = 3) -> None:
        self.step = train(self.made, self.session, steps, self.step)

    def check(self) -> None:
        """Its losses are those of a job that nobody forked."""
        plain = full(1, width=WIDE)
        train(plain, None, self.step - 1)
        assert self.made.losses == plain.losses


@contextlib.contextmanager
def forked(here: CloneNode, opened: Opened) -> Iterator[tuple[Parent, Played]]:
    """A job that has just been forked, and its clone; the job's losses are checked afterwards."""
    parent = Parent(opened)
    with parent.forked(here) as played:
        yield parent, played
    parent.check()


def test_f50_a_clone_reads_in_place_what_is_large(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with parent.forked(here) as played:
        assert {entry.path for entry in played.manifest.in_place} == set(LARGE)
        assert played.read() == played.was
        assert not played.remote.is_confirmed(), "the parent may still find that it had changed something"
        parent.train()
        assert played.remote.is_confirmed()
        played.remote.confirm(time.sleep)
    (fork,) = parent.session.forks
    assert fork.length - fork.copied == len(LARGE) * BYTES
    assert fork.aside == 0
    parent.check()


def test_f51_a_clone_that_is_stopped_in_the_window_costs_a_copy_aside(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (parent, played):
        assert played.read(MOMENTUM).items() <= played.was.items()
        parent.train()
        assert parent.session.forks[0].aside == 2 * BYTES
        assert played.read(WEIGHT, AVERAGE).items() <= played.was.items()


@pytest.mark.parametrize("stage", ["asked", "state", "part"])
def test_f51_a_clone_that_is_killed_costs_nothing(stage: str, here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        parent.fork()
        if stage != "asked":
            played = play(asked, mine)
            if stage == "part":
                played.read(WEIGHT)
            played.close()
            del played
        del mine
        refusal(asked, "rank 0 of the clone has ended before all had their states")
        parent.train()
        assert parent.session.forks[0].aside == 0, "the agent has seen it go"
    with parent.forked(here) as played:
        parent.train()
        assert played.read() == played.was
    parent.check()


def test_several_clones_read_one_state(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    at = str(parent.step + 20)
    with here.cloning("trunk", "--at", at) as one, here.cloning("trunk", "--at", at) as two:
        first, second = taking(one), taking(two)
        was = parent.fork()
        assert [fork.step for fork in parent.session.forks] == [int(at)]
        quick, slow = play(one, first), play(two, second)
        assert quick.read() == was
        parent.train()
        assert parent.session.forks[0].aside == len(LARGE) * BYTES
        assert slow.read() == was
        for played in (quick, slow):
            played.remote.confirm(time.sleep)
            played.close()
    parent.check()


def test_a_state_that_no_clone_waits_for_is_copied_at_once(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with here.cloning("trunk", "--at", str(parent.step + 2)) as asked:
        parent.fork()
        parent.train()
        (fork,) = parent.session.forks
        assert (fork.copied, fork.aside) == (fork.length, 0)
        other = full(9, width=WIDE)
        assert opened(other, asked=asked).resumed == {"epoch": 0, "step": fork.step}
    parent.check()


def test_p14d_f51_a_fork_beyond_its_budget_is_dropped_and_the_step_is_not(
    here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = Parent(opened, aside=0)
    with parent.forked(here) as played:
        parent.train(1)
        unread = f"the next optimizer step began with {len(LARGE) * BYTES:,} bytes unread, beyond the copy budget (0 bytes were copied)"
        said = f"no fork at step {parent.session.forks[0].step}: {unread}"
        assert said in capfd.readouterr().err
        with pytest.raises(clone.CloneError, match=r"^the job's next step came before it was read"):
            played.read()
        refusal(played.asked, "rank 0 of trunk could not take its state: the next optimizer step began with")
    parent.check()


def test_f50_what_is_changed_outside_of_a_step_tears_the_window(here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]) -> None:
    parent = Parent(opened)
    with parent.forked(here) as played:
        played.read()
        with torch.no_grad():
            parent.made.model.get_parameter("head.weight").mul_(1)
        parent.train(1)
        assert f"{WEIGHT} was changed between point() and the optimizer's step" in capfd.readouterr().err
        with pytest.raises(clone.CloneError, match="no clone: its parent's tensors were changed between"):
            played.remote.confirm(time.sleep)
    # As it may do so again, the next fork does not count on it.
    with parent.forked(here) as played:
        with torch.no_grad():
            parent.made.model.get_parameter("head.weight").mul_(1)
        parent.train(1)
        assert played.read() == {path: played.was[path] for path in (MOMENTUM, AVERAGE)}
        assert not [entry for entry in played.manifest.in_place if entry.path == WEIGHT]
        played.remote.confirm(time.sleep)
    parent.check()


def test_f51_a_parent_that_ends_in_the_window_leaves_what_was_not_read_or_says_nothing(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with parent.forked(here) as played:
        parent.session.close()
        assert played.read() == played.was
        played.remote.confirm(time.sleep)
    killed = Parent(opened)
    with killed.forked(here) as played:
        # What is left of a process that is killed: nothing is said any more, by no thread either, and its connection
        # closes.
        assert killed.session._source
        assert killed.session._source._machine.lease
        killed.session._source._machine.lease._is_silent = True
        killed.session._source._machine.lease = None
        del killed.session._source._rank
        killed.session._source = None
        with pytest.raises(clone.CloneError, match="no clone: its parent has ended in the step after"):
            played.remote.confirm(time.sleep)


@pytest.mark.parametrize("ends", [False, True], ids=["stopped", "killed"])
def test_f51_an_agent_that_fails_in_the_window_delays_no_step(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", float("inf"))
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        was = parent.fork()
        if ends:
            here.kill_agent()
            parent.train()
        else:
            pid = here.agent_pid()
            os.kill(pid, signal.SIGSTOP)
            try:
                parent.train()
            finally:
                os.kill(pid, signal.SIGCONT)
            played = play(asked, mine)
            assert played.read() == was
            played.close()
    parent.check()
    if ends:
        # The next one is there for the tests that follow.
        monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", 0.0)
        parent.step = train_until(parent.made, parent.session, lambda: len(here.jobs()) == 1, parent.step)


def test_a_program_that_comes_to_no_further_step_is_given_up_in_time(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        parent.fork()
        played = play(asked, mine)
        played.remote._wait_s = 0.05
        with pytest.raises(clone.CloneError, match=r"its parent came to no further step in 0\.05 s"):
            played.remote.confirm(time.sleep)
        played.close()
        parent.train()


@pytest.mark.parametrize("then", ["step", "change", "agent"])
def test_f50_there_is_no_clone_before_its_parent_says_that_nothing_had_changed(
    then: str, here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_read, confirm = threading.Event(), ParentTensors.confirm

    def confirming(remote: ParentTensors, pause: Callable[[float], object]) -> None:
        has_read.set()
        confirm(remote, pause)

    monkeypatch.setattr(ParentTensors, "confirm", confirming)
    # Here it says so only by its step.
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        future = executor.submit(opened, full(9, width=WIDE), asked=asked, wait_s=LONG)
        parent.fork()
        assert has_read.wait(LONG)
        assert [job["clones"] for job in here.jobs()] == [0]
        assert not future.done(), "it has read all, and waits"
        if then == "agent":
            here.kill_agent()
            with pytest.raises(clone.CloneError, match=r"no clone of trunk: .*closed the connection"):
                future.result(LONG)
        if then == "change":
            with torch.no_grad():
                parent.made.model.get_parameter("head.weight").mul_(1)
        monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", 0.0)
        parent.train(1)
        if then == "change":
            with pytest.raises(clone.CloneError, match=r"changed between point\(\) and the optimizer's step"):
                future.result(LONG)
        if then == "step":
            assert future.result(LONG).resumed == {"epoch": 0, "step": parent.session.forks[0].step}
    # Where the agent was killed the next one is there for the tests that follow.
    parent.step = train_until(parent.made, parent.session, lambda: "trunk" in [job["job"] for job in here.jobs()], parent.step)


def test_what_makes_no_sense_is_refused(opened: Opened) -> None:
    for options, why in (
        ({"aside": -1}, "aside=-1: write a number of bytes, such as 67108864, or None"),
        ({"aside": 1.5}, "aside=1.5: write"),
        ({"stall_s": -0.5}, "stall_s=-0.5: write a number of seconds from 0 to 3600"),
        ({"stall_s": float("nan")}, "stall_s=nan: write"),
        ({"stall_s": "1"}, "stall_s='1': write"),
    ):
        with pytest.raises(ValueError, match=why):
            opened(full(1), **options)


def test_f50_another_process_forks_off_while_its_parent_trains(here: CloneNode, opened: Opened) -> None:
    """The whole way, at full speed: whatever the clone has read when the step comes, it goes on as its parent does."""
    parent = Parent(opened)
    session = parent.session
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(here.type, "clone", "trunk", "--", sys.executable, "-m", "tests.clone.train")
        while not session.forks and not future.done():
            parent.train(1)
            # The other process imports torch meanwhile, on the same processors.
            time.sleep(0.01)
        parent.train(5)
        done = future.result(support.PROGRAM_S)
    assert done.returncode == 0, done.stderr
    (clones,) = told(done.stdout)
    (fork,) = session.forks
    assert (clones["begun"], parent.step) == (fork.step, fork.step + 6)
    assert [clones["losses"][str(step)] for step in range(fork.step + 1, fork.step + 6)] == parent.made.losses[-5:]
    assert clones["digests"] == {entry.path: entry.digest for entry in parent.made.inventory(counters={}).manifest().entries}
    assert fork.copied < fork.length
    parent.check()
