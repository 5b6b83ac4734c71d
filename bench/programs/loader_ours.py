"""Our loader, with the node's agent behind it: the one place that knows how it is asked for what is measured."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from forebay.torch import DataLoader

MEMORY = "memory_bytes"
# Uses that the agent left to the ranks.
LEFT = ("refused_no_room", "refused_failed", "refused_unknown")
# Of the agent's settings those that users choose, too.
CHOICES = ("policy", "schedule", "background_fill")


def data_loader(dataset: Any, batch: int, agent: Mapping[str, Any] | None, **options: Any) -> tuple[Any, Callable[[], dict[str, Any]]]:  # noqa: ANN401
    """A loader, and a function that tells what the agent has done so far.

    What users can't say, such as a window that is scaled down as the data are, is put into the settings that the loader
    has made, before it joins the agent.

    Args:
        dataset: says where its samples lie.
        batch: samples of a batch.
        agent: `memory_bytes` that may be kept, and other settings of the agent; None: the rank reads for itself.
        options: of the loader.
    """
    if agent is None:
        return DataLoader(dataset, batch, report=False, **options), dict
    options |= {name: agent[name] for name in CHOICES if name in agent}
    loader: Any = DataLoader(dataset, batch, report=False, cache=f"ram={agent[MEMORY]}B", **options)
    joins = loader._agent
    if joins is None:
        sys.exit("the loader uses no agent here")
    rest = {name: value for name, value in agent.items() if name not in (MEMORY, *CHOICES)}
    if rest:
        joins.joining.settings = dataclasses.replace(joins.settings, **rest)

    def told() -> dict[str, Any]:
        if joins.lost is not None:
            sys.exit(f"the loader agent does not serve: {joins.lost}")
        figures = joins.figures()
        return {**figures, "left_to_ranks": sum(figures[name] for name in LEFT)}

    return loader, told


def settings(text: str | None) -> dict[str, Any] | None:
    """Returns the agent's options, from the command line."""
    return None if text is None else json.loads(text)
