"""P14c: every order of events of a rank that can be forked.

Its machine runs, not a model of it. Around it everything may happen: forks are requested or not, the agent ends at any
boundary, a state can't be taken before or after its lease is open, clones read in time or not.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from forebay.clone._source_machine import SourceAction, SourceMachine

T = TypeVar("T")

BOUNDARIES = 3
FORKS_MAX = 2

Machine = SourceMachine[int, int, int, int]


class Choices:
    """One sequence of choices; `orders` goes through all of them."""

    def __init__(self, prefix: list[int]) -> None:
        self._prefix = prefix
        self.made: list[tuple[int, int]] = []

    def one(self, *options: T) -> T:
        at = len(self.made)
        chosen = self._prefix[at] if at < len(self._prefix) else 0
        self.made.append((chosen, len(options)))
        return options[chosen]


def orders() -> Iterator[Choices]:
    """Yields choices until all sequences were made."""
    prefix: list[int] = []
    while True:
        choices = Choices(prefix)
        yield choices
        made = choices.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            return
        prefix = [*(chosen for chosen, _ in made[:-1]), made[-1][0] + 1]


@dataclass
class World:
    """A rank, its agent, and all resources that the machine has been given.

    Attributes:
        machine: the machine.
        is_agent_gone: the agent has ended, and no other has been joined.
        forks: forks that were requested so far.
        leases: buffers of leases that are open.
        read: buffers that clones may read after their lease.
        preparations: preparations that have begun and were not released.
        last: last number of a resource.
        expected: by boundary, forks whose digests are expected there.
    """

    machine: Machine
    is_agent_gone: bool = False
    forks: int = 0
    leases: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    preparations: set[int] = field(default_factory=set)
    last: int = 0
    expected: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def number(self) -> int:
        self.last += 1
        return self.last

    def step(self, choices: Choices) -> None:
        """Takes one step of training: a boundary, and the optimizer's update."""
        self.point(choices)
        self.repeat()
        self.update(choices)
        self.check()

    def point(self, choices: Choices) -> None:
        machine = self.machine
        self.is_agent_gone = self.is_agent_gone or choices.one(False, True)
        actions = machine.point(is_time=choices.one(False, True))
        assert (SourceAction.MEASURE in actions) == (machine.points == 1)
        if SourceAction.CHECK_JOINING in actions:
            if choices.one(False, True):
                machine.joined()
                self.is_agent_gone = False
                self.expected.clear()
        elif SourceAction.CHECK_AGENT in actions and self.is_agent_gone:
            assert machine.joining is None, "one connection at a time"
            machine.agent_ended(self.number())
        # Without an agent the page has no forks of which anybody hears, and stays as it is.
        forks = [] if self.forks == FORKS_MAX else choices.one([], [self.forks + 1])
        requests = [(fork, choices.one(0, 1, 2)) for fork in forks]
        self.forks += len(forks)
        near = choices.one(None, True)
        actions = machine.requested(requests, near)
        if forks:
            assert actions == (SourceAction.TAKE,)
            self.take(requests, near, choices)
        else:
            self.carry_out(actions)
            assert (machine.preparation is not None) == (near is not None)

    def take(self, requests: list[tuple[int, int]], near: bool | None, choices: Choices) -> None:
        machine = self.machine
        end = choices.one("published", "no memory", "refused", "no agent")
        if end != "no memory" and choices.one(False, True):
            buffer = machine.buffer if machine.buffer is not None else self.number()
            lease = self.number()
            self.leases[lease] = buffer
            machine.leased(lease)
        else:
            machine.leased(None)
        if end == "published":
            step = 10 * machine.points
            for fork, steps in requests:
                if steps:
                    self.expected.setdefault(machine.points + steps, []).append((fork, step))
            self.carry_out(machine.taken(step))
            assert (machine.preparation is not None) == (near is not None)
            return
        actions = machine.failed(is_agent_lost=end == "no agent")
        aborted = machine.aborted if SourceAction.WITHHOLD in actions else []
        assert aborted == ([] if end == "no agent" else [fork for fork, _ in requests]), "each clone hears of it"
        self.carry_out(actions)
        assert not self.leases, "nobody reads a state that was not published"
        assert machine.preparation is None

    def repeat(self) -> None:
        assert self.machine.repeated() == self.expected.pop(self.machine.points, []), "digests at their boundary, once"
        assert self.machine.repeated() == []

    def update(self, choices: Choices) -> None:
        for action in self.machine.before_step():
            assert action is SourceAction.CLOSE_LEASE
            buffer = self.leases.pop(self.machine.end())
            copied = choices.one(0, 1)
            if copied:
                self.read.add(buffer)
            dropped = choices.one([], [self.forks])
            assert bool(self.machine.closed(buffer, copied, dropped)) == bool(dropped)
            assert self.machine.aborted == dropped
        # Here the tensors change.
        assert not self.leases, "no clone reads tensors while they change"

    def check(self) -> None:
        machine = self.machine
        assert machine.buffer not in {*self.read, *self.leases.values()}, "a buffer is one lease's"
        assert self.preparations == ({machine.preparation} - {None}), "a preparation is released"
        assert not machine.taking

    def carry_out(self, actions: Sequence[SourceAction]) -> None:
        machine = self.machine
        for action in actions:
            if action is SourceAction.INVALIDATE:
                self.leases.pop(machine.end())
            elif action is SourceAction.PREPARE:
                assert machine.preparation is None, "one preparation at a time"
                preparation = self.number()
                self.preparations.add(preparation)
                machine.prepares(preparation, machine.sight(2), 0.5)
            elif action is SourceAction.RELEASE and (released := machine.release()) is not None:
                self.preparations.remove(released)

    def key(self) -> str:
        return repr(self)


def explore(made: Callable[[], Machine]) -> int:
    """Takes each step from each world, with every order of events. Returns the number of worlds."""
    seen: set[str] = set()
    left = [World(made())]
    while left:
        world = left.pop()
        for choices in orders():
            after = copy.deepcopy(world)
            after.step(choices)
            if after.machine.points < BOUNDARIES and (key := after.key()) not in seen:
                seen.add(key)
                left.append(after)
    return len(seen)


def test_p14c_in_every_order_leases_end_before_the_state_changes() -> None:
    assert explore(SourceMachine) > 1000


class KeepsLease(Machine):
    """Leaves the lease open when a state could not be published."""

    def failed(self, *, is_agent_lost: bool) -> Sequence[SourceAction]:
        self.lease = None
        return super().failed(is_agent_lost=is_agent_lost)


class NeverCloses(Machine):
    """Lets the state change under an open lease."""

    def before_step(self) -> Sequence[SourceAction]:
        return ()


class SharesBuffer(Machine):
    """Uses a buffer again that clones may read."""

    def closed(self, buffer: int, copied: int, dropped: list[int]) -> Sequence[SourceAction]:
        return super().closed(buffer, 0 * copied, dropped)


class PreparesTwice(Machine):
    """Begins a preparation at each boundary."""

    def requested(self, forks: list[tuple[int, int]], near: bool | None) -> Sequence[SourceAction]:
        return super().requested(forks, near) if forks or near is None else (SourceAction.PREPARE,)


class SendsStaleDigests(Machine):
    """Sends digests for forks of an agent that is gone."""

    def joined(self) -> int | None:
        repeats = dict(self.repeats)
        joining = super().joined()
        self.repeats = repeats
        return joining


class KeepsSilent(Machine):
    """Tells no clone that its state could not be taken."""

    def failed(self, *, is_agent_lost: bool) -> Sequence[SourceAction]:
        return super().failed(is_agent_lost=True)


@pytest.mark.parametrize("broken", [KeepsLease, NeverCloses, SharesBuffer, PreparesTwice, SendsStaleDigests, KeepsSilent])
def test_a_machine_that_breaks_a_rule_is_found(broken: Callable[[], Machine]) -> None:
    with pytest.raises(AssertionError):
        explore(broken)
