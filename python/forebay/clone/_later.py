"""What a thread finds out, or makes, while training goes on."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Later"]

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
