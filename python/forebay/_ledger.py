"""Events that this process writes for the record of the `forebay run` that it is part of.

JSON lines, in a file beside the run's page for each kind of what is told. `crates/cli/src/run/ledger.rs` reads them.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ledger", "tell"]

# As crates/contract/src/env.rs has it.
RUN = "FOREBAY_RUN"


def ledger(kind: str) -> Path | None:
    """Returns the file for a kind of events; None if no run asks for them.

    Args:
        kind: of what is told, such as `forks`.
    """
    page = Path(os.environ.get(RUN, ""))
    name, _, run = page.name.partition(".")
    return page.with_name(f"{kind}.{run}") if name == "run" and run else None


def tell(kind: str, facts: Mapping[str, object]) -> None:
    """Writes one line, in one piece. Where no run has asked for it, or the run has ended, nothing happens."""
    file = ledger(kind)
    if file is None:
        return
    line = json.dumps(facts).encode() + b"\n"
    # The run has made the file, and takes it away.
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
