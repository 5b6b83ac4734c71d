"""Settings of a loader with a cache: the places for samples, the policy and the schedule."""

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import forebay
from forebay import _core

__all__ = ["LOOKING_AHEAD", "POLICIES", "SCHEDULES", "AgentSettings", "Kept", "cache_words", "check_choices", "kept"]

_POLICIES = _core.loader_policies()
POLICIES = tuple(name for name, _, _ in _POLICIES)
"""Names of the policies, as in `forebay plan`."""
SCHEDULES = tuple(_core.loader_schedules())
"""Names of the schedules, as in `forebay plan`."""
LOOKING_AHEAD = frozenset(name for name, looks_ahead, _ in _POLICIES if looks_ahead)
"""Policies that need the order of later epochs."""
_UNBOUNDED = frozenset(name for name, _, is_unbounded in _POLICIES if is_unbounded)
"""Policies whose prefetch only memory bounds."""
FILL_USES = 1 << 14
"""Samples that a rank requests ahead where reading goes beyond the window."""


@dataclass(frozen=True)
class Kept:
    """The places for samples on this node, for all of its ranks together.

    Attributes:
        memory_bytes: bytes in memory.
        disks: directories and the most bytes in each, the fastest first.
        directory: the agent's directory; None if the agent could not be started.
        why: the reason why it could not.
    """

    memory_bytes: int
    disks: tuple[tuple[str, int], ...]
    directory: str | None
    why: str | None


def kept(cache: Sequence[str]) -> Kept:
    """Resolves what a user gave, and starts the agent if none stands.

    Args:
        cache: each `DIR=SIZE`, as `forebay run --tier` takes it, or `ram=SIZE`.

    Raises:
        ValueError: one of them can't be.
    """
    # Each one word: what begins with a dash, such as a size below zero, would be taken for an option.
    options = [f"--{word}" if word.startswith("ram=") else f"--tier={word}" for word in cache]
    asked = subprocess.run([str(forebay.command()), "loader-agent", *options], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        said = asked.stderr.strip().removeprefix("forebay: ") or f"forebay loader-agent ended with status {asked.returncode}"
        # It names options that nobody has written.
        raise ValueError(f"cache={list(cache)}: {re.sub('^--(ram|tier)(: | [^:]*: )', '', said)}")
    found = json.loads(asked.stdout)
    disks = tuple((disk["dir"], disk["bytes"]) for disk in found["disks"])
    return Kept(found["memory_bytes"], disks, found["directory"], found["why"])


def cache_words(cache: object) -> tuple[str, ...]:
    """Returns the words of a user's `cache=`, one for each place.

    Raises:
        ValueError: it is invalid, or names memory twice.
    """
    words = (cache,) if isinstance(cache, str) else tuple(cache) if isinstance(cache, list | tuple) else (None,)
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f'cache={cache!r}: give "DIR=SIZE", "ram=SIZE", or a list of these')
    if sum(word.startswith("ram=") for word in words) > 1:
        raise ValueError(f"cache={cache!r}: there is one memory; give ram= once, with all that it may take")
    return words


def check_choices(policy: str | None, schedule: str | None, hedge_budget: float | None, background_fill: object) -> None:
    """Refuses what a user can't choose; None is no choice.

    Raises:
        ValueError: one of them can't be.
    """
    for name, choice, choices in (("policy", policy, POLICIES), ("schedule", schedule, SCHEDULES)):
        if choice is not None and choice not in choices:
            raise ValueError(f"{name}={choice!r}: give one of {', '.join(choices)}")
    # For Python a truth is a number, too.
    is_share = isinstance(hedge_budget, int | float) and not isinstance(hedge_budget, bool) and 0 <= hedge_budget <= 1
    if hedge_budget is not None and not is_share:
        raise ValueError(f"hedge_budget={hedge_budget!r}: give the share of reads that may be made twice, from 0 to 1")
    if background_fill is not None and not isinstance(background_fill, bool):
        raise ValueError(f"background_fill={background_fill!r}: give True or False")


@dataclass(frozen=True)
class AgentSettings:
    """What all ranks of a loader must want alike.

    Attributes:
        uses: samples of the dataset, where the order is known; else those that all ranks together use in an epoch.
        batch: samples of a batch of one rank.
        seed: of the order; 0 where there is none.
        window: iterations ahead that samples are requested.
        window_bytes: memory that samples pass through between their fetch and their use, of all ranks of the node.
        reads_max: most reads at once, for all ranks of the node.
        policy: which samples stay, by its name in `forebay plan`.
        schedule: which read comes next, likewise.
        hedge_budget: share of reads that may be made again where they take long.
        order: how the dataset is permuted in each epoch: `torch`, `sequential`, or `unknown`, where the agent is not to
            compute it.
        drop_last: of the sampler, and of the loader, where the order is known.
        background_fill: samples beyond the window are read into memory that is free, when nothing else is to be done.
    """

    uses: int
    batch: int
    seed: int
    window: int
    window_bytes: int
    reads_max: int = 64
    policy: str = "forebay"
    schedule: str = "earliest_deadline"
    hedge_budget: float = 0.01
    order: str = "unknown"
    drop_last: tuple[bool, bool] = (False, False)
    background_fill: bool = False

    @property
    def ahead(self) -> int:
        """Iterations ahead that a rank asks for samples."""
        is_far = self.background_fill or self.policy in _UNBOUNDED
        return max(self.window, FILL_USES // self.batch) if is_far else self.window
