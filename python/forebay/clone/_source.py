"""A rank of a job that can be forked.

A step boundary costs one read of shared memory as long as no fork is requested.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import forebay
from forebay import _core
from forebay._say import say
from forebay.clone._adapter import Changing
from forebay.clone._capture import Capture, reserve
from forebay.clone._description import StateHeader, described, described_schema
from forebay.clone._errors import CloneError, RefusedError
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import Inventory
from forebay.clone._later import ThreadResult, uncollected
from forebay.clone._read_lease import ReadLease, aside_length
from forebay.clone._shared import Arena, Storage, shared
from forebay.clone._shared_tensors import SharedTensors
from forebay.clone._source_machine import SourceAction, SourceMachine

__all__ = ["REASON_MAX", "Fork", "ForkSource", "Limits"]

PREPARES = ("start", "fork", "never")
"""Times at which large tensors are moved into shared memory.

The first point, an upcoming fork, or never (all is copied at the point).
"""
STALL_MAX_S = 3600.0
ASIDE_KEPT_S = 60.0
"""Seconds for which an unused copy-on-write buffer is kept after a fork."""

LOOK_EVERY_S = 5.0
"""Seconds between two checks that the fork agent is running."""
LOOKS_KEPT = 8
"""Number of past measurements of free memory.

During the last ones other ranks may have taken their share for a fork.
"""
LENGTH_SPARE_BYTES, LENGTH_SPARE_PART = 64 << 10, 16
"""Headroom before the copied bytes are measured again: 64 KiB plus 1/16.

Counters become longer, a scheduler remembers more.

Memory that is prepared and not used is freed while training stands still.
"""
READY_BYTES_PER_S = 1e9
"""Lowest rate at which memory for a copy is allocated and touched, bytes a second.

Known machines take 0.2 to 0.5 s a gigabyte.
"""
READY_MAX_S = 30.0
"""Longest time for which a fork is delayed until its memory is ready, in seconds: its clone waits."""
STEPS_MEANT = 64
"""Number of steps in a mean. A single one may be a launch on a GPU, without the work, or an evaluation."""
STEP_LEAST_S = 1e-3
"""Shortest step that is assumed, in seconds."""
REASON_MAX = 2000
"""Longest reason that is sent to others, in characters."""
START_TRIES = 3
"""Number of connection attempts: the first one may meet an agent that is just ending, the next one does not."""
TAKEN_WAIT_S = 10.0
"""Seconds for which a used name is tried again.

A restarted job meets its old name until its loaders' orphaned workers end.
"""
TAKEN_PAUSE_S = 0.5
PUBLISHED_WAIT_S = 30.0
"""Longest time for which the end of a job waits for a state that is being copied, in seconds."""


@dataclass(frozen=True)
class Fork:
    """A state of this rank that was published to clones.

    Attributes:
        step: step after which it was taken, as the job counts.
        length: bytes.
        stall_s: seconds for which training stood still: at the point, before the next step, and for the preparation.
        copied: bytes that were copied at the point; the clones read all others in the job's own memory.
        aside: bytes that were copied before the next step, since a clone had not read them.
        early: bytes that were copied while the step before the point ran.
        compared_s: seconds for which training stood still, some steps later, to digest the state for a clone with
            `verify="shadow:N"`.
    """

    step: int
    length: int
    stall_s: float
    copied: int = 0
    aside: int = 0
    compared_s: float = 0.0
    early: int = 0


@dataclass(frozen=True)
class Limits:
    """Limits of the cost of a fork to a rank, and the time of its preparation.

    Attributes:
        prepare: one of `PREPARES`.
        aside: largest number of bytes that are copied before a step; None: the result of `aside_length`.
        stall_s: longest time of that copy, in seconds.

    Raises:
        ValueError: one of them is invalid.
    """

    prepare: str = "start"
    aside: int | None = None
    stall_s: float = 0.25

    def __post_init__(self) -> None:
        if self.prepare not in PREPARES:
            raise ValueError(f"prepare={self.prepare!r}: write one of {', '.join(map(repr, PREPARES))}")
        if self.aside is not None and (type(self.aside) is not int or self.aside < 0):
            raise ValueError(f"aside={self.aside!r}: write a number of bytes, such as {64 << 20}, or None")
        if not isinstance(self.stall_s, int | float) or not 0 <= self.stall_s <= STALL_MAX_S:
            raise ValueError(f"stall_s={self.stall_s!r}: write a number of seconds from 0 to {STALL_MAX_S:g}")


@dataclass(frozen=True)
class _Prepared:
    """Resources prepared while training goes on.

    Memory for the copy at the point, the copy-on-write buffer, the job's secret.
    """

    copy: _core.Reserved
    aside: _core.Shared | None
    secret: tuple[str, bytes]


class ForkSource:
    """One rank of a job that can be forked, until it is closed."""

    def __init__(
        self, job: str, inventory: Inventory, limits: Limits, shadow: int = 0, arenas: Sequence[Arena] = (), agent: str | None = None
    ) -> None:
        """Makes the rank known to the node's fork agent, which is started if there is none.

        Args:
            job: name of the job.
            inventory: inventory of its state.
            limits: limits of the cost of a fork.
            shadow: steps of shadow verification, unless `forebay clone` sets another number.
            arenas: shared memory that holds some of its tensors already.
            agent: directory of the node's fork agent, if it is known.

        Raises:
            CloneError: the agent could not be reached or refused, with the reason and the mend.
        """
        self._job, self._inventory = job, inventory
        self._limits, self._shadow = limits, shadow
        self._machine: SourceMachine[ReadLease, _core.Shared, ThreadResult[_Prepared], ThreadResult[_core.Rank]] = SourceMachine()
        self._storage = Storage(inventory.adapter, arenas if limits.prepare != "never" else ())
        self._tensors = SharedTensors(inventory, self._storage)
        self._process = os.getpid()
        self._aside_used_at = 0.0
        self._length = 0
        # Set when a frozen state was published, or could not be.
        self._publishing: list[threading.Event] = []
        self._lefts: deque[int] = deque([0], LOOKS_KEPT)
        self._looked_at = time.monotonic()
        self._pointed_at = deque([self._looked_at], STEPS_MEANT + 1)
        self._rank = _join(job, *inventory.rank, shadow, rejoins=False, agent=agent)

    def point(self, epoch: int, step: int) -> Fork | None:
        """Handles a step boundary. Returns the fork, if there was one.

        Raises:
            CloneError: the state could not be taken; the clone has been told.
            ConnectionError: the fork agent has ended, and the next one refuses this job.
        """
        machine = self._machine
        now = time.monotonic()
        for action in machine.point(is_time=now - self._looked_at > LOOK_EVERY_S):
            self._begin_point(action, epoch, step)
            now = time.monotonic()
        self._pointed_at.append(now)
        ahead = self._steps_ahead()
        sight = machine.sight(ahead)
        due, is_awaited, near = self._rank.due(machine.points, step, ahead, sight)
        actions = machine.requested(due, near)
        fork = self._act(actions, epoch, step, sight, is_awaited=is_awaited)
        # The fork is announced by now, so that a second look, one point ahead, changes nothing.
        if self._inventory.early and near is not None and self._rank.due(machine.points, step)[2] is not None:
            self._inventory.early.begin()
        return fork

    def _act(self, actions: Iterable[SourceAction], epoch: int, step: int, sight: int, *, is_awaited: bool) -> Fork | None:
        """Takes the state, or carries other actions out."""
        early = self._inventory.early.end() if self._inventory.early else 0
        if SourceAction.TAKE in actions:
            # Until the temporary objects are gone: their number alone would start the garbage collector.
            with uncollected():
                if self._inventory.freezes:
                    return self._take_frozen(epoch, step, sight, early)
                return self._take(epoch, step, sight, self._read_there(is_awaited=is_awaited))
        if self._inventory.early:
            # Of a step whose fork was withdrawn.
            self._inventory.early.take()
        self._carry_out(actions, sight=sight)
        return None

    def _begin_point(self, action: SourceAction, epoch: int, step: int) -> None:
        if action is SourceAction.CHECK_JOINING:
            self._check_joining()
        elif action is SourceAction.CHECK_AGENT:
            self._check_agent()
        else:
            # Only now is the state complete: optimizers make theirs with the first step.
            self._lefts.append(_core.memory_left())
            if self._limits.prepare == "start":
                self._share()
            self._length = self._inventory.length()
            # `_check_agent` finds an agent that has ended. A new one, if it runs already, has removed the secret.
            with contextlib.suppress(ConnectionError, FileNotFoundError):
                self._measure(epoch, step)

    def _carry_out(self, actions: Iterable[SourceAction], why: str = "", sight: int = 1, then: Callable[[], object] | None = None) -> None:
        """Carries out actions of the machine.

        Args:
            actions: actions, in their order.
            why: reason for `WITHHOLD`.
            sight: boundaries that the rank looks ahead, for `PREPARE`.
            then: runs in the thread of the preparation after `RELEASE`, or in a new one.
        """
        for action in actions:
            if action is SourceAction.INVALIDATE:
                # Most often no clone has it.
                self._machine.end().tear()
            elif action is SourceAction.WITHHOLD:
                self._withhold(self._machine.aborted, why)
            elif action is SourceAction.PREPARE:
                self._prepare(sight)
            elif action is SourceAction.RELEASE:
                self._release(then)

    def _prepare(self, sight: int) -> None:
        """Begins to prepare memory for an upcoming fork."""
        began = time.perf_counter()
        self._share()
        storage = self._read_there(is_awaited=bool(self._machine.near))
        copied = max(self._length - (storage.held_bytes if storage else 0), 0)
        length = copied + copied // LENGTH_SPARE_PART + LENGTH_SPARE_BYTES
        preparation = ThreadResult(lambda: self._room(length, storage), goes_on=True)
        self._machine.prepares(preparation, sight, time.perf_counter() - began)

    def _read_there(self, *, is_awaited: bool) -> Storage | None:
        """Returns the storage if a clone waits; else nobody would read during the lease."""
        return self._storage if is_awaited else None

    @property
    def _left(self) -> int:
        """Free memory in bytes before any rank took its share for an upcoming fork."""
        return max(self._lefts)

    def _steps_ahead(self) -> int:
        """Returns the number of steps that preparing memory for the copy at a point takes."""
        ready_s = min((self._length - self._storage.held_bytes) / READY_BYTES_PER_S, READY_MAX_S)
        if ready_s < STEP_LEAST_S:
            return 1
        step_s = (self._pointed_at[-1] - self._pointed_at[0]) / (len(self._pointed_at) - 1)
        return 1 + int(ready_s / max(step_s, STEP_LEAST_S))

    def repeat(self, epoch: int, step: int) -> tuple[set[int], float] | None:
        """Sends the digests that shadow verification of earlier clones needs, after each `point`.

        Returns:
            The steps of their forks, and the seconds for which training stood still; None if there are no such clones.

        Raises:
            CloneError: the state can't be described; the clones have been told.
        """
        due = self._machine.repeated()
        # Without the agent there is no clone.
        if not due or not self._rank.is_served():
            return None
        began = time.perf_counter()
        forks = [number for number, _ in due]
        header = StateHeader(self._job, self._inventory.rank[0], epoch, step)
        with contextlib.suppress(ConnectionError):
            try:
                with described(self._secret(), header, self._inventory.manifest()) as text:
                    self._rank.repeated(forks, text)
            except ConnectionError:
                raise
            except BaseException as error:
                self._withhold(forks, _reason(error))
                if is_the_program_s(error):
                    raise
                raise CloneError(f"nothing to compare clones with: {error}") from error
        return {forked for _, forked in due}, time.perf_counter() - began

    @property
    def is_leased(self) -> bool:
        """True while clones may read tensors in place."""
        # In a forked process neither lease nor tensors are its own.
        return self._machine.lease is not None and os.getpid() == self._process

    def before_step(self, tensors: Callable[[], Changing] | None = None) -> tuple[float, int] | None:
        """Copies the bytes that clones have not read, or drops their forks, before the state changes.

        Args:
            tensors: returns the tensors that change, and those that stay; None: all may change.

        Returns:
            The seconds for which training stood still, and the bytes copied, with the lease's end; None if there was
            no lease, or it goes on.
        """
        if not self.is_leased:
            return None
        if tensors is not None and self._machine.lease is not None and self._machine.lease.close_some(*tensors(), self._limits.stall_s):
            return None
        began = time.perf_counter()
        self._machine.before_step()
        lease = self._machine.end()
        copied, dropped, why = lease.close(self._limits.stall_s)
        if lease.changed:
            self._storage.change(lease.changed)
        self._carry_out(self._machine.closed(lease.aside, copied, dropped), why)
        if dropped:
            say(f"no fork at step {lease.step}: {why}", "refused")
        self._aside_used_at = time.monotonic()
        return time.perf_counter() - began + lease.closing_s, copied

    def _measure(self, epoch: int, step: int) -> None:
        """Sends the state's size, and the digests of entries that ranks should hold alike, to find differences early.

        Later forks read large tensors in place, and have no digests of them before their clones have read them.
        """
        rank, ranks = self._inventory.rank
        if ranks == 1 or self._limits.prepare != "start":
            self._rank.measured(self._length)
            return
        manifest = self._inventory.manifest(alike=True)
        with described(self._secret(), StateHeader(self._job, rank, epoch, step), manifest) as text:
            self._rank.measured(self._length, text)

    def _share(self) -> None:
        """Moves large tensors into shared memory, and publishes it for waiting clones."""
        if self._limits.prepare != "never":
            self._tensors.share(self._left)
            self._tensors.publish(self._publish)

    def _publish(self, memory: Sequence[_core.Shared]) -> None:
        header = StateHeader(self._job, self._inventory.rank[0], 0, 0)
        with described_schema(self._secret(), header, self._inventory.outline(self._storage)) as text:
            self._rank.lying(text, [one.descriptor for one in memory])

    def _check_agent(self) -> None:
        """Measures free memory, and begins to join the next fork agent if this one has ended."""
        machine = self._machine
        self._looked_at = time.monotonic()
        if machine.preparation is None:
            self._lefts.append(_core.memory_left())
            if self._looked_at - self._aside_used_at > ASIDE_KEPT_S:
                machine.buffer = None
        if not self._rank.is_served():
            job, (rank, ranks), shadow = self._job, self._inventory.rank, self._shadow
            machine.agent_ended(ThreadResult(lambda: _join(job, rank, ranks, shadow, rejoins=True)))

    def _check_joining(self) -> None:
        """Goes on with the next fork agent, once it has answered."""
        self._looked_at = time.monotonic()
        joining = self._machine.joining
        if joining is None or not joining.is_there():
            return
        self._machine.joined()
        try:
            self._rank = joining.wait()
        except CloneError as error:
            raise ConnectionError(f"the agent for forks has ended, and the next one says: {error}") from error
        # This rank reads the page from now on. The agent waits until all ranks do: others may come steps later.
        self._rank.measured(self._length)
        self._tensors.forget_published()
        self._tensors.publish(self._publish)

    def _take(self, epoch: int, step: int, sight: int, storage: Storage | None) -> Fork:
        machine = self._machine
        began, begun_s = time.perf_counter(), machine.begun_s
        forks = [number for number, _ in machine.taking]
        try:
            made = machine.preparation.wait() if machine.preparation else None
            with self._inventory.capture(self._memory(made), storage) as capture:
                # From here on the lease is closed before anything changes, even if publishing fails.
                lease = self._open(capture, storage, forks, step)
                machine.leased(lease)
                self._offer(capture, made, forks, epoch, step, lease.descriptors if lease else ())
                watching = lease.watching() if lease else None
                copied, self._length = capture.manifest.length, capture.manifest.state_length
        except BaseException as error:
            # Without the agent there is no clone: `_check_agent` finds the next agent.
            self._carry_out(machine.failed(is_agent_lost=isinstance(error, ConnectionError)), _reason(error))
            if is_the_program_s(error):
                raise
            raise CloneError(str(error)) from error
        fork = Fork(step, self._length, time.perf_counter() - began + begun_s, copied)
        self._carry_out(machine.taken(step), sight=sight, then=watching)
        return fork

    def _take_frozen(self, epoch: int, step: int, sight: int, early: int) -> Fork:
        """Freezes the state. The thread of the preparation copies and publishes it while training goes on."""
        machine = self._machine
        began = time.perf_counter()
        forks = [number for number, _ in machine.taking]
        try:
            frozen = self._inventory.frozen()
            if machine.preparation is None:
                self._prepare(sight)
        except BaseException as error:
            self._carry_out(machine.failed(is_agent_lost=False), _reason(error))
            if is_the_program_s(error):
                raise
            raise CloneError(str(error)) from error
        preparation, begun_s = machine.preparation, machine.begun_s
        done = threading.Event()
        self._publishing = [*(one for one in self._publishing if not one.is_set()), done]

        def publish() -> None:
            try:
                made = preparation.wait() if preparation else None
                with frozen.capture(self._memory(made)) as capture:
                    self._offer(capture, made, forks, epoch, step)
                    self._length = capture.manifest.length
            except ConnectionError:
                # Without the agent there is no clone: `_check_agent` finds the next agent.
                pass
            except Exception as error:
                self._withhold(forks, _reason(error))
                say(f"no fork at step {step}: {error}", "refused")
            finally:
                done.set()

        fork = Fork(step, self._length, time.perf_counter() - began + begun_s, early=early)
        self._carry_out(machine.taken(step), sight=sight, then=publish)
        return fork

    def _offer(
        self, capture: Capture, made: _Prepared | None, forks: list[int], epoch: int, step: int, descriptors: Sequence[int] = ()
    ) -> None:
        """Publishes a captured state, with the descriptors of its read lease."""
        header = StateHeader(self._job, self._inventory.rank[0], epoch, step)
        # This rank may have joined another agent since.
        path, secret = made.secret if made else ("", b"")
        secret = secret if path == self._rank.secret else self._secret()
        with described(secret, header, capture.manifest) as text:
            self._rank.offer(forks, epoch, step, [text, capture.descriptor, *descriptors])

    def _withhold(self, forks: list[int], why: str) -> None:
        with contextlib.suppress(ConnectionError):
            self._rank.withhold(forks, why)

    def _release(self, then: Callable[[], object] | None = None) -> None:
        """Ends the preparation, used or not, and runs `then` in its thread, or in a new one."""
        preparation = self._machine.release()
        if self._inventory.early:
            self._inventory.early.use(None)
        if preparation is not None:
            preparation.go_on(then)
        elif then is not None:
            # Without a thread the next step confirms the reads.
            with contextlib.suppress(RuntimeError):
                ThreadResult(then)

    def _open(self, capture: Capture, storage: Storage | None, forks: list[int], step: int) -> ReadLease | None:
        """Opens a read lease on the tensors that were not copied, if there are any."""
        if storage is None or not capture.in_place:
            return None
        buffer = self._machine.buffer or self._new_aside(storage)
        return ReadLease(self._inventory.adapter, capture, storage, buffer, forks, step)

    def _memory(self, made: _Prepared | None) -> Callable[[int], _core.Reserved]:
        """Returns an allocator for the copy: it uses the prepared memory if that is large enough."""
        if made is not None and made.aside is not None:
            self._machine.buffer = made.aside

        def memory(length: int) -> _core.Reserved:
            if made is not None and made.copy.length >= length:
                return made.copy
            if made is not None:
                made.copy.close()
            return reserve(length, self._inventory.ranks_here, self._left)

        return memory

    def _room(self, length: int, storage: Storage | None) -> _Prepared:
        """Prepares the memory of a fork; runs in a thread of its own."""
        copy = reserve(length, self._inventory.ranks_here, self._left)
        if self._inventory.early:
            self._inventory.early.use(copy)
        aside = self._new_aside(storage) if storage is not None and storage.arenas and self._machine.buffer is None else None
        path = self._rank.secret
        return _Prepared(copy, aside, (path, Path(path).read_bytes()))

    def _new_aside(self, storage: Storage) -> _core.Shared:
        # An empty mapping is impossible; one byte holds no piece.
        length = max(aside_length(storage.length, self._limits.aside), 1)
        return shared(length, self._inventory.ranks_here, self._left, "the copy-on-write buffer")

    def _secret(self) -> bytes:
        # Read each time: it is not kept in the memory of a process whose core files are the user's.
        return Path(self._rank.secret).read_bytes()

    def close(self) -> None:
        """Ends forking of this rank. A published state stays: bytes that a clone has not read are copied for it."""
        try:
            self.before_step()
            for done in self._publishing:
                done.wait(PUBLISHED_WAIT_S)
        finally:
            self._release()
            # Deleting the object closes its connection, which tells the agent.
            del self._rank


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:REASON_MAX]


def _join(job: str, rank: int, ranks: int, shadow: int, *, rejoins: bool, agent: str | None = None) -> _core.Rank:
    """Registers a rank with the node's fork agent.

    Args:
        job: name of the job.
        rank: number of the rank.
        ranks: number of ranks.
        shadow: default steps of shadow verification.
        rejoins: true for a rank that trains already, and reads the new page once it has sent `measured`.
        agent: directory of the fork agent, if known. Starting one takes longer than all else.

    Raises:
        RefusedError: the agent refuses the job.
        CloneError: the agent can't be reached, with the reason and the mend.
    """
    # The agent's message is complete: a second traceback above it would only hide it.
    left, deadline = START_TRIES, time.monotonic() + TAKEN_WAIT_S
    while True:
        try:
            return _core.Rank(agent or _agent(), job, rank, ranks, rejoins, shadow)
        except _core.AgentRefusedError as error:
            if error.kind != "taken" or time.monotonic() > deadline:
                raise RefusedError(str(error)) from None
            time.sleep(TAKEN_PAUSE_S)
        except TimeoutError as error:
            # An agent that runs and does not answer will not answer a second time.
            raise CloneError(str(error)) from None
        except ConnectionError as error:
            left, agent = left - 1, None
            if left == 0:
                raise CloneError(str(error)) from None


def _agent() -> str:
    """Returns the directory of the node's fork agent, which is started if none runs."""
    try:
        return _core.start_fork_agent(forebay.command())
    except ValueError as error:
        raise CloneError(str(error)) from None
