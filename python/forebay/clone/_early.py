"""Copies of tensors during the step whose results a fork takes, for frameworks that tell when a tensor is final."""

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay import _core
from forebay.clone._manifest import starts_of
from forebay.clone._parts import ComponentState

__all__ = ["EarlyCopies", "EarlyTensors", "StepCopy"]

NOWHERE = 1 << 62
"""Offset of a tensor for which no place is known: it is not copied."""


class EarlyTensors(Protocol):
    """A step that tells which tensors are final while it runs."""

    def arm(self) -> tuple[_core.EarlyCopy, Sequence[str]] | None:
        """Has the next step hand over its tensors; returns the copy, and the paths of the tensors by number."""

    def disarm(self) -> None:
        """Notes that the step has ended, at each boundary."""


@dataclass(frozen=True)
class StepCopy:
    """The tensors of one step that were copied while it ran.

    Attributes:
        copy: the copy, and references to the tensors.
        paths: paths of the tensors by number.
        offsets: offsets at which the copies are in the memory of the capture, by number.
    """

    copy: _core.EarlyCopy
    paths: Sequence[str]
    offsets: Sequence[int]

    def finish(self, located: Mapping[str, tuple[int, int, int]]) -> dict[str, bytes]:
        """Ends the copy, and returns the digests of the tensors that are still what was copied, by path.

        A tensor is if it is at the same address: its memory was held meanwhile, so nobody has written there, and
        nobody else has got it. Whatever has moved was changed after it had been copied.

        Args:
            located: by path the address and length of each tensor now, which the caller holds, and its offset in the
                capture.
        """
        now = [
            (number, located[path][0], located[path][1])
            for number, (path, offset) in enumerate(zip(self.paths, self.offsets, strict=True))
            if path in located and located[path][2] == offset
        ]
        return {self.paths[number]: digest for number, digest in self.copy.finish(now)}


class EarlyCopies:
    """Copies the tensors of each step before a fork, once the memory of its capture is there.

    The training thread calls `begin` and `end`; the thread that prepares memory calls `use`.
    """

    def __init__(self, tensors: EarlyTensors) -> None:
        self._tensors = tensors
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}
        # Weakly: a preparation may end before its memory is there.
        self._memory: weakref.ref[_core.Reserved] | None = None
        self._step: StepCopy | None = None
        self._is_copying = False

    def lay_out(self, parts: Sequence[ComponentState]) -> None:
        """Notes the offsets that tensors have in a capture.

        They hold as long as no entry before them changes its length.
        """
        starts = starts_of([part.section.whole for part in parts])
        self._offsets = {
            path: start + within
            for part, start in zip(parts, starts, strict=False)
            for path, within in zip(part.section.paths[1:], part.section.starts[1:], strict=False)
        }

    def begin(self) -> None:
        """Begins with the next step: the boundary at its end takes a state."""
        armed = self._tensors.arm()
        if armed is None:
            return
        copy, paths = armed
        with self._lock:
            self._step = StepCopy(copy, paths, [self._offsets.get(path, NOWHERE) for path in paths])
            self._is_copying = False
            self._start()

    def end(self) -> int:
        """Notes that a step has ended, and returns the bytes that were copied while it ran."""
        self._tensors.disarm()
        return self._step.copy.copied_bytes if self._step else 0

    def use(self, memory: _core.Reserved | None) -> None:
        """Sets the memory of the next capture; None: there is none."""
        with self._lock:
            self._memory = None if memory is None else weakref.ref(memory)
            self._start()

    def take(self) -> tuple[StepCopy, _core.Reserved] | None:
        """Returns the copy of the step that has ended and its memory, once; None if there was none.

        If nobody keeps them, the copy ends.
        """
        with self._lock:
            step, memory, is_copying = self._step, self._there(), self._is_copying
            self._step, self._is_copying = None, False
        return (step, memory) if step is not None and memory is not None and is_copying else None

    def _start(self) -> None:
        memory = self._there()
        if self._step is not None and memory is not None and not self._is_copying:
            self._is_copying = self._step.copy.copy(memory, list(self._step.offsets))

    def _there(self) -> _core.Reserved | None:
        return None if self._memory is None else self._memory()
