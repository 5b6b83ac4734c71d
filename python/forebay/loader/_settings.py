"""Settings of a loader with a cache: the places for samples, the policy and the schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import forebay
from forebay import _core

__all__ = ["LOOKING_AHEAD", "POLICIES", "SCHEDULES", "AgentSettings", "Kept", "cache_words", "chosen_settings", "kept"]

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
    disks: Sequence[tuple[str, int]]
    directory: str | None
    why: str | None


def kept(cache: Sequence[str]) -> Kept:
    """Resolves the places that a user gave, and starts the agent if none runs.

    Args:
        cache: each `DIR=SIZE`, as `forebay run --tier` takes it, or `ram=SIZE`.

    Raises:
        ValueError: one of them is invalid.
    """
    return Kept(*_core.start_loader_agent(f"cache={list(cache)}", cache, forebay.command()))


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


def _choice(default: Any, is_valid: Callable[[Any], bool], mend: str) -> Any:  # noqa: ANN401  (of any type)
    """Declares a setting that a user may choose: its default, its check, and the mend that a refusal names."""
    return field(default=default, metadata={"is_valid": is_valid, "mend": mend})


def _is_share(value: object) -> bool:
    # For Python a bool is a number, too.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_steps(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**32


@dataclass(frozen=True)
class AgentSettings:
    """The settings that have to be equal in all ranks of a loader.

    Attributes:
        uses: samples of the dataset if the order is known; otherwise those that all ranks together use in an epoch.
        batch: samples of a batch of one rank.
        seed: seed of the order; 0 without one.
        window: iterations ahead that samples are requested.
        window_bytes: bytes of memory for samples between their fetch and their use, for all ranks of the node.
        reads_max: most concurrent reads, for all ranks of the node.
        policy: name of the policy that decides which samples stay, as in `forebay plan`.
        schedule: name of the schedule that decides which read comes next, as in `forebay plan`.
        hedge_budget: share of reads that may be made a second time if the first takes long.
        thread_tau: share of a step by which a rank may be late before threads move to it, and share of the longest
            decoding that moving threads must gain.
        thread_steps: steps between two decisions on threads.
        profile: measurements of decoding that a plan has, with which the agent's model starts: mean size of samples in
            bytes, threads at once, and seconds of one thread for a sample.
        order: permutation of the dataset in each epoch: `torch`, `sequential`, or `unknown` if the agent is not to
            compute it.
        drop_last: `drop_last` of the sampler, and of the loader, if the order is known.
        background_fill: whether samples beyond the window are read into free memory when nothing else is to be done.
    """

    uses: int
    batch: int
    seed: int
    window: int
    window_bytes: int
    reads_max: int = 64
    policy: str = _choice("forebay", POLICIES.__contains__, f"give one of {', '.join(POLICIES)}")
    schedule: str = _choice("earliest_deadline", SCHEDULES.__contains__, f"give one of {', '.join(SCHEDULES)}")
    hedge_budget: float = _choice(0.01, _is_share, "give the share of reads that may be made twice, from 0 to 1")
    thread_tau: float = _choice(0.05, lambda value: _is_share(value) and value < 1, "give a share of a step, from 0 to below 1")
    thread_steps: int = _choice(1, _is_steps, "give a number of steps, from 1")
    profile: tuple[tuple[int, int, float], ...] = ()
    order: str = "unknown"
    drop_last: tuple[bool, bool] = (False, False)
    background_fill: bool = _choice(False, lambda value: isinstance(value, bool), "give True or False")

    @property
    def ahead(self) -> int:
        """Iterations ahead that a rank requests samples."""
        is_far = self.background_fill or self.policy in _UNBOUNDED
        return max(self.window, FILL_USES // self.batch) if is_far else self.window


def chosen_settings(**choices: Any) -> dict[str, Any]:
    """Returns the settings that a user has chosen, checked; None stands for no choice.

    Raises:
        ValueError: a choice is invalid.
    """
    declared = {one.name: one.metadata for one in fields(AgentSettings)}
    chosen = {name: choice for name, choice in choices.items() if choice is not None}
    for name, choice in chosen.items():
        if not declared[name]["is_valid"](choice):
            raise ValueError(f"{name}={choice!r}: {declared[name]['mend']}")
    return chosen
