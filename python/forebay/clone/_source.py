"""A rank of a job that can be forked: what it does at a point, which is a look into shared memory as long as nobody wants a fork."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import forebay
from forebay import _core
from forebay.clone._capture import reserve
from forebay.clone._errors import CloneError
from forebay.clone._inventory import NAMED_MAX, Inventory
from forebay.clone._later import Later
from forebay.clone._offer import Header, described
from forebay.clone._shared import Storage

__all__ = ["PREPARES", "REASON_MAX", "Fork", "Source", "say"]

PREPARES = ("start", "fork")
"""When large tensors are moved into shared memory: at the first point, or when a fork is near."""

LOOK_EVERY_S = 5.0
"""How often a rank looks whether the fork agent still stands."""
LENGTH_SPARE_BYTES = 1 << 20
"""By so much a state may grow before a new measure: counters become longer, a scheduler remembers more."""
REASON_MAX = 2000
"""Characters of a reason that is sent to others."""
START_TRIES = 3
"""An agent that is just ending, since nobody needed it, may be met; the next one is not."""
TAKEN = " trains here already"
"""Of the agent's refusal of a name that another job has."""
TAKEN_WAIT_S = 10.0
"""A job that was killed and is started again meets its own name, until its loaders' workers notice that they are orphans."""
TAKEN_PAUSE_S = 0.5


@dataclass(frozen=True)
class Fork:
    """A state that was taken of this rank.

    Attributes:
        step: after which, as the job counts.
        length: bytes.
        stall_s: for how long training stood still, in seconds.
    """

    step: int
    length: int
    stall_s: float


def say(line: str) -> None:
    """One line on standard error, in one piece: the lines of several ranks do not mix. Where nobody listens, nothing happens."""
    with contextlib.suppress(OSError):
        os.write(2, f"forebay: {' '.join(line.splitlines())}\n".encode(errors="replace"))


class Source:
    """One rank of a job that can be forked, until it is closed."""

    def __init__(self, job: str, inventory: Inventory, prepare: str) -> None:
        """Makes the rank known to the node's fork agent, which is started if there is none.

        Args:
            job: its name.
            inventory: of its state.
            prepare: one of `PREPARES`.

        Raises:
            CloneError: that can't be, with the reason and the mend.
        """
        self._job, self._inventory = job, inventory
        self._prepare = prepare
        self._storage = Storage(inventory.adapter)
        self._told: set[str] = set()
        self._points = 0
        self._length = 0
        self._left = 0
        self._ahead: Later[_core.Reserved] | None = None
        self._joining: Later[_core.Rank] | None = None
        self._looked_at = time.monotonic()
        self._rank = _join(job, *inventory.rank, rejoins=False)

    def point(self, epoch: int, step: int) -> Fork | None:
        """At the end of a step. Gives the fork, if there was one.

        Raises:
            CloneError: the state could not be taken, as the clone has been told.
            ConnectionError: the fork agent is gone, and the next one will not have this job.
        """
        self._points += 1
        if self._points == 1:
            # Only now is all of it there: optimizers make their state with the first step.
            self._left = _core.memory_left()
            if self._prepare == "start":
                self._share()
            self._length = self._inventory.length()
            self._rank.measured(self._length)
        if self._joining is not None or time.monotonic() - self._looked_at > LOOK_EVERY_S:
            self._look()
        due, is_near = self._rank.due(self._points, step)
        if due:
            return self._offer(due, epoch, step)
        if not is_near:
            self._ahead = None
        elif self._ahead is None:
            self._share()
            length, ranks, left = self._length + LENGTH_SPARE_BYTES, self._inventory.rank[1], self._left
            self._ahead = Later(lambda: reserve(length, ranks, left))
        return None

    def _share(self) -> None:
        """Has large tensors lie in shared memory. Which of them can't is said once."""
        try:
            left = self._storage.share(self._inventory.steady(), self._left)
        except CloneError as error:
            left = {"all that are not there yet": str(error)}
        if self._inventory.rank[0] == 0 and (new := [path for path in left if path not in self._told]):
            named = "; ".join(f"{path}: {left[path]}" for path in new[:NAMED_MAX])
            more = f"; and {len(new) - NAMED_MAX} more" if len(new) > NAMED_MAX else ""
            say(f"a fork copies these tensors while training stands still, for they can't be in shared memory: {named}{more}")
        self._told |= left.keys()

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
            # From this point on its page is looked at. The agent waits until all ranks do so: others may come to it steps later.
            self._rank.measured(self._length)
            return
        if self._ahead is None:
            self._left = _core.memory_left()
        if not self._rank.is_served():
            job, (rank, ranks) = self._job, self._inventory.rank
            self._joining = Later(lambda: _join(job, rank, ranks, rejoins=True))

    def _offer(self, forks: list[int], epoch: int, step: int) -> Fork:
        began = time.perf_counter()
        try:
            header = Header(self._job, self._inventory.rank[0], epoch, step)
            with self._inventory.capture(self._memory) as capture, described(self._secret(), header, capture.manifest) as text:
                self._length = capture.manifest.length
                self._rank.offer(forks, epoch, step, capture.descriptor, text)
        except ConnectionError as error:
            # The agent is gone, and the clone with it: `_look` finds the next one.
            raise CloneError(str(error)) from error
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                self._rank.withhold(forks, str(error)[:REASON_MAX])
            raise CloneError(str(error)) from error
        return Fork(step, self._length, time.perf_counter() - began)

    def _memory(self, length: int) -> _core.Reserved:
        """Memory that was made ready, if it is large enough."""
        ahead, self._ahead = self._ahead, None
        made = ahead.wait() if ahead else None
        if made is not None and made.length >= length:
            return made
        if made is not None:
            made.close()
        return reserve(length, self._inventory.rank[1], self._left)

    def _secret(self) -> bytes:
        # Read each time: it is not kept in the memory of a process whose core files are the user's.
        return Path(self._rank.secret).read_bytes()

    def close(self) -> None:
        """From now on the rank can't be forked."""
        # The object's end closes its connection, which is all that the agent has to know.
        del self._rank


def _join(job: str, rank: int, ranks: int, *, rejoins: bool) -> _core.Rank:
    """Makes a rank known to the node's fork agent. One that rejoins trains already, and looks at the new page once it says so (`measured`).

    Raises:
        CloneError: that can't be, with the reason and the mend.
    """
    left, deadline = START_TRIES, time.monotonic() + TAKEN_WAIT_S
    while True:
        try:
            return _core.Rank(_agent(), job, rank, ranks, rejoins)
        except ConnectionRefusedError as error:
            if TAKEN not in str(error) or time.monotonic() > deadline:
                raise CloneError(str(error)) from error
            time.sleep(TAKEN_PAUSE_S)
        except TimeoutError as error:
            # One that stands and says nothing will not say more when it is asked again.
            raise CloneError(str(error)) from error
        except ConnectionError as error:
            left -= 1
            if left == 0:
                raise CloneError(str(error)) from error


def _agent() -> str:
    """The directory of the node's fork agent, which stands then. The command knows where that is."""
    asked = subprocess.run([str(forebay.command()), "fork-agent"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise CloneError(asked.stderr.strip().removeprefix("forebay: "))
    return asked.stdout.removesuffix("\n")
