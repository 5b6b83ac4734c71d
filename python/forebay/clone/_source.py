"""A rank of a job that can be forked: what it does at a point, which is a look into shared memory as long as nobody wants a fork."""

import contextlib
import operator
import os
import subprocess
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
from forebay.clone._errors import CloneError, RefusedError
from forebay.clone._filling import some
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import Inventory
from forebay.clone._later import Later, uncollected
from forebay.clone._manifest import Section
from forebay.clone._offer import Header, described, outlined
from forebay.clone._shared import Arena, Storage, shared
from forebay.clone._window import Window, aside_length

__all__ = ["REASON_MAX", "Fork", "Limits", "Source"]

PREPARES = ("start", "fork", "never")
"""When large tensors are moved into shared memory: at the first point, when a fork is near, or never, and all is copied at the point."""
STALL_MAX_S = 3600.0
ASIDE_KEPT_S = 60.0
"""For so long memory for what is copied aside stays after a fork that did not need it."""

LOOK_EVERY_S = 5.0
"""How often a rank looks whether the fork agent still stands."""
LOOKS_KEPT = 8
"""Of so many looks it knows what memory was left: at the last ones other ranks may have taken theirs for a fork."""
LENGTH_SPARE_BYTES, LENGTH_SPARE_PART = 64 << 10, 16
"""By so many bytes, and one in so many, what is copied may grow before a new measure: counters become longer, a scheduler remembers more.

What is made ready and not used is given back while training stands still.
"""
READY_BYTES_PER_S = 1e9
"""At least so fast memory for a copy is made ready, there and touched: machines that we know of take 0.2 to 0.5 s a gigabyte."""
READY_MAX_S = 30.0
"""For so long a fork is put off at most until there is memory for it: its clone waits."""
STEPS_MEANT = 64
"""So many steps a mean is of. One alone may be a launch on a GPU, without the work, or an evaluation; and none lasts less than this:"""
STEP_LEAST_S = 1e-3
REASON_MAX = 2000
"""Characters of a reason that is sent to others."""
START_TRIES = 3
"""An agent that is just ending, since nobody needed it, may be met; the next one is not."""
TAKEN_WAIT_S = 10.0
"""A job that was killed and is started again meets its own name, until its loaders' workers notice that they are orphans."""
TAKEN_PAUSE_S = 0.5


@dataclass(frozen=True)
class Fork:
    """A state that was taken of this rank.

    Attributes:
        step: after which, as the job counts.
        length: bytes.
        stall_s: for how long training stood still, in seconds: at the point, before the next step, and when it was made ready for.
        copied: bytes that were copied at the point; the clones read the others where they lie.
        aside: bytes of the others that were copied before the next step, since a clone had not read them.
        compared_s: for how long training stood still, some steps later, to digest the state for a clone with `verify="shadow:N"`.
    """

    step: int
    length: int
    stall_s: float
    copied: int = 0
    aside: int = 0
    compared_s: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What a fork may cost a rank at most, and when it makes ready.

    Attributes:
        prepare: one of `PREPARES`.
        aside: bytes that are copied aside before a step; None: as many as `aside_length` says.
        stall_s: for how many seconds they are copied.

    Raises:
        ValueError: one of them makes no sense.
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
class _Room:
    """What is made ready while training goes on: memory for what is copied at the point, and before the next step; the job's secret."""

    copy: _core.Reserved
    aside: _core.Shared | None
    secret: tuple[str, bytes]


class Source:
    """One rank of a job that can be forked, until it is closed."""

    def __init__(
        self, job: str, inventory: Inventory, limits: Limits, shadow: int = 0, arenas: Sequence[Arena] = (), agent: str | None = None
    ) -> None:
        """Makes the rank known to the node's fork agent, which is started if there is none.

        Args:
            job: its name.
            inventory: of its state.
            limits: what a fork may cost.
            shadow: so many steps its clones take on probation, unless `forebay clone` says otherwise.
            arenas: shared memory in which some of its tensors lie already.
            agent: the directory of the node's fork agent, if it is known.

        Raises:
            CloneError: that can't be, with the reason and the mend.
        """
        self._job, self._inventory = job, inventory
        self._limits, self._shadow = limits, shadow
        # By the number of the point at which they are due: forks, each with its step.
        self._repeats: dict[int, list[tuple[int, int]]] = {}
        self._storage = Storage(inventory.adapter, arenas if limits.prepare != "never" else ())
        self._shared: tuple[list[Section], int] | None = None
        self._lying: list[weakref.ref[_core.Shared]] = []
        # What was shared when clones were last told what they will get.
        self._outlined: tuple[list[Section], int] | None = None
        self._told: set[str] = set()
        self._process = os.getpid()
        self._window: Window | None = None
        self._aside: _core.Shared | None = None
        self._aside_used_at = 0.0
        self._points = 0
        self._length = 0
        self._lefts: deque[int] = deque([0], LOOKS_KEPT)
        self._ahead: Later[_Room] | None = None
        self._begun_sight = 1
        self._begun_s = 0.0
        self._joining: Later[_core.Rank] | None = None
        self._looked_at = time.monotonic()
        self._pointed_at = deque([self._looked_at], STEPS_MEANT + 1)
        self._rank = _join(job, *inventory.rank, shadow, rejoins=False, agent=agent)

    def point(self, epoch: int, step: int) -> Fork | None:
        """At the end of a step. Gives the fork, if there was one.

        Raises:
            CloneError: the state could not be taken, as the clone has been told.
            ConnectionError: the fork agent is gone, and the next one will not have this job.
        """
        self._points += 1
        if self._points == 1:
            # Only now is all of it there: optimizers make their state with the first step.
            self._lefts.append(_core.memory_left())
            if self._limits.prepare == "start":
                self._share()
            self._length = self._inventory.length()
            # Of an agent that has ended by now `_look` hears. The next one, if it stands already, has taken the secret away.
            with contextlib.suppress(ConnectionError, FileNotFoundError):
                self._measure(epoch, step)
        now = time.monotonic()
        if self._joining is not None or now - self._looked_at > LOOK_EVERY_S:
            self._look()
        self._pointed_at.append(now)
        # What was begun for a fork stays until that comes, also if the steps take longer meanwhile.
        ahead = self._steps_ahead()
        sight = max(ahead, self._begun_sight)
        due, is_awaited, near = self._rank.due(self._points, step, ahead, sight)
        fork = None
        if due:
            # Until what was made for it is gone: by its mere number it would have all objects looked through.
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
            self._ahead = Later(lambda: self._room(length, storage), goes_on=True)
            self._begun_sight, self._begun_s = sight, time.perf_counter() - began
        return fork

    def _read_there(self, *, is_awaited: bool) -> Storage | None:
        """Where no clone waits yet, nobody would read in the window."""
        return self._storage if is_awaited else None

    @property
    def _left(self) -> int:
        """What memory was left before any rank took some for a fork that is near."""
        return max(self._lefts)

    def _steps_ahead(self) -> int:
        """So many steps it takes until there is memory for what is copied at a point."""
        ready_s = min((self._length - self._storage.lying) / READY_BYTES_PER_S, READY_MAX_S)
        if ready_s < STEP_LEAST_S:
            return 1
        step_s = (self._pointed_at[-1] - self._pointed_at[0]) / (len(self._pointed_at) - 1)
        return 1 + int(ready_s / max(step_s, STEP_LEAST_S))

    def repeat(self, epoch: int, step: int) -> tuple[set[int], float] | None:
        """After each `point`: says what there is by now, for clones on probation that were forked some steps before.

        Returns:
            After which steps they were forked, and for how many seconds training stood still; None if there are none.

        Raises:
            CloneError: the state can't be described, as the clones have been told.
        """
        due = self._repeats.pop(self._points, None)
        # Without the agent there is no clone.
        if due is None or not self._rank.is_served():
            return None
        began = time.perf_counter()
        forks = [number for number, _ in due]
        header = Header(self._job, self._inventory.rank[0], epoch, step)
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
        """Before anything of the last state changes: what its clones have not read is copied aside, or its forks are dropped.

        Returns:
            For how many seconds training stood still, and how many bytes were copied; None if nobody read.
        """
        # In a process that was forked from the program neither window nor tensors are its own.
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
            # Nobody looks there: the next fork's may go to the same place.
            self._aside, self._aside_used_at = window.aside, time.monotonic()
        return time.perf_counter() - began, copied

    def _measure(self, epoch: int, step: int) -> None:
        """Says how large the state is; and what ranks should hold alike, so that those that do not are found before anybody forks them.

        Later forks read large tensors in their place, and know of them only what their clones have read.
        """
        rank, ranks = self._inventory.rank
        if ranks == 1 or self._limits.prepare != "start":
            self._rank.measured(self._length)
            return
        manifest = self._inventory.manifest(alike=True)
        with described(self._secret(), Header(self._job, rank, epoch, step), manifest) as text:
            self._rank.measured(self._length, text)

    def _share(self) -> None:
        """Has large tensors lie in shared memory. Which of them can't is said once."""
        if self._limits.prepare == "never":
            return
        try:
            if self._is_shared() and self._inventory.steady_lie_still() and not self._storage.could_share_more():
                self._tell_lying()
                return
            left = self._storage.share(self._inventory.steady(), self._inventory.rank[1], self._left)
            # What was moved lies elsewhere now.
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
        self._tell_lying()

    def _is_shared(self) -> bool:
        """Whether all was as it had been moved when it was described last, at the fork before.

        What has been added since is seen at this fork, copied at the point, and moved before the next. By identity: training stands still.
        """
        sections = self._inventory.last_steady_sections()
        if self._shared is None:
            return False
        last, version = self._shared
        return version == self._storage.version and len(last) == len(sections) and all(map(operator.is_, last, sections))

    def _tell_lying(self) -> None:
        """Has clones that will wait know what they will get, and where they will read, if that is news. Without the agent nobody does."""
        lying = [arena.memory for arena in self._storage.arenas]
        if self._outlined is self._shared and [memory() for memory in self._lying] == lying:
            return
        header = Header(self._job, self._inventory.rank[0], 0, 0)
        # Clones can do without: an agent that has ended has taken the secret away, or there is no memory for so many lines.
        with contextlib.suppress(CloneError, OSError):
            with outlined(self._secret(), header, self._inventory.outline(self._storage)) as text:
                self._rank.lying(text, [memory.descriptor for memory in lying])
            self._outlined, self._lying = self._shared, [weakref.ref(memory) for memory in lying]

    def _look(self) -> None:
        """Notes how much memory is left, and joins the next fork agent if this one has ended, without waiting for it."""
        self._looked_at = time.monotonic()
        if self._joining is not None:
            if not self._joining.is_there():
                return
            joining, self._joining = self._joining, None
            try:
                self._rank = joining.wait()
            except CloneError as error:
                raise ConnectionError(f"the agent for forks has ended, and the next one says: {error}") from error
            # Nobody is left of the forks that the one before had.
            self._repeats.clear()
            # From this point on its page is looked at. The agent waits until all ranks do so: others may come to it steps later.
            self._rank.measured(self._length)
            self._lying, self._outlined = [], None
            self._tell_lying()
            return
        if self._ahead is None:
            self._lefts.append(_core.memory_left())
            if self._looked_at - self._aside_used_at > ASIDE_KEPT_S:
                self._aside = None
        if not self._rank.is_served():
            job, (rank, ranks), shadow = self._job, self._inventory.rank, self._shadow
            self._joining = Later(lambda: _join(job, rank, ranks, shadow, rejoins=True))

    def _offer(self, forks: list[int], epoch: int, step: int, storage: Storage | None) -> Fork:
        began, begun_s = time.perf_counter(), self._begun_s
        watching = None
        try:
            made = self._ahead.wait() if self._ahead else None
            with self._inventory.capture(self._memory(made), storage) as capture:
                header = Header(self._job, self._inventory.rank[0], epoch, step)
                # From here on it is closed before anything changes, whatever becomes of the offer.
                self._window = window = self._open(capture, storage, forks, step)
                # It may have joined another agent since.
                path, secret = made.secret if made else ("", b"")
                secret = secret if path == self._rank.secret else self._secret()
                with described(secret, header, capture.manifest) as text:
                    self._rank.offer(forks, epoch, step, [text, capture.descriptor, *(window.descriptors if window else ())])
                watching = window.watching() if window else None
                copied, self._length = capture.manifest.length, capture.manifest.state_length
        except BaseException as error:
            window, self._window = self._window, None
            if window is not None:
                # Most often nobody has it.
                window.tear()
            # Without the agent there is no clone: `_look` finds the next one.
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
        """What was made ready was used, or will not be; its thread, or another, does this now."""
        ahead, self._ahead, self._begun_sight, self._begun_s = self._ahead, None, 1, 0.0
        if ahead is not None:
            ahead.go_on(then)
        elif then is not None:
            # Without a thread it is said by the next step.
            with contextlib.suppress(RuntimeError):
                Later(then)

    def _open(self, capture: Capture, storage: Storage | None, forks: list[int], step: int) -> Window | None:
        """A window on what was not copied, if there is any."""
        if storage is None or not capture.in_place:
            return None
        aside, self._aside = self._aside or self._new_aside(storage), None
        return Window(self._inventory.adapter, capture, storage, aside, forks, step)

    def _memory(self, made: _Room | None) -> Callable[[int], _core.Reserved]:
        """Gives memory for what is copied: that which was made ready, if it is large enough."""
        if made is not None and made.aside is not None:
            self._aside = made.aside

        def memory(length: int) -> _core.Reserved:
            if made is not None and made.copy.length >= length:
                return made.copy
            if made is not None:
                made.copy.close()
            return reserve(length, self._inventory.rank[1], self._left)

        return memory

    def _room(self, length: int, storage: Storage | None) -> _Room:
        """Memory for a fork, in a thread of its own."""
        copy = reserve(length, self._inventory.rank[1], self._left)
        aside = self._new_aside(storage) if storage is not None and storage.arenas and self._aside is None else None
        path = self._rank.secret
        return _Room(copy, aside, (path, Path(path).read_bytes()))

    def _new_aside(self, storage: Storage) -> _core.Shared:
        # Memory of no bytes can't be had; one byte takes no piece.
        length = max(aside_length(storage.length, self._limits.aside), 1)
        return shared(length, self._inventory.rank[1], self._left, "what is copied aside,")

    def _secret(self) -> bytes:
        # Read each time: it is not kept in the memory of a process whose core files are the user's.
        return Path(self._rank.secret).read_bytes()

    def close(self) -> None:
        """From now on the rank can't be forked. What was taken stays: a clone that has not read all of it finds it aside."""
        try:
            self.before_step()
        finally:
            self._use_ahead()
            # The object's end closes its connection, which is all that the agent has to know.
            del self._rank


def _join(job: str, rank: int, ranks: int, shadow: int, *, rejoins: bool, agent: str | None = None) -> _core.Rank:
    """Makes a rank known to the node's fork agent. One that rejoins trains already, and looks at the new page once it says so (`measured`).

    Args:
        job: see `Source`.
        rank: its number.
        ranks: how many there are.
        shadow: see `Source`.
        rejoins: see above.
        agent: see `Source`. To ask the command takes longer than all else.

    Raises:
        RefusedError: the agent does not take it on.
        CloneError: that can't be, with the reason and the mend.
    """
    # What the agent says is all there is to be said: a second traceback above it would only hide it.
    left, deadline = START_TRIES, time.monotonic() + TAKEN_WAIT_S
    while True:
        try:
            return _core.Rank(agent or _agent(), job, rank, ranks, rejoins, shadow)
        except _core.AgentRefusedError as error:
            if error.kind != "taken" or time.monotonic() > deadline:
                raise RefusedError(str(error)) from None
            time.sleep(TAKEN_PAUSE_S)
        except TimeoutError as error:
            # One that stands and says nothing will not say more when it is asked again.
            raise CloneError(str(error)) from None
        except ConnectionError as error:
            left, agent = left - 1, None
            if left == 0:
                raise CloneError(str(error)) from None


def _agent() -> str:
    """The directory of the node's fork agent, which stands then. The command knows where that is."""
    asked = subprocess.run([str(forebay.command()), "fork-agent"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise CloneError(asked.stderr.strip().removeprefix("forebay: "))
    return asked.stdout.removesuffix("\n")
