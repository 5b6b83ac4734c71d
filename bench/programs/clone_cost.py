"""Costs of a session to the process that it is in.

Without torch, which has its own threads and hooks as anybody has.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Own:
    """Costs of a session to its process.

    Its calls in the training thread, and the CPU of threads that were not there before.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self._calls_cpu_s = 0.0
        self._began = (0.0, 0.0)
        main, tasks = os.getpid(), (path.name for path in Path("/proc/self/task").iterdir())
        self._threads = {int(name): 0.0 for name in tasks if int(name) != main}

    @property
    def cpu_s(self) -> float:
        """All so far, and a constant: only differences mean something."""
        for thread in self._threads:
            # Training's own stay; of one that has ended, what it took since the last look would count.
            with contextlib.suppress(OSError):
                self._threads[thread] = time.clock_gettime(_clock_of(thread))
        return self._calls_cpu_s + time.process_time() - time.thread_time() - sum(self._threads.values())

    def call(self, function: Callable[[], None]) -> None:
        """A call of the session's."""
        self._begin()
        function()
        self._end()

    @contextlib.contextmanager
    def watching(self, optimizer: Any) -> Iterator[None]:  # noqa: ANN401  (a torch optimizer)
        """Hooks that the block sets on the optimizer count from now on: they are called between two of ours."""
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._begin)
        yield
        optimizer.register_step_pre_hook(self._end)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, *_: object) -> None:
        self._began = time.monotonic(), time.thread_time()

    def _end(self, *_: object) -> None:
        began, cpu = self._began
        self.wall_s += time.monotonic() - began
        self._calls_cpu_s += time.thread_time() - cpu


def _clock_of(thread: int) -> int:
    """The number of the clock that counts a thread's CPU.

    Linux/posix-timers.h, MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED.
    """
    return ~thread << 3 | 6
