"""Lines that a rank says about the loader agent, each once."""

import threading
from collections.abc import Sequence

from forebay._say import say

__all__ = ["Notices"]


class Notices:
    """Lines of one rank of a job."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._is_loss_said = self._is_size_said = False
        self._gone_said = 0

    def lost(self, why: str | None) -> None:
        """Says that the agent does not serve the rank; nothing if there is no reason for that, or it has been said."""
        if why is None:
            return
        # All threads that decode find it at the same time.
        with self._lock:
            is_said, self._is_loss_said = self._is_loss_said, True
        if not is_said:
            say(f"the loader agent does not serve rank {self._rank}, which reads for itself: {why}", "fallback")

    def again(self) -> None:
        """Says that another agent serves the rank."""
        self._is_loss_said, self._gone_said = False, 0
        say(f"the loader agent serves rank {self._rank} again")

    def gone(self, ranks: Sequence[int]) -> None:
        """Says which ranks have left the loader since the last call; `ranks` are all that have left, in their order."""
        for rank in ranks[self._gone_said :]:
            say(f"rank {rank} has left this loader; the loader agent goes on for the others", "lost")
        self._gone_said = len(ranks)

    def too_large(self, samples: int, most: int) -> None:
        """Says that a batch has more samples than the agent takes."""
        if not self._is_size_said:
            self._is_size_said = True
            say(
                f"a batch has {samples:,} samples, and the loader agent takes {most:,} at a time: the rank reads such batches itself; "
                "give smaller ones, or batch_size= in place of a sampler of batches"
            )
