"""Windows: from a point to the next optimizer step clones read large tensors where they lie.

In which order each side looks at what, crates/agent/src/fork/window.rs says.
"""

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence

from forebay import _core
from forebay.clone._adapter import Adapter
from forebay.clone._ahead import Ahead
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._handlers import is_the_program_s
from forebay.clone._manifest import Manifest
from forebay.clone._shared import Storage

__all__ = ["Remote", "Window", "aside_length"]

ASIDE_PART = 4
"""Unless the program says otherwise, one in so many bytes may be copied aside,"""
ASIDE_LEAST_BYTES = 64 << 20
"""and so many in any case."""
LOOK_EVERY_S = 0.002
"""How often a clone looks whether its parent has said that nothing had changed, and how often its parent tries to say so."""
PAUSE_FIRST_S = 0.0002
"""After so long a clone looks for the second time, and then after twice as long each time: most parents say so at once."""


def aside_length(lying: int, asked: int | None) -> int:
    """How many bytes are made ready for what is copied aside.

    Args:
        lying: bytes of shared storage.
        asked: what the program has said, or None.
    """
    return min(lying, max(lying // ASIDE_PART, ASIDE_LEAST_BYTES) if asked is None else asked)


class Window:
    """One rank's, for one state that it has offered.

    Attributes:
        forks: for which it was offered.
        step: after which, as the job counts.
        changed: when it is closed, the paths of tensors that had been changed before.
    """

    def __init__(self, adapter: Adapter, capture: Capture, storage: Storage, aside: _core.Shared, forks: Sequence[int], step: int) -> None:
        self.forks, self.step = list(forks), step
        self.aside = aside
        self.changed: list[str] = []
        self._adapter = adapter
        # Tensors may be moved away meanwhile; what they leave stays as it is.
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
        self._process = os.getpid()
        # From then on nothing is said in between: the next step says it.
        self._is_silent = False
        # A handler of a signal, or what is called between two instructions, may come in the middle of whatever the main thread does: this
        # has no lock that it could hold then.
        self._was_asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def descriptors(self) -> list[int]:
        """Of the window, of what is copied aside, and of the memory in which the tensors lie; they stay the window's."""
        return [self._shared.descriptor, self.aside.descriptor, *(memory.descriptor for memory in self._arenas)]

    def watching(self) -> Callable[[], None] | None:
        """What a thread does from now on, so that a clone that has read all need not wait for the next step; it ends with the window.

        In between, the thread that trains says that nothing has changed so far.

        Only where the main thread trains: it alone can be asked between two of its instructions, when it is in the middle of no operation.
        Versions are counted after an operation has written, so no other thread can know, but while all that runs is one that only reads
        what lies there: a backward pass, or a large layer, of which each is one long instruction.
        """
        return self._wait if threading.current_thread() is threading.main_thread() else None

    def _wait(self) -> None:
        is_called = False
        while not self._is_silent and self._shared.wait_asked():
            # That may be after a long call of another language. If it can't say so then, it is asked again.
            is_called = is_called or _core.between_instructions(self._vouch)
            self._vouch_beside()
            with contextlib.suppress(queue.Empty):
                self._was_asked.get(timeout=LOOK_EVERY_S)
                is_called = False
                time.sleep(LOOK_EVERY_S)

    def _vouch(self) -> None:
        # A process that was forked has the call, too, and knows nothing of its parent's tensors.
        if os.getpid() != self._process:
            return
        self._was_asked.put(None)
        try:
            self._say(self._adapter.is_at_rest)
        except Exception as error:
            if is_the_program_s(error):
                raise
            # The next step meets it, too, and says so.
            self._is_silent = True

    def _vouch_beside(self) -> None:
        """The same, by another thread: the interpreter's lock is held here, so that no Python runs in the operation that is found."""

        def is_reading() -> bool:
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            return frame is not None and self._adapter.is_reading(frame)

        try:
            self._say(is_reading)
        except Exception:
            # As above.
            self._is_silent = True

    def _say(self, can_know: Callable[[], bool]) -> None:
        """Vouches for who asks, if nothing has changed; in this order, for the program may go on meanwhile."""
        asking = self._shared.asking
        if self._is_silent or not can_know():
            return
        if self._found_changed():
            self._is_silent = True
        elif asking:
            self._shared.vouch(asking)

    def _found_changed(self) -> list[str]:
        versions = self._adapter.versions(self._tensors)
        if versions == self._versions:
            return []
        paths = (held.section.paths[number] for held in self._held for number in held.places)
        return [path for path, was, now in zip(paths, self._versions, versions, strict=True) if was != now]

    def close(self, stall_s: float) -> tuple[int, list[int], str]:
        """What no clone has read is copied aside, or the fork is dropped; after that the tensors may change.

        Args:
            stall_s: for how many seconds training may stand still.

        Returns:
            How many bytes were copied, the forks that were dropped, and why.
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
        """Closes it for good: who reads gets nothing."""
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
        copied, left, readers = self._shared.close(self.aside.address, self.aside.length, stall_s)
        if left == 0:
            return copied, [], ""
        dropped = [fork for reader, fork in enumerate(self.forks) if readers >> reader & 1]
        why = (
            f"the next step came, {copied:,} bytes were copied aside, and {left:,} more had not been read: "
            "raise session(aside=..., stall_s=...), or ask again"
        )
        return copied, dropped, why


class Remote:
    """A parent's tensors where they lie, as one rank of a clone reads them."""

    def __init__(self, manifest: Manifest, reader: int, descriptors: Sequence[int], wait_s: float, ahead: Ahead | None = None) -> None:
        """Made of the descriptors of `Window.descriptors`, which stay the caller's, and open until nothing more is read.

        Args:
            manifest: which tensors there are.
            reader: the rank's number as a reader.
            descriptors: see above.
            wait_s: for how many seconds a parent is waited for that stands still.
            ahead: what was made ready; what was not is done as it is read.

        Raises:
            DamagedError: they are not what they should be.
        """
        if len(descriptors) < 3:
            raise DamagedError("the memory in which the state lies did not come along")
        window, aside, *arenas = descriptors
        tensors = [(held.section.kinds[number].length, *place) for held in manifest.held for number, place in held.places.items()]
        if max((arena for _, arena, _ in tensors), default=0) >= len(arenas):
            raise DamagedError("the state lies in memory that did not come along")
        self._before = list(itertools.accumulate([len(held.places) for held in manifest.held], initial=0))
        self._wait_s = wait_s
        mapped = [(arena, ahead.mapped(arena) if ahead else None) for arena in arenas]
        try:
            self._reading = _core.Reading(window, tensors, reader, mapped, aside)
        except (OSError, ValueError, OverflowError) as error:
            raise DamagedError(f"the window of the state can't be used: {error}") from error

    def before(self, at: int) -> int:
        """How many entries were not copied of the sections before this one."""
        return self._before[at]

    def read(self, wanted: Sequence[tuple[int, int]]) -> bytes:
        """Reads entries; gives the digests of what was read, 16 bytes each.

        Args:
            wanted: their numbers among those that were not copied, and the addresses to which they go.

        Raises:
            CloneError: the parent went on before all was read, or ended.
            DamagedError: there is no such entry, or no such memory.
        """
        try:
            return self._reading.read(wanted, self._wait_s)
        except (ConnectionAbortedError, TimeoutError) as error:
            raise CloneError(str(error)) from error
        except (OSError, ValueError) as error:
            raise DamagedError(f"the memory in which the state lies can't be read: {error}") from error

    def is_confirmed(self) -> bool:
        """Whether the parent has said, of itself or by closing the window, that nothing had changed while all was read.

        Raises:
            CloneError: something had, or nobody can say: what was read may be of no step.
        """
        if (stands := self._reading.stands) is not False:
            return stands is True
        if self._reading.outcome == "torn":
            raise CloneError("no clone: its parent's tensors were changed between point() and the optimizer's step, as they were read")
        raise CloneError("no clone: its parent has ended in the step after, and could not say that its tensors had stayed as they were")

    def confirm(self, pause: Callable[[float], object]) -> None:
        """Asks the parent whether nothing had changed while all was read, and waits until it says so.

        Args:
            pause: called again and again, for so many seconds each time.

        Raises:
            CloneError: as `is_confirmed`, or it says nothing and comes to no step.
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
