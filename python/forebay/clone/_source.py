"""A rank of a job that can be forked.

A step boundary costs one read of shared memory as long as no fork is requested.
"""

import contextlib
import operator
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import forebay
from forebay import _core
from forebay._say import say
from forebay.clone._capture import Capture, reserve
from forebay.clone._description import StateHeader, described, described_schema
from forebay.clone._errors import CloneError, RefusedError
from forebay.clone._filling import some
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import Inventory
from forebay.clone._later import ThreadResult, uncollected
from forebay.clone._manifest import Section
from forebay.clone._read_lease import ReadLease, aside_length
from forebay.clone._shared import Arena, Storage, shared

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


@dataclass(frozen=True)
class Fork:
    """A state of this rank that was published to clones.

    Attributes:
        step: step after which it was taken, as the job counts.
        length: bytes.
        stall_s: seconds for which training stood still: at the point, before the next step, and for the preparation.
        copied: bytes that were copied at the point; the clones read all others in the job's own memory.
        aside: bytes that were copied before the next step, since a clone had not read them.
        compared_s: seconds for which training stood still, some steps later, to digest the state for a clone with
            `verify="shadow:N"`.
    """

    step: int
    length: int
    stall_s: float
    copied: int = 0
    aside: int = 0
    compared_s: float = 0.0


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
        # By the number of the step boundary at which digests are requested: forks, each with its step.
        self._repeats: dict[int, list[tuple[int, int]]] = {}
        self._storage = Storage(inventory.adapter, arenas if limits.prepare != "never" else ())
        self._shared: tuple[list[Section], int] | None = None
        self._lying: list[weakref.ref[_core.Shared]] = []
        # The shared tensors when the schema was last published.
        self._outlined: tuple[list[Section], int] | None = None
        self._told: set[str] = set()
        self._process = os.getpid()
        self._window: ReadLease | None = None
        self._aside: _core.Shared | None = None
        self._aside_used_at = 0.0
        self._points = 0
        self._length = 0
        self._lefts: deque[int] = deque([0], LOOKS_KEPT)
        self._ahead: ThreadResult[_Prepared] | None = None
        self._begun_sight = 1
        self._begun_s = 0.0
        self._joining: ThreadResult[_core.Rank] | None = None
        self._looked_at = time.monotonic()
        self._pointed_at = deque([self._looked_at], STEPS_MEANT + 1)
        self._rank = _join(job, *inventory.rank, shadow, rejoins=False, agent=agent)

    def point(self, epoch: int, step: int) -> Fork | None:
        """Handles a step boundary. Returns the fork, if there was one.

        Raises:
            CloneError: the state could not be taken; the clone has been told.
            ConnectionError: the fork agent has ended, and the next one refuses this job.
        """
        self._points += 1
        if self._points == 1:
            # Only now is the state complete: optimizers make theirs with the first step.
            self._lefts.append(_core.memory_left())
            if self._limits.prepare == "start":
                self._share()
            self._length = self._inventory.length()
            # `_look` finds an agent that has ended. A new one, if it runs already, has removed the secret.
            with contextlib.suppress(ConnectionError, FileNotFoundError):
                self._measure(epoch, step)
        now = time.monotonic()
        if self._joining is not None or now - self._looked_at > LOOK_EVERY_S:
            self._look()
        self._pointed_at.append(now)
        # A preparation that has begun is kept until the fork comes, even if the steps take longer meanwhile.
        ahead = self._steps_ahead()
        sight = max(ahead, self._begun_sight)
        due, is_awaited, near = self._rank.due(self._points, step, ahead, sight)
        fork = None
        if due:
            # Until the temporary objects are gone: their number alone would start the garbage collector.
            with uncollected():
                fork = self._offer([number for number, _ in due], epoch, step, self._read_there(is_awaited=is_awaited))
        for number, steps in due:
            if steps > 0:
                self._repeats.setdefault(self._points + steps, []).append((number, step))
        if near is None:
            self._use_ahead()
        elif self._ahead is None:
            began = time.perf_counter()
            self._share()
            storage = self._read_there(is_awaited=near)
            copied = max(self._length - (storage.lying if storage else 0), 0)
            length = copied + copied // LENGTH_SPARE_PART + LENGTH_SPARE_BYTES
            self._ahead = ThreadResult(lambda: self._room(length, storage), goes_on=True)
            self._begun_sight, self._begun_s = sight, time.perf_counter() - began
        return fork

    def _read_there(self, *, is_awaited: bool) -> Storage | None:
        """Returns the storage if a clone waits; else nobody would read during the lease."""
        return self._storage if is_awaited else None

    @property
    def _left(self) -> int:
        """Free memory in bytes before any rank took its share for an upcoming fork."""
        return max(self._lefts)

    def _steps_ahead(self) -> int:
        """Returns the number of steps that preparing memory for the copy at a point takes."""
        ready_s = min((self._length - self._storage.lying) / READY_BYTES_PER_S, READY_MAX_S)
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
        due = self._repeats.pop(self._points, None)
        # Without the agent there is no clone.
        if due is None or not self._rank.is_served():
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
                self._withhold(forks, error)
                if is_the_program_s(error):
                    raise
                raise CloneError(f"nothing to compare clones with: {error}") from error
        return {forked for _, forked in due}, time.perf_counter() - began

    def before_step(self) -> tuple[float, int] | None:
        """Copies the bytes that clones have not read, or drops their forks, before the state changes.

        Returns:
            The seconds for which training stood still, and the bytes copied; None if there was no read lease.
        """
        # In a forked process neither lease nor tensors are its own.
        if self._window is None or os.getpid() != self._process:
            return None
        began = time.perf_counter()
        window, self._window = self._window, None
        copied, dropped, why = window.close(self._limits.stall_s)
        if window.changed:
            self._storage.change(window.changed)
        if dropped:
            with contextlib.suppress(ConnectionError):
                self._rank.withhold(dropped, why)
            say(f"no fork at step {window.step}: {why}", "refused")
        if copied == 0:
            # No clone reads the buffer: the next fork can use it again.
            self._aside, self._aside_used_at = window.aside, time.monotonic()
        return time.perf_counter() - began, copied

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
        """Moves large tensors into shared memory, and reports once those that can't be moved."""
        if self._limits.prepare == "never":
            return
        try:
            if self._is_shared() and self._inventory.steady_unmoved() and not self._storage.could_share_more():
                self._publish_schema()
                return
            left = self._storage.share(self._inventory.steady(), self._inventory.rank[1], self._left)
            # Moved tensors have new addresses.
            self._shared = (self._inventory.steady_sections(), self._storage.version)
        except CloneError as error:
            left = {"all that are not there yet": str(error)}
        if self._inventory.rank[0] == 0 and (new := [path for path in left if path not in self._told]):
            by_reason: dict[str, list[str]] = {}
            for path in new:
                by_reason.setdefault(left[path], []).append(path)
            named = "; ".join(f"{some(paths)}: {why}" for why, paths in by_reason.items())
            say(f"a fork copies these tensors while training stands still, for they can't be in shared memory: {named}")
        self._told |= left.keys()
        self._publish_schema()

    def _is_shared(self) -> bool:
        """Returns whether the description at the last fork still had all tensors in shared memory.

        A tensor added since is seen at this fork, copied at the point, and moved before the next. Compares
        identities, for speed.
        """
        sections = self._inventory.last_steady_sections()
        if self._shared is None:
            return False
        last, version = self._shared
        return version == self._storage.version and len(last) == len(sections) and all(map(operator.is_, last, sections))

    def _publish_schema(self) -> None:
        """Publishes the schema of the state and its shared memory for waiting clones, if they have changed."""
        lying = [arena.memory for arena in self._storage.arenas]
        if self._outlined is self._shared and [memory() for memory in self._lying] == lying:
            return
        header = StateHeader(self._job, self._inventory.rank[0], 0, 0)
        # Clones can do without it: the secret is missing after the agent's end, or there is no memory for the lines.
        with contextlib.suppress(CloneError, OSError):
            with described_schema(self._secret(), header, self._inventory.outline(self._storage)) as text:
                self._rank.lying(text, [memory.descriptor for memory in lying])
            self._outlined, self._lying = self._shared, [weakref.ref(memory) for memory in lying]

    def _look(self) -> None:
        """Measures free memory, and joins the next fork agent if this one has ended, without waiting for it."""
        self._looked_at = time.monotonic()
        if self._joining is not None:
            if not self._joining.is_there():
                return
            joining, self._joining = self._joining, None
            try:
                self._rank = joining.wait()
            except CloneError as error:
                raise ConnectionError(f"the agent for forks has ended, and the next one says: {error}") from error
            # The forks of the agent before have ended with it.
            self._repeats.clear()
            # This rank reads the page from now on. The agent waits until all ranks do: others may come steps later.
            self._rank.measured(self._length)
            self._lying, self._outlined = [], None
            self._publish_schema()
            return
        if self._ahead is None:
            self._lefts.append(_core.memory_left())
            if self._looked_at - self._aside_used_at > ASIDE_KEPT_S:
                self._aside = None
        if not self._rank.is_served():
            job, (rank, ranks), shadow = self._job, self._inventory.rank, self._shadow
            self._joining = ThreadResult(lambda: _join(job, rank, ranks, shadow, rejoins=True))

    def _offer(self, forks: list[int], epoch: int, step: int, storage: Storage | None) -> Fork:
        began, begun_s = time.perf_counter(), self._begun_s
        watching = None
        try:
            made = self._ahead.wait() if self._ahead else None
            with self._inventory.capture(self._memory(made), storage) as capture:
                header = StateHeader(self._job, self._inventory.rank[0], epoch, step)
                # From here on the lease is closed before anything changes, even if publishing fails.
                self._window = window = self._open(capture, storage, forks, step)
                # This rank may have joined another agent since.
                path, secret = made.secret if made else ("", b"")
                secret = secret if path == self._rank.secret else self._secret()
                with described(secret, header, capture.manifest) as text:
                    self._rank.offer(forks, epoch, step, [text, capture.descriptor, *(window.descriptors if window else ())])
                watching = window.watching() if window else None
                copied, self._length = capture.manifest.length, capture.manifest.state_length
        except BaseException as error:
            window, self._window = self._window, None
            if window is not None:
                # Most often no clone has it.
                window.tear()
            # Without the agent there is no clone: `_look` finds the next agent.
            if not isinstance(error, ConnectionError):
                self._withhold(forks, error)
            if is_the_program_s(error):
                raise
            raise CloneError(str(error)) from error
        finally:
            self._use_ahead(watching)
        return Fork(step, self._length, time.perf_counter() - began + begun_s, copied)

    def _withhold(self, forks: list[int], error: BaseException) -> None:
        with contextlib.suppress(ConnectionError):
            self._rank.withhold(forks, (str(error) or type(error).__name__)[:REASON_MAX])

    def _use_ahead(self, then: Callable[[], object] | None = None) -> None:
        """Ends the preparation, used or not, and runs `then` in its thread, or in a new one."""
        ahead, self._ahead, self._begun_sight, self._begun_s = self._ahead, None, 1, 0.0
        if ahead is not None:
            ahead.go_on(then)
        elif then is not None:
            # Without a thread the next step confirms the reads.
            with contextlib.suppress(RuntimeError):
                ThreadResult(then)

    def _open(self, capture: Capture, storage: Storage | None, forks: list[int], step: int) -> ReadLease | None:
        """Opens a read lease on the tensors that were not copied, if there are any."""
        if storage is None or not capture.in_place:
            return None
        aside, self._aside = self._aside or self._new_aside(storage), None
        return ReadLease(self._inventory.adapter, capture, storage, aside, forks, step)

    def _memory(self, made: _Prepared | None) -> Callable[[int], _core.Reserved]:
        """Returns an allocator for the copy: it uses the prepared memory if that is large enough."""
        if made is not None and made.aside is not None:
            self._aside = made.aside

        def memory(length: int) -> _core.Reserved:
            if made is not None and made.copy.length >= length:
                return made.copy
            if made is not None:
                made.copy.close()
            return reserve(length, self._inventory.rank[1], self._left)

        return memory

    def _room(self, length: int, storage: Storage | None) -> _Prepared:
        """Prepares the memory of a fork; runs in a thread of its own."""
        copy = reserve(length, self._inventory.rank[1], self._left)
        aside = self._new_aside(storage) if storage is not None and storage.arenas and self._aside is None else None
        path = self._rank.secret
        return _Prepared(copy, aside, (path, Path(path).read_bytes()))

    def _new_aside(self, storage: Storage) -> _core.Shared:
        # An empty mapping is impossible; one byte holds no piece.
        length = max(aside_length(storage.length, self._limits.aside), 1)
        return shared(length, self._inventory.rank[1], self._left, "the copy-on-write buffer")

    def _secret(self) -> bytes:
        # Read each time: it is not kept in the memory of a process whose core files are the user's.
        return Path(self._rank.secret).read_bytes()

    def close(self) -> None:
        """Ends forking of this rank. A published state stays: bytes that a clone has not read are copied for it."""
        try:
            self.before_step()
        finally:
            self._use_ahead()
            # Deleting the object closes its connection, which tells the agent.
            del self._rank


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
