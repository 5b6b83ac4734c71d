"""State machine of a rank that can be forked.

It is told what has happened, and decides what is done next; it does nothing itself. `_source.py` carries its decisions
out. Leases, buffers and preparations are opaque to it, so that tests explore every order of events with numbers in
their place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

__all__ = ["SourceAction", "SourceMachine"]

LeaseT = TypeVar("LeaseT")
BufferT = TypeVar("BufferT")
PreparationT = TypeVar("PreparationT")
JoiningT = TypeVar("JoiningT")


class SourceAction(Enum):
    """Next action of a rank."""

    MEASURE = auto()
    """First step boundary: share the large tensors, and tell the agent the state's size."""
    CHECK_AGENT = auto()
    """Look whether the agent is running; if it is not, call `agent_ended`."""
    CHECK_JOINING = auto()
    """Look whether the next agent has answered; call `joined` if it has."""
    TAKE = auto()
    """Publish the state for the forks in `taking`; call `leased` for its lease, then `taken` or `failed`."""
    INVALIDATE = auto()
    """Invalidate the lease that `end` returns."""
    CLOSE_LEASE = auto()
    """Close the lease that `end` returns before the state changes, then call `closed`."""
    WITHHOLD = auto()
    """Tell the agent why there is no state for the forks in `aborted`."""
    PREPARE = auto()
    """Begin to prepare for an upcoming fork, and call `prepares`."""
    RELEASE = auto()
    """End the preparation, used or not, by `release`."""


@dataclass
class SourceMachine(Generic[LeaseT, BufferT, PreparationT, JoiningT]):
    """Decisions of one rank, from `session()` to `close()`.

    Attributes:
        points: step boundaries so far.
        taking: forks for which the state is being taken, each with its steps of shadow verification.
        near: upcoming forks: true if all their clones wait; None if there are none.
        aborted: forks that get no state.
        lease: lease that is open.
        ending: lease that has to be closed or invalidated now.
        buffer: copy-on-write buffer that no clone reads.
        preparation: preparation for an upcoming fork.
        begun_sight: boundaries that were looked ahead when the preparation began.
        begun_s: seconds for which training stood still to begin it.
        joining: connection to the next agent, while it is made.
        repeats: by the number of a boundary, forks whose digests are sent there, each with its step.
    """

    points: int = 0
    taking: list[tuple[int, int]] = field(default_factory=list)
    near: bool | None = None
    aborted: list[int] = field(default_factory=list)
    lease: LeaseT | None = None
    ending: LeaseT | None = None
    buffer: BufferT | None = None
    preparation: PreparationT | None = None
    begun_sight: int = 1
    begun_s: float = 0.0
    joining: JoiningT | None = None
    repeats: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def point(self, *, is_time: bool) -> Sequence[SourceAction]:
        """Begins a step boundary. `is_time`: the agent was not looked at for a while."""
        self.points += 1
        actions = [SourceAction.MEASURE] if self.points == 1 else []
        if self.joining is not None:
            actions.append(SourceAction.CHECK_JOINING)
        elif is_time:
            actions.append(SourceAction.CHECK_AGENT)
        return actions

    def agent_ended(self, joining: JoiningT) -> None:
        """Notes that the agent has ended, and that the next one is being joined."""
        self.joining = joining

    def joined(self) -> JoiningT | None:
        """Notes that the next agent has answered. Forks of the agent before have ended with it."""
        joining, self.joining = self.joining, None
        self.repeats.clear()
        return joining

    def sight(self, ahead: int) -> int:
        """Returns the boundaries to look ahead.

        A preparation that has begun is kept until its fork comes, even if the steps take longer meanwhile.
        """
        return max(ahead, self.begun_sight)

    def requested(self, forks: list[tuple[int, int]], near: bool | None) -> Sequence[SourceAction]:
        """Notes the forks of this boundary, and upcoming ones."""
        self.near = near
        if forks:
            self.taking = forks
            return (SourceAction.TAKE,)
        return self._prepare()

    def leased(self, lease: LeaseT | None) -> None:
        """Notes the lease on the state that is being taken; its buffer is no longer free."""
        self.lease = lease
        if lease is not None:
            self.buffer = None

    def taken(self, step: int) -> Sequence[SourceAction]:
        """Notes that the state of this step was published."""
        for fork, steps in self.taking:
            if steps > 0:
                self.repeats.setdefault(self.points + steps, []).append((fork, step))
        self.taking = []
        return (SourceAction.RELEASE, *self._prepare(is_released=True))

    def failed(self, *, is_agent_lost: bool) -> Sequence[SourceAction]:
        """Notes that the state could not be taken. Without the agent nobody waits for it."""
        actions = []
        self.ending, self.lease = self.lease, None
        if self.ending is not None:
            actions.append(SourceAction.INVALIDATE)
        if not is_agent_lost:
            self.aborted = [fork for fork, _ in self.taking]
            actions.append(SourceAction.WITHHOLD)
        self.taking = []
        return (*actions, SourceAction.RELEASE)

    def prepares(self, preparation: PreparationT, sight: int, begun_s: float) -> None:
        """Notes that a preparation has begun."""
        self.preparation, self.begun_sight, self.begun_s = preparation, sight, begun_s

    def release(self) -> PreparationT | None:
        """Returns the preparation, and forgets it."""
        preparation, self.preparation, self.begun_sight, self.begun_s = self.preparation, None, 1, 0.0
        return preparation

    def before_step(self) -> Sequence[SourceAction]:
        """Notes that the state is about to change."""
        if self.lease is None:
            return ()
        self.ending, self.lease = self.lease, None
        return (SourceAction.CLOSE_LEASE,)

    def end(self) -> LeaseT:
        """Returns the lease that has to be ended, and forgets it."""
        lease, self.ending = self.ending, None
        if lease is None:
            raise AssertionError("no lease has to be ended")
        return lease

    def closed(self, buffer: BufferT, copied: int, dropped: list[int]) -> Sequence[SourceAction]:
        """Notes that the lease was closed: bytes were copied to its buffer, and forks were dropped."""
        if copied == 0:
            # No clone reads it: the next fork can use it again.
            self.buffer = buffer
        self.aborted = dropped
        return (SourceAction.WITHHOLD,) if dropped else ()

    def repeated(self) -> list[tuple[int, int]]:
        """Returns the forks whose digests are sent at this boundary, each with its step, once."""
        return self.repeats.pop(self.points, [])

    def _prepare(self, *, is_released: bool = False) -> Sequence[SourceAction]:
        if self.near is None:
            return (SourceAction.RELEASE,) if self.preparation is not None and not is_released else ()
        return (SourceAction.PREPARE,) if self.preparation is None or is_released else ()
