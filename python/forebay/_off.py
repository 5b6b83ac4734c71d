"""The switch for all of Forebay."""

import os

__all__ = ["is_off"]

OFF = "FOREBAY"


def is_off() -> bool:
    """Whether whoever started the program wants it to run as if there were no Forebay."""
    return os.environ.get(OFF, "").lower() in ("off", "0")
