"""Read leases: from a step boundary to the next optimizer step clones read large tensors in the job's own memory.

crates/agent/src/forks/read_lease.rs describes the protocol of both sides.
"""

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from forebay import _core
from forebay.clone._adapter import Adapter
from forebay.clone._ahead import PreparedMemory
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._handlers import is_the_program_s
from forebay.clone._manifest import Manifest
from forebay.clone._shared import Storage

__all__ = ["OwnerLostError", "ParentTensors", "ReadLease", "aside_length"]

ASIDE_PART = 4
"""Default size of the copy-on-write buffer.

One part in four of the shared tensors, and at least `ASIDE_LEAST_BYTES`.
"""
ASIDE_LEAST_BYTES = 64 << 20
LOOK_EVERY_S = 0.002
"""Seconds between two checks of a clone for its parent's confirmation.

Between two attempts of the parent to give it.
"""
PAUSE_FIRST_S = 0.0002
"""Seconds before a clone's second check; each further pause is twice as long. Most parents confirm immediately."""


def aside_length(shared: int, asked: int | None) -> int:
    """Returns the length of the copy-on-write buffer in bytes.

    Args:
        shared: bytes of shared storage.
        asked: the program's own limit, or None.
    """
    return min(shared, max(shared // ASIDE_PART, ASIDE_LEAST_BYTES) if asked is None else asked)


class ReadLease:
    """A read lease of one rank, for one state that it has published.

    Attributes:
        forks: numbers of the forks.
        step: step after which the state was taken, as the job counts.
        closing_s: seconds for which training stood still in `close_some`.
        changed: paths of tensors that had changed before the lease was closed.
    """

    def __init__(self, adapter: Adapter, capture: Capture, storage: Storage, aside: _core.Shared, forks: Sequence[int], step: int) -> None:
        self.forks, self.step = list(forks), step
        self.aside = aside
        self.changed: list[str] = []
        self._adapter = adapter
        # Tensors may be moved away meanwhile; their old memory is not written to.
        self._arenas = [arena.memory for arena in storage.arenas]
        self._held = capture.manifest.held
        self._tensors = capture.in_place
        self._versions = adapter.versions(self._tensors)
        tensors = [
            (self._arenas[arena].address + offset, held.section.kinds[number].length)
            for held in self._held
            for number, (arena, offset) in held.places.items()
        ]
        self._shared = _core.Window(tensors, len(self.forks))
        # By the identity of a tensor the number that it has in the lease.
        self._numbers = {id(tensor): number for number, tensor in enumerate(self._tensors)}
        # By number 1 until the tensor is closed. A thread may look at it meanwhile.
        self._is_open = bytearray(b"\1" * len(self._tensors))
        self.closing_s = 0.0
        self._process = os.getpid()
        # Once set, reads are confirmed by the next step only.
        self._is_silent = False
        # A signal handler, or a call between two instructions, may interrupt the main thread anywhere: this queue
        # needs no lock that the main thread could hold then.
        self._was_asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of the lease, of the copy-on-write buffer, and of the tensors' memory; the lease keeps them."""
        return [self._shared.descriptor, self.aside.descriptor, *(memory.descriptor for memory in self._arenas)]

    def watching(self) -> Callable[[], None] | None:
        """Returns a function for a thread that lets a clone finish before the next step; it ends with the lease.

        The function has the training thread confirm, between two steps, that nothing has changed so far.

        Returns None unless the main thread trains: only the main thread can be called between two of its
        instructions, when no operation is under way. An operation writes first and changes versions afterwards, so
        another thread can't confirm; except during an operation that only reads these tensors, such as a backward
        pass or a large layer, each of which is one long instruction.
        """
        return self._wait if threading.current_thread() is threading.main_thread() else None

    def _wait(self) -> None:
        is_called = False
        while not self._is_silent and self._shared.wait_asked():
            # The call may come after a long native call. If it can't confirm then, it is requested again.
            is_called = is_called or _core.between_instructions(self._vouch)
            self._vouch_beside()
            with contextlib.suppress(queue.Empty):
                self._was_asked.get(timeout=LOOK_EVERY_S)
                is_called = False
                time.sleep(LOOK_EVERY_S)

    def _vouch(self) -> None:
        # A forked process inherits the call, and knows nothing of its parent's tensors.
        if os.getpid() != self._process:
            return
        self._was_asked.put(None)
        try:
            self._say(self._adapter.is_at_rest)
        except Exception as error:
            if is_the_program_s(error):
                raise
            # The next step meets the same error, and reports it.
            self._is_silent = True

    def _vouch_beside(self) -> None:
        """Validates from another thread.

        It holds the interpreter's lock, so no Python runs inside the operation that it finds.
        """

        def is_reading() -> bool:
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            return frame is not None and self._adapter.is_reading(frame)

        try:
            self._say(is_reading)
        except Exception:
            # The next step meets the same error, and reports it.
            self._is_silent = True

    def _say(self, can_know: Callable[[], bool]) -> None:
        """Validates the readers that ask, if nothing has changed.

        In this order, since the program may go on meanwhile.
        """
        asking = self._shared.asking
        if self._is_silent or not can_know():
            return
        if self._found_changed():
            self._is_silent = True
        elif asking:
            self._shared.vouch(asking)

    def _found_changed(self, numbers: Iterable[int] | None = None) -> list[str]:
        """Returns the paths of tensors that have changed, of some or of all that are not closed."""
        looked_at = list(itertools.compress(itertools.count(), self._is_open)) if numbers is None else sorted(numbers)
        versions = self._adapter.versions([self._tensors[number] for number in looked_at])
        if versions == [self._versions[number] for number in looked_at]:
            return []
        paths = [held.section.paths[number] for held in self._held for number in held.places]
        return [paths[number] for number, now in zip(looked_at, versions, strict=True) if now != self._versions[number]]

    def close_some(self, changing: Iterable[object], staying: Iterable[object] | None, stall_s: float) -> bool:
        """Copies the bytes of some tensors that a clone has not read; afterwards these may change.

        Args:
            changing: tensors; those that are not in the lease do not matter.
            staying: tensors of which all but those that change stay open; all others are closed, too. None: all.
            stall_s: longest stall of training, in seconds, for all such calls and `close` together.

        Returns:
            False if the lease has to be closed now: one of them has changed already, there was no room or time for the
            copy, or no tensor is left.
        """
        began = time.perf_counter()
        numbers = {self._numbers[id(tensor)] for tensor in changing if id(tensor) in self._numbers}
        if staying is not None:
            stay = {id(tensor) for tensor in staying}
            numbers.update(number for tensor, number in self._numbers.items() if tensor not in stay)
        closed = [number for number in sorted(numbers) if self._is_open[number]]
        if self._found_changed(closed):
            return False
        left = self._shared.close_some(closed, self.aside.address, self.aside.length, max(stall_s - self.closing_s, 0.0))
        for number in closed:
            self._is_open[number] = 0
        self.closing_s += time.perf_counter() - began
        return left == 0 and any(self._is_open)

    def close(self, stall_s: float) -> tuple[int, list[int], str]:
        """Copies the bytes that a clone has not read, or drops the fork; afterwards the tensors may change.

        Args:
            stall_s: longest stall of training, in seconds.

        Returns:
            The bytes copied, the forks that were dropped, and the reason.
        """
        self._is_silent = True
        try:
            return self._close(stall_s)
        except BaseException:
            self._shared.tear()
            raise
        finally:
            self._was_asked.put(None)

    def tear(self) -> None:
        """Invalidates the lease: no reader gets the state."""
        self._is_silent = True
        self._shared.tear()
        self._was_asked.put(None)

    def _close(self, stall_s: float) -> tuple[int, list[int], str]:
        self.changed = self._found_changed()
        if self.changed:
            self._shared.tear()
            vouched = self._shared.vouched
            dropped = [fork for reader, fork in enumerate(self.forks) if not vouched >> reader & 1]
            why = (
                f"{self.changed[0]} was changed between point() and the optimizer's step; from now on it is copied at the point: ask again"
            )
            return 0, dropped, why
        copied, left, readers = self._shared.close(self.aside.address, self.aside.length, max(stall_s - self.closing_s, 0.0))
        if left == 0:
            return copied, [], ""
        dropped = [fork for reader, fork in enumerate(self.forks) if readers >> reader & 1]
        why = (
            f"the next optimizer step began with {left:,} bytes unread, beyond the copy budget ({copied:,} bytes were copied): "
            "raise session(aside=..., stall_s=...), or ask again"
        )
        return copied, dropped, why


class OwnerLostError(CloneError):
    """The owner of a read lease has ended, or a transfer from another host has failed, before all was read."""


class ParentTensors:
    """A parent's tensors in its own memory, as one rank of a clone reads them."""

    def __init__(
        self, manifest: Manifest, reader: int, descriptors: Sequence[int], wait_s: float, ahead: PreparedMemory | None = None
    ) -> None:
        """Opens the memory behind the descriptors of a lease, which the caller keeps open until everything is read.

        Args:
            manifest: manifest of the state.
            reader: number of this rank as a reader.
            descriptors: descriptors as in `ReadLease.descriptors`.
            wait_s: longest wait, in seconds, for a parent that makes no progress.
            ahead: prepared memory; mapping that is missing is done during the read.

        Raises:
            DamagedError: the descriptors or the memory behind them are invalid.
        """
        if len(descriptors) < 3:
            raise DamagedError("the descriptors of the state's memory are missing")
        window, aside, *arenas = descriptors
        tensors = [(held.section.kinds[number].length, *place) for held in manifest.held for number, place in held.places.items()]
        if max((arena for _, arena, _ in tensors), default=0) >= len(arenas):
            raise DamagedError("an entry is in memory whose descriptor is missing")
        self._before = list(itertools.accumulate([len(held.places) for held in manifest.held], initial=0))
        self._wait_s = wait_s
        mapped = [(arena, ahead.mapped(arena) if ahead else None) for arena in arenas]
        try:
            self._reading = _core.Reading(window, tensors, reader, mapped, aside)
        except (OSError, ValueError, OverflowError) as error:
            raise DamagedError(f"the read lease of the state is invalid: {error}") from error

    def before(self, at: int) -> int:
        """Returns the number of entries in earlier sections that were not copied."""
        return self._before[at]

    def read(self, wanted: Sequence[tuple[int, int]]) -> bytes:
        """Reads entries; returns the digests of the bytes read, 16 bytes each.

        Args:
            wanted: numbers of the entries among those that were not copied, and the addresses to which they go.

        Raises:
            CloneError: the parent went on before all was read, or ended.
            DamagedError: there is no such entry, or no such memory.
        """
        try:
            return self._reading.read(wanted, self._wait_s)
        except (ConnectionAbortedError, TimeoutError) as error:
            kind = OwnerLostError if self._reading.outcome == "abandoned" else CloneError
            raise kind(str(error)) from error
        except (OSError, ValueError) as error:
            raise DamagedError(f"the memory of the state can't be read: {error}") from error

    def is_confirmed(self) -> bool:
        """Returns whether the parent has confirmed that nothing changed during the read.

        Raises:
            CloneError: a tensor changed, or the parent has ended: the bytes read may belong to no step.
        """
        if (stands := self._reading.stands) is not False:
            return stands is True
        if self._reading.outcome == "torn":
            raise CloneError("no clone: its parent's tensors were changed between point() and the optimizer's step, as they were read")
        raise CloneError("no clone: its parent has ended in the step after, and could not say that its tensors had stayed as they were")

    def confirm(self, pause: Callable[[float], object]) -> None:
        """Requests the parent's confirmation that nothing changed during the read, and waits for it.

        Args:
            pause: sleeps for a number of seconds; called repeatedly.

        Raises:
            CloneError: a tensor changed, or the parent has ended, or it neither confirms nor comes to a step in time.
        """
        self._reading.ask()
        deadline = time.monotonic() + self._wait_s
        pause_s = PAUSE_FIRST_S
        while not self.is_confirmed():
            if time.monotonic() > deadline:
                raise CloneError(
                    f"no clone: its parent came to no further step in {self._wait_s:g} s, and could still change what was read"
                )
            pause(pause_s)
            pause_s = min(2 * pause_s, LOOK_EVERY_S)
