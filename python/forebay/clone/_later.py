"""What a thread finds out, or makes, while training goes on; and what waits until it does again."""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Later", "uncollected"]

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


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Has Python's collector of garbage wait: it looks at every object of torch's for a tenth of a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
