"""Reports of epochs for the record of the `forebay run` that the rank is part of.

A rank writes a JSON line at the end of each epoch:

    {"loader": "0", "rank": 1, "world": 4, "epoch": 3, "begun_at": 1795432621.25, "seconds": 412.7, "samples": 320292,
     "skipped": 0, "source_wait_s": 88.1, "decode_wait_s": 9.6, "ideal_s": 315.0, "read_bytes": 36700000000,
     "workers": 8, "bound_by": "source", "waits": [{"seconds": 3.5, "at_s": 17.2, "of": "source"}], "span_s": 6.4,
     "source_s": [0.0, 3.5], "decode_s": [0.1, 0.0],
     "agent": {"from_memory": 100000, "source_bytes": 25700000000, "rank_queued_us": 1200000}}

`agent` has the counts of the node's agent during the epoch (`rank_...`: for this rank alone); it is empty without an
agent. `crates/cli/src/run/loaders.rs` reads them.
"""

from collections.abc import Mapping

from forebay import _ledger
from forebay.loader._report import EpochReport

__all__ = ["is_asked", "tell"]

KIND = "loaders"


def is_asked() -> bool:
    """Returns true if a run asks for reports."""
    return _ledger.ledger(KIND) is not None


def tell(report: EpochReport, loader: str, rank: int, world: int, agent: Mapping[str, int]) -> None:
    """Writes the report of an epoch of a rank, if a run asks for reports."""
    course = report.course
    facts = {
        "loader": loader,
        "rank": rank,
        "world": world,
        "epoch": report.epoch,
        "begun_at": report.begun_at,
        "seconds": report.seconds,
        "samples": report.samples,
        "skipped": report.skipped,
        "source_wait_s": report.source_wait_s,
        "decode_wait_s": report.decode_wait_s,
        "ideal_s": report.ideal_s,
        "read_bytes": report.read_bytes,
        "workers": report.workers,
        "bound_by": report.bound_by,
        "waits": [wait._asdict() for wait in report.waits],
        "span_s": course.span_s,
        "source_s": [round(seconds, 4) for seconds in course.source_s],
        "decode_s": [round(seconds, 4) for seconds in course.decode_s],
        "agent": dict(agent),
    }
    _ledger.tell(KIND, facts)
