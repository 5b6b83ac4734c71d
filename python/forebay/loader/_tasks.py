"""Tasks for threads, of which only as many work as a limit that may change says."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["TaskQueue"]

T = TypeVar("T")


def _any_number() -> int:
    return sys.maxsize


class TaskQueue(Generic[T]):
    """Tasks in order, and the threads that work on them. Threads beyond the limit are parked until it grows.

    Args:
        limit: returns the number of threads that may work at present, at least 1.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._tasks: deque[T] = deque()
        self._at_work = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, task: T) -> None:
        """Adds a task."""
        with self._changed:
            self._tasks.append(task)
            self._wake()

    def take(self) -> T | None:
        """Blocks until there is a task, and fewer threads than the limit work.

        The thread counts as working until it calls `done`. Once the queue is closed, all threads may work, and None is
        returned when no task is left.
        """
        with self._changed:
            while True:
                if self._tasks and (self._is_closed or self._at_work < self._limit()):
                    self._at_work += 1
                    return self._tasks.popleft()
                if self._is_closed:
                    return None
                self._changed.wait()

    def done(self) -> None:
        """Counts the calling thread as not working any more."""
        with self._changed:
            self._at_work -= 1
            self._wake()

    def close(self) -> None:
        """Makes all threads leave when no task is left."""
        with self._changed:
            self._is_closed = True
            # Its owner may have the queue: then both would stay until the garbage collector comes by.
            self._limit = _any_number
            self._changed.notify_all()

    def _wake(self) -> None:
        # The limit may have grown since: a single thread that ends may make room for several.
        if (room := min(len(self._tasks), self._limit() - self._at_work)) > 0:
            self._changed.notify(room)
