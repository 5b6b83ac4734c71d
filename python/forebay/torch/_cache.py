"""The settings that a loader with a cache gives to the agent of its node."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forebay._off import is_off
from forebay._say import say
from forebay.loader._agent import AgentRank
from forebay.loader._joining import AgentJoining
from forebay.loader._place import place_of
from forebay.loader._plan import LoaderPlan
from forebay.loader._settings import LOOKING_AHEAD, AgentSettings, kept
from forebay.loader._threads import READ_AHEAD
from forebay.loader.dataset import is_located
from forebay.loader.mixture import Mixture
from forebay.loader.rows import FixedRows
from forebay.loader.source import READS_AT_ONCE, WINDOW_BYTES
from forebay.torch._keyed import datasets_of
from forebay.torch._order import ComputedOrder, OrderPlan

__all__ = ["agent_of"]

BATCH = 256
"""Samples of a batch that are assumed where a sampler makes batches of unknown size."""
USES_MAX = 2**32 - 1
READS_MAX = 256
"""Most concurrent reads of the agent."""

# Loaders with a cache are numbered as they are made, alike in all ranks.
_agents = itertools.count()


def agent_of(
    dataset: Any,  # noqa: ANN401  (by what it has)
    plan: OrderPlan,
    batch_size: int | None,
    batches_ahead: int,
    cache: tuple[str, ...],
    choices: Mapping[str, Any],
    planned: LoaderPlan,
) -> AgentRank | None:
    """Returns the rank of a new loader for the agent to serve, with the choices of `AgentSettings` of user and plan.

    None if Forebay is off, or the launcher does not say which ranks share the node. Raises `ValueError` if the cache is
    invalid, or the policy needs an order that is not known.
    """
    if is_off():
        return None
    # Invalid ones are refused now, not when the first epoch begins.
    for directory, _ in kept(cache).disks:
        _check_apart(directory, dataset)
    number = next(_agents)
    order, drop_last = _told(dataset, plan)
    policy = choices.get("policy", planned.choices.get("policy"))
    if order == "unknown" and policy in LOOKING_AHEAD:
        raise ValueError(
            f"policy={policy!r} looks ahead, and nobody knows the order of later epochs: give seed=, and neither a sampler, "
            'nor shuffle="blocks", nor a dataset with set_epoch; or policy="forebay"'
        )
    place = place_of(plan.rank, plan.world)
    if place is None:
        say("cache= is not used: the launcher does not say which ranks share this node", "fallback")
        return None
    planned.check_ranks(place.local_ranks)
    batch = batch_size or BATCH
    reads_max = min(READS_AT_ONCE * place.local_ranks, READS_MAX)
    settings = AgentSettings(
        uses=_requests(dataset, plan, batch * plan.world) if order == "unknown" else len(dataset),
        batch=batch,
        order=order,
        drop_last=drop_last,
        seed=(plan.seed or 0) % 2**64,
        window=batches_ahead + READ_AHEAD + 1,
        window_bytes=WINDOW_BYTES * place.local_ranks,
        **{"reads_max": reads_max, **planned.choices, **choices},
    )
    rows = dataset if isinstance(dataset, FixedRows) else None
    return AgentRank(AgentJoining(str(number), len(dataset), settings, place, cache, rows))


def _check_apart(directory: str, dataset: object) -> None:
    """Refuses a directory of the dataset's own: kept samples would be taken for a part of it, such as a class."""
    disk = Path(directory).resolve()
    for one in _single(dataset):
        folders: set[Path] = set()
        if isinstance(root := getattr(one, "root", None), str | os.PathLike):
            # Unlike Path.expanduser, this leaves '~' where nobody's home directory is known.
            folders.add(Path(os.path.expanduser(root)).resolve())  # noqa: PTH111
        is_inside = any(disk.is_relative_to(folder) for folder in folders)
        if is_located(one):
            # Who reads a sample is told why it can't be located.
            with contextlib.suppress(Exception):
                is_inside = is_inside or disk == Path(one.locate(0).path).parent.resolve()
        if is_inside:
            raise ValueError(f"cache=: {directory} lies in the dataset itself; name a directory of its own on a local disk")


def _single(dataset: object) -> Iterator[object]:
    """Yields the datasets that a dataset is made of."""
    for one in datasets_of(dataset):
        if isinstance(one, Mixture):
            for inner in one._datasets:
                yield from _single(inner)
        else:
            yield one


def _told(dataset: object, plan: OrderPlan) -> tuple[str, tuple[bool, bool]]:
    """Returns the order, and `drop_last` of sampler and loader, from which the agent can compute all epochs.

    `unknown` if it can't.
    """
    # A dataset that is told of the epoch may have its samples lie elsewhere in each.
    is_moving = any(callable(getattr(one, "set_epoch", None)) for one in datasets_of(dataset))
    if not isinstance(plan, ComputedOrder) or plan.blocks is not None or is_moving or (plan.shuffle and plan.seed is None):
        return "unknown", (False, False)
    return ("torch" if plan.shuffle else "sequential"), plan.drop_last


def _requests(dataset: Any, plan: OrderPlan, step: int) -> int:  # noqa: ANN401  (by what it has)
    """Returns the samples that all ranks use in an epoch; the dataset's length if a sampler has no length."""
    try:
        return max(1, min(len(plan) * step, USES_MAX))
    except TypeError:
        return max(1, len(dataset))
