"""A plan that a loader carries out: the table `[run]` of a plan file, which `forebay plan` prints.

If the file is a profile, its measurements of decoding by size are where the agent's model starts.
"""

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.loader._settings import cache_words, chosen_settings

__all__ = ["NO_PLAN", "LoaderPlan", "plan_of"]

CHOICES = ("policy", "schedule", "hedge_budget", "background_fill", "thread_tau", "thread_steps")
"""Keys of `[run]` that are arguments of the loader, too."""
READS_MAX = 4096


@dataclass(frozen=True)
class LoaderPlan:
    """A plan as a loader takes it.

    Attributes:
        name: the plan file, as messages name it.
        choices: settings of the agent by name.
        cache: words of `cache=`.
        ranks: ranks of a node that were planned for; None if the plan does not say.
    """

    name: str
    choices: Mapping[str, Any]
    cache: tuple[str, ...]
    ranks: int | None

    def check_ranks(self, local_ranks: int) -> None:
        """Refuses the plan of another machine, or too few reads for the node's ranks (`ValueError`)."""
        if self.ranks not in (None, local_ranks):
            raise ValueError(
                f"plan={self.name!r}: cluster.gpus = {self.ranks}, and this node has {local_ranks} ranks; plan for this machine again"
            )
        if (reads := self.choices.get("reads_max", local_ranks)) < local_ranks:
            raise ValueError(
                f"plan={self.name!r}: reads = {reads} are fewer than the {local_ranks} ranks of this node; give one each at least"
            )


NO_PLAN = LoaderPlan("", {}, (), None)
"""The plan of a loader that was given none."""


def plan_of(path: str | os.PathLike[str], samples: int) -> LoaderPlan:
    """Reads a plan file for a dataset of N `samples`.

    Raises:
        ValueError: the file can't be read, has no `[run]`, or is the plan of another dataset; in one line.
    """
    name = os.fspath(path)

    def refused(why: object) -> ValueError:
        return ValueError(f"plan={name!r}: {why}")

    try:
        table = tomllib.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise refused(getattr(error, "strerror", None) or error) from None
    if not isinstance(run := table.get("run"), dict):
        raise refused(f"it has no table [run]; append the lines that `forebay plan {name}` prints at its end")
    if unknown := sorted(run.keys() - {*CHOICES, "cache", "reads"}):
        raise refused(f"[run] has no key {unknown[0]}; it may have {', '.join((*CHOICES, 'cache', 'reads'))}")
    planned = _number(table, "dataset", "samples")
    if planned not in (None, samples):
        raise refused(f"dataset.samples = {planned}, and this dataset has {samples}; plan for this dataset again")
    try:
        choices = chosen_settings(**{key: run[key] for key in CHOICES if key in run})
        cache = cache_words(run.get("cache", ()))
    except ValueError as error:
        raise refused(error) from None
    if (reads := run.get("reads")) is not None:
        if not isinstance(reads, int) or isinstance(reads, bool) or not 1 <= reads <= READS_MAX:
            raise refused(f"reads = {reads!r}; give the most concurrent reads of a node, from 1 to {READS_MAX}")
        choices["reads_max"] = reads
    try:
        choices["profile"] = _profile(table)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise refused(
            "[[measured.preprocessing]] has no valid threads and by_size; measure it again: `forebay profile --preprocess`"
        ) from None
    return LoaderPlan(name, choices, cache, _number(table, "cluster", "gpus"))


def _profile(table: Mapping[str, Any]) -> tuple[tuple[int, int, float], ...]:
    """Returns what a profile has measured: sizes in bytes, threads, and seconds of one thread for a sample.

    Raises an error of one kind or another if a round of measurements lacks threads or sizes.
    """
    found = []
    for one in table.get("measured", {}).get("preprocessing", ()):
        if not (sizes := one["by_size"]):
            raise ValueError("no sizes")
        found += [(round(size["bytes"]), int(one["threads"]), float(size["seconds"])) for size in sizes]
    if not all(size >= 0 and 1 <= threads < 2**32 and 0 < seconds < math.inf for size, threads, seconds in found):
        raise ValueError("out of range")
    return tuple(found)


def _number(table: Mapping[str, Any], section: str, key: str) -> int | None:
    inner = table.get(section)
    found = inner.get(key) if isinstance(inner, dict) else None
    return found if isinstance(found, int) else None
