"""A source by single samples, which many a test asks for one by one."""

from collections import deque
from collections.abc import Callable

from forebay.loader import Extent, Request, Source
from forebay.loader.order import Order


class Singly:
    """Each use of a sample is a request of its own.

    Args:
        source: that is asked.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._uses: dict[int, deque[Request]] = {}

    def register(self, order: Order | None, locate: Callable[[int], Extent]) -> None:
        """See `Source.register`."""
        self.source.register(order, locate)

    def request(self, sample: int, iteration: int = 0) -> None:
        """Adds a request."""
        self._uses.setdefault(sample, deque()).append(self.source.request([sample], iteration))

    def read(self, sample: int) -> memoryview:
        """Returns the bytes of the sample for its first use, and requests them if that has not been done."""
        if not self._uses.get(sample):
            self.request(sample)
        return self._uses[sample][0].read(0)

    def release(self, sample: int) -> None:
        """Releases its first request."""
        self._uses[sample].popleft().release()

    def close(self) -> None:
        """See `Source.close`."""
        self.source.close()
