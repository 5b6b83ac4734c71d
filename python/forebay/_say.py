"""Lines for a person while a job runs, on standard error and in the log of the program."""

import contextlib
import logging
import os
import threading
from typing import Literal

__all__ = ["LOG", "say", "say_once"]

LOG = logging.getLogger("forebay")
"""The package's logger. It writes nothing unless the program sets up logging."""
LOG.addHandler(logging.NullHandler())


def say(line: str, key: Literal["refused", "fallback", "lost"] | None = None) -> None:
    """Prints one line to standard error in one piece, so that lines of several ranks do not mix, and logs it.

    Args:
        line: text of the line. A closed standard error is ignored.
        key: first word of the logged line, as in the logs of the agents: for a refusal, a fallback or a lost peer.
    """
    text = " ".join(line.splitlines())
    if key is None:
        LOG.info("%s", text)
    else:
        LOG.warning("%s: %s", key, text)
    with contextlib.suppress(OSError):
        os.write(2, f"forebay: {text}\n".encode(errors="replace"))


_said: set[str] = set()
_lock = threading.Lock()


def say_once(topic: str, line: str) -> None:
    """Says a line unless one of its topic was said in this process: what follows has the same reason."""
    with _lock:
        is_first = topic not in _said
        _said.add(topic)
    if is_first:
        say(line)
