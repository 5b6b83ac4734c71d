"""What a thread finds out, or makes, while training goes on; and what the main thread does in between."""

import collections
import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Later", "between_instructions"]

T = TypeVar("T")


class Later(Generic[T]):
    """The answer of a function that runs in a thread of its own, which ends with it."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="forebay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:
            self._error = error

    def is_there(self) -> bool:
        """Whether the answer is there, or an error."""
        return not self._thread.is_alive()

    def wait(self) -> T:
        """The answer; once.

        Raises:
            Exception: what the function has raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers.pop()


_waiting: "collections.deque[Callable[[], object]]" = collections.deque()


def _run(_: object) -> int:
    with contextlib.suppress(IndexError):
        while True:
            function = _waiting.popleft()
            with contextlib.suppress(Exception):
                function()
    return 0


_RUN = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run)
"""One for all calls, kept for ever: it must not go while the interpreter is in it."""


def between_instructions(function: Callable[[], object]) -> None:
    """Has the main thread call a function between two instructions of its program, as it does with handlers of signals.

    It is called soon, unless the main thread is in a long call of another language; what it raises is lost. Where too many calls are
    waiting it is called with the next one that is asked for.
    """
    _waiting.append(function)
    ctypes.pythonapi.Py_AddPendingCall(_RUN, None)
