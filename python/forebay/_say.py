"""What is said to a person while a job runs."""

import contextlib
import os

__all__ = ["say"]


def say(line: str) -> None:
    """One line on standard error, in one piece: the lines of several ranks do not mix. Where nobody listens, nothing happens."""
    with contextlib.suppress(OSError):
        os.write(2, f"forebay: {' '.join(line.splitlines())}\n".encode(errors="replace"))
