"""Tasks for threads: no more work than the limit says, parked ones wake when it grows, and all leave at the end."""

import threading
import time

from forebay.loader._tasks import TaskQueue

WAIT_S = 20.0


class Workers:
    """Threads that take tasks; each is over when `end` says so."""

    def __init__(self, threads: int, limit: int) -> None:
        self.limit = limit
        self.queue: TaskQueue[int] = TaskQueue(lambda: self.limit)
        self.at_work: set[int] = set()
        self.over: list[int] = []
        self.most = 0
        self._lock = threading.Condition()
        self._go = 0
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        while (task := self.queue.take()) is not None:
            with self._lock:
                self.at_work.add(task)
                self.most = max(self.most, len(self.at_work))
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._go > 0)
                self._go -= 1
                self.at_work.discard(task)
                self.over.append(task)
                self._lock.notify_all()
            self.queue.done()

    def end(self, tasks: int = 1) -> None:
        """Ends the work on this many tasks, and waits until it is ended."""
        with self._lock:
            over = len(self.over) + tasks
            self._go += tasks
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: len(self.over) >= over, WAIT_S)

    def wait_for(self, at_work: int) -> None:
        """Waits until exactly this many threads work."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.at_work) == at_work, WAIT_S)


def test_threads_park_and_wake_as_the_limit_changes() -> None:
    workers = Workers(threads=4, limit=1)
    for task in range(12):
        workers.queue.put(task)
    workers.wait_for(1)
    workers.end()
    workers.wait_for(1)
    assert workers.most == 1
    workers.limit = 3
    # The thread that ends makes room for two more than itself.
    workers.end()
    workers.wait_for(3)
    workers.limit = 2
    workers.end(2)
    workers.wait_for(2)
    time.sleep(0.05)
    assert len(workers.at_work) == 2
    workers.queue.close()
    workers.end(12 - len(workers.over))
    for thread in workers.threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(workers.over) == list(range(12))
