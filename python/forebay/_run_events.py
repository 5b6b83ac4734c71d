"""Event logs of this process's `forebay run`: files of JSON lines beside its page, one for each kind.

`crates/cli/src/run/event_log.rs` reads them.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["event_log", "record", "run_page"]

# As crates/contract/src/env.rs has it.
RUN = "FOREBAY_RUN"


def run_page() -> Path | None:
    """Returns the page of this process's run; None outside of a run."""
    page = Path(os.environ.get(RUN, ""))
    name, _, run = page.name.partition(".")
    return page if name == "run" and run else None


def event_log(kind: str) -> Path | None:
    """Returns the file for a kind of events, such as `forks`; None if no run records events."""
    page = run_page()
    return page and page.with_name(page.name.replace("run", kind, 1))


def record(kind: str, facts: Mapping[str, object]) -> None:
    """Writes one line, in one piece; does nothing if no run records events, or the run has ended."""
    if (file := event_log(kind)) is None:
        return
    # The run has made the file, and takes it away.
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, json.dumps(facts).encode() + b"\n")
        finally:
            os.close(descriptor)
