"""Reports of a loader's epochs: a line for a person, and an event for the record of the `forebay run` of the rank.

A rank writes a JSON line at the end of each epoch:

    {"loader": "0", "rank": 1, "world": 4, "bound_by": "source", "epoch": 3, "begun_at": 1795432621.25,
     "seconds": 412.7, "samples": 320292, "skipped": 0, "source_wait_s": 88.1, "decode_wait_s": 9.6, "ideal_s": 315.0,
     "read_bytes": 36700000000, "workers": 8, "waits": [{"seconds": 3.5, "at_s": 17.2, "of": "source"}], "span_s": 6.4,
     "source_s": [0.0, 3.5], "decode_s": [0.1, 0.0],
     "agent": {"from_memory": 100000, "source_bytes": 25700000000, "rank_queued_us": 1200000}}

`agent` has the counts of the node's agent during the epoch (`rank_...`: for this rank alone); it is empty without an
agent. `crates/cli/src/run/loaders.rs` reads them.
"""

from collections.abc import Mapping

from forebay import _run_events
from forebay._say import say
from forebay.loader._agent import AgentRank, cached_share
from forebay.loader._report import EpochReport

__all__ = ["LoaderReporter"]

KIND = "loaders"
FACTS = ("epoch", "begun_at", "seconds", "samples", "skipped", "source_wait_s", "decode_wait_s", "ideal_s", "read_bytes", "workers")


class LoaderReporter:
    """The reports of one loader, whose name is alike in all ranks.

    Attributes:
        rank: number of this rank.
        world: number of ranks.
        skipped: samples that were left out in this epoch.
        padding: samples at the end of the last batch that are repeated.
        last: the report of the last epoch; None before.
    """

    def __init__(self, name: str, rank: int, world: int, agent: AgentRank | None, *, is_saying: bool) -> None:
        self._name = name
        self.rank, self.world = rank, world
        self._agent = agent
        self._is_saying = is_saying
        self.skipped = self.padding = 0
        self.last: EpochReport | None = None

    def end(self, report: EpochReport) -> None:
        """Reports an epoch that has ended."""
        self.padding, self.last = 0, report
        is_recorded = _run_events.event_log(KIND) is not None
        since = self._agent.since() if self._agent is not None and (is_recorded or self._is_saying) else {}
        if is_recorded:
            _run_events.record(KIND, self._facts(report, since))
        if self._is_saying:
            say(f"{report}{cached_share(since)}")

    def _facts(self, report: EpochReport, agent: Mapping[str, int]) -> dict[str, object]:
        course = report.course
        return {
            "loader": self._name,
            "rank": self.rank,
            "world": self.world,
            "bound_by": report.bound_by,
            **{name: getattr(report, name) for name in FACTS},
            "waits": [wait._asdict() for wait in report.waits],
            "span_s": course.span_s,
            "source_s": [round(seconds, 4) for seconds in course.source_s],
            "decode_s": [round(seconds, 4) for seconds in course.decode_s],
            "agent": dict(agent),
        }
