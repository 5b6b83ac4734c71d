"""Work in a thread while training goes on, and a pause of the garbage collector."""

import _thread
import contextlib
import gc
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["ThreadResult", "uncollected"]

T = TypeVar("T")


class ThreadResult(Generic[T]):
    """The result of a function that runs in a thread of its own, which ends with it or with a second function."""

    def __init__(self, ask: Callable[[], T], *, goes_on: bool = False) -> None:
        """Begins.

        Args:
            ask: the function.
            goes_on: the thread waits afterwards for `go_on`, which has to be called once: to start a new one takes
                milliseconds where the processors are busy.
        """
        self._ask = ask
        self._goes_on = goes_on
        self._answers: list[T] = []
        self._error: Exception | None = None
        self._is_there = threading.Event()
        self._next: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        # As a daemon; `Thread.start` would wait until it runs, for milliseconds where the processors are busy.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:
            self._error = error
        self._is_there.set()
        if self._goes_on and (then := self._next.get()) is not None:
            then()

    def is_there(self) -> bool:
        """Returns whether the function has returned or raised."""
        return self._is_there.is_set()

    def wait(self) -> T:
        """Waits for the result and returns it; to be called once.

        Raises:
            Exception: the function has raised it.
        """
        self._is_there.wait()
        if self._error is not None:
            raise self._error
        return self._answers.pop()

    def go_on(self, then: Callable[[], object] | None) -> None:
        """Sets the function that the thread runs after its result; None: none."""
        self._next.put(then)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pauses Python's garbage collector, which takes a tenth of a second to look at every object of torch's."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
