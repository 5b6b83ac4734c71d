"""Whole epochs: what is known of a kind of program and its data, what was found, and what the source saw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.session import EpochFigures, program
from bench.world import SourceTraffic

TTL_S = 60
FRESHNESS = (f"ttl={TTL_S}", "immutable")
# What a file costs a brick. With the answer to a lookup come the bytes of a small file, so a lookup counts as much as a
# read.
FILE_OPERATIONS = ("LOOKUP", "OPEN", "READ")
# To list a directory, its path is looked up part by part: the mount, the data set, the directory. Each brick sees these
# three, and one OPENDIR. Once the client has forgotten the path (caches are dropped before each epoch), it asks for the
# data set and for the directory first at the one brick that the name's hash leads to, and then at all: two lookups
# more, over the two bricks. So a listing from cold caches costs one brick three lookups and the other five, or each
# four: never more than four for each OPENDIR.
LOOKUPS_A_LISTING = 4
DROPS_MAX = 0.001
FILES_A_LISTING = 50


@dataclass(frozen=True)
class Workload:
    """A program and its data."""

    name: str
    source: Path
    local: Path
    reader: tuple[str, ...]
    pace_ms: float
    epoch_1_bar: float
    # Files that are read in one turn: where copies are made meanwhile, so many that what is left to do at its end is
    # little; and later.
    first_part: int
    part: int
    # Whether the source is watched for a whole validity, to see what listings cost: it takes directories with many
    # files.
    watch_listings: bool

    def words(self, root: Path) -> list[str]:
        """The program's command line."""
        return program(self.reader[0], root, "--step", *self.reader[1:])


@dataclass(frozen=True)
class Against:
    """Epochs over the same epochs on the very copies: ratios."""

    time: float
    # Of a turn. A disk that is shared stalls now and then for longer than a turn takes, and nobody can say whom that
    # will meet.
    median_turn: float
    cpu: float


@dataclass
class RoundFigures:
    """Samples, one a round unless said otherwise."""

    first_ratio: list[float] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    untiered_seconds: list[float] = field(default_factory=list)
    untiered_bytes: list[float] = field(default_factory=list)
    settled_after_s: list[float] = field(default_factory=list)
    copies_seconds: list[float] = field(default_factory=list)
    not_copies: list[float] = field(default_factory=list)
    agent_share: list[float] = field(default_factory=list)
    fits: list[Against] = field(default_factory=list)
    again: list[Against] = field(default_factory=list)
    fits_seen: dict[str, list[LaterEpochs]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    again_seen: dict[str, list[LaterEpochs]] = field(default_factory=lambda: {how: [] for how in FRESHNESS})
    again_first_bytes: list[float] = field(default_factory=list)
    listings: list[float] = field(default_factory=list)
    window_excess: list[float] = field(default_factory=list)
    window_bytes: list[float] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LaterEpochs:
    """Traffic at the source in a run's later epochs."""

    epochs: int
    files: int
    bytes: float
    untiered_bytes: float
    operations: Counter[str]
    dropped: int

    @property
    def excess(self) -> int:
        """Returns the operations on files that dropped handoffs do not explain.

        More drops than are allowed explain nothing.
        """
        explained = min(self.dropped, math.floor(self.files * DROPS_MAX)) * len(FILE_OPERATIONS)
        return max(0, of_files(self.operations) - explained)


def of_files(operations: Mapping[str, int]) -> int:
    """Lookups, opens and reads of files: lookups beyond those that the listings of directories explain."""
    of_directories = LOOKUPS_A_LISTING * operations.get("OPENDIR", 0)
    return max(0, operations.get("LOOKUP", 0) - of_directories) + operations.get("OPEN", 0) + operations.get("READ", 0)


def moved(epoch: EpochFigures) -> SourceTraffic:
    """Returns the traffic of a watched epoch."""
    assert epoch.traffic
    return epoch.traffic


def most(seen: Iterable[LaterEpochs], operation: str) -> list[float]:
    """Returns the count of an operation in each run."""
    return [float(one.operations[operation]) for one in seen]
