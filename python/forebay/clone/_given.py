"""Checks of the arguments of `session`. Each complaint names the mend."""

from collections.abc import Mapping

from forebay.clone._dealt import PLACE

__all__ = ["check_given"]

WAIT_MAX_S = 1e6


def check_given(*, job: object, warm: object, wait_s: object, generators: object, others: object) -> None:
    """Refuses invalid arguments (`ValueError`), some of which would otherwise fail in a clone only."""
    for name, value in (("generators", generators), ("others", others)):
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f'{name}={value!r}: give a dictionary of objects by name, such as {name}={{"mine": ...}}')
    if isinstance(others, Mapping) and PLACE in others:
        raise ValueError(f"others={{{PLACE!r}: ...}}: under that name the session keeps its own position: take another")
    if job is not None and not isinstance(job, str):
        raise ValueError(f"job={job!r}: write a name, such as job='trunk'")
    if warm is not None and not callable(warm):
        raise ValueError(f"warm={warm!r}: give a function that does one pass forward and backward")
    if not isinstance(wait_s, int | float) or not 0 < wait_s <= WAIT_MAX_S:
        raise ValueError(f"wait_s={wait_s!r}: write a number of seconds, more than 0 and at most {WAIT_MAX_S:,.0f}")
