"""The switch for all of Forebay."""

import os

__all__ = ["is_off"]

OFF = "FOREBAY"


def is_off() -> bool:
    """Returns whether `FOREBAY=off` is set: the program then runs as if there were no Forebay."""
    return os.environ.get(OFF, "").lower() in ("off", "0")
