"""Changes that `forebay clone --set` makes in a clone: a seed, and numbers in the groups of optimizers."""

import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR

from forebay.clone._errors import DifferenceError

__all__ = ["change", "optimizers"]

Given = Mapping[str, Mapping[str, object]]

# `lr`, `lr*`, `lr[1]`, `lr[1]*`: a name, one group or all, and the sign of a factor.
_ASKED = re.compile(r"(?P<name>[^\[\]*]+)(?:\[(?P<group>\d+)\])?(?P<times>\*)?")
# Bounds out of which schedules such as OneCycleLR compute a number with each step.
_BOUNDS = ("max_{}", "min_{}", "base_{}")
# Lists, one number a group, in which schedulers keep the rates that they begin with or go back and forth between.
_RATES, _CYCLIC_RATES = ("base_lrs",), ("base_lrs", "max_lrs")


@dataclass(frozen=True)
class _Asked:
    """One change.

    Attributes:
        text: the change as the user wrote it, without the value.
        name: name of the number.
        group: number of the only group that is changed, over all optimizers; None for all groups.
        is_factor: whether the number is multiplied.
        value: the number, or the factor.
    """

    text: str
    name: str
    group: int | None
    is_factor: bool
    value: float

    @classmethod
    def parsed(cls, text: str, value: float) -> "_Asked":
        """Reads the part before the equals sign; raises `DifferenceError` if it has another form."""
        found = _ASKED.fullmatch(text)
        if found is None:
            raise DifferenceError(f"{text} can't be set: write NAME=VALUE, NAME*=FACTOR or NAME[GROUP]=VALUE, such as lr*=0.1")
        group = found["group"]
        return cls(text, found["name"], None if group is None else int(group), found["times"] is not None, value)

    def refused(self, why: str) -> DifferenceError:
        """Returns the error that refuses the change."""
        return DifferenceError(f"{self.text} can't be set: {why}")

    def changed(self, old: float) -> float:
        """Returns a number after the change."""
        return old * self.value if self.is_factor else self.value


def optimizers(given: Given) -> list[Optimizer]:
    """Returns the optimizers among a job's objects, in their order."""
    return [optimizer for optimizer in given["optimizer"].values() if isinstance(optimizer, Optimizer)]


def change(given: Given, name: str, value: float, rank: int) -> None:
    """See `Adapter.change`."""
    if name == "seed":
        _seed(int(value) + rank)
        return
    asked = _Asked.parsed(name, value)
    groups = [group for optimizer in optimizers(given) for group in optimizer.param_groups]
    schedulers = [one for scheduler in given["scheduler"].values() for one in (scheduler, *getattr(scheduler, "_schedulers", []))]
    chosen = _chosen(asked, groups)
    _check(asked, chosen, schedulers)
    for group in chosen:
        for key in (asked.name, f"initial_{asked.name}", *(_bounds(asked.name, group) if asked.is_factor else ())):
            if _is_number(group.get(key)):
                _set_number(group, key, asked.changed)
    if asked.name == "lr":
        places = {id(group) for group in chosen}
        for scheduler in {id(one): one for one in schedulers}.values():
            _set_rates(scheduler, asked, _numbers(given, scheduler, places))


def _chosen(asked: _Asked, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups that are changed."""
    having = [group for group in groups if _is_number(group.get(asked.name))]
    if not having:
        numbers = {(key, isinstance(old, bool)) for group in groups for key, old in group.items() if _is_number(old)}
        known = ", ".join(f"{key} (0 or 1)" if is_truth else key for key, is_truth in sorted(numbers | {("seed", False)}))
        raise asked.refused(f"the optimizer has no number of that name; there are {known}")
    if asked.group is None:
        return having
    if asked.group >= len(groups) or not _is_number(groups[asked.group].get(asked.name)):
        there = ", ".join(str(number) for number, group in enumerate(groups) if _is_number(group.get(asked.name)))
        raise asked.refused(f"no such group; {asked.name} is in {there}")
    return [groups[asked.group]]


def _check(asked: _Asked, groups: Sequence[dict[str, Any]], schedulers: Sequence[object]) -> None:
    """Refuses a change that the next step would undo, that makes no sense, or that would level groups which differ."""
    name = asked.name
    is_truth = any(isinstance(group[name], bool) for group in groups)
    if is_truth and (asked.is_factor or asked.value not in (0, 1)):
        raise DifferenceError(f"{asked.text} can't be set to {asked.value:g}: it is a truth value, 0 or 1")
    if name == "lr" and asked.value < 0:
        raise asked.refused("a learning rate can't be negative")
    cyclic = [one for one in schedulers if isinstance(one, CyclicLR) and (name == "lr" or (one.cycle_momentum and "momentum" in name))]
    if cyclic and not (asked.is_factor and name == "lr"):
        raise asked.refused("with each step CyclicLR computes it again from bounds of its own")
    if asked.is_factor:
        return
    if bounds := [bound for group in groups for bound in _bounds(name, group)]:
        raise asked.refused(f"with each step a schedule computes it again from {' and '.join(dict.fromkeys(bounds))}: set these")
    values = {key: [group[key] for group in groups if _is_number(group.get(key))] for key in (name, f"initial_{name}")}
    for key, numbers in values.items():
        if len({float(number) for number in numbers}) > 1:
            told = ", ".join(f"{float(number):.6g}" for number in numbers)
            one = f"set one by {name}[GROUP]={asked.value:g}"
            mend = one if is_truth else f"scale them by {name}*=FACTOR, or {one}"
            raise asked.refused(f"the optimizer's groups differ in {key} ({told}), and would no longer: {mend}")


def _bounds(name: str, group: Mapping[str, object]) -> list[str]:
    """Returns the names of a group's bounds, if a schedule computes the number out of such."""
    return [bound for bound in (form.format(name) for form in _BOUNDS) if bound in group] if f"max_{name}" in group else []


def _numbers(given: Given, scheduler: Any, chosen: set[int]) -> list[int]:  # noqa: ANN401  (of any class)
    """Returns the numbers of the changed groups among a scheduler's own, or among all if it names no optimizer."""
    driven = getattr(scheduler, "optimizer", None)
    own = [optimizer for optimizer in optimizers(given) if optimizer is driven] or optimizers(given)
    return [number for number, group in enumerate(group for one in own for group in one.param_groups) if id(group) in chosen]


def _set_rates(scheduler: Any, asked: _Asked, numbers: Sequence[int]) -> None:  # noqa: ANN401  (of any class)
    for name in _CYCLIC_RATES if isinstance(scheduler, CyclicLR) else _RATES:
        rates = getattr(scheduler, name, None)
        if isinstance(rates, list):
            new = [asked.changed(rate) if number in numbers else rate for number, rate in enumerate(rates)]
            setattr(scheduler, name, new)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _set_number(group: dict[str, Any], key: str, changed: Callable[[float], float]) -> None:
    old = group[key]
    if isinstance(old, torch.Tensor):
        old.fill_(changed(float(old)))
    else:
        # `maximize` stays a truth value; a weight decay of 0 may well become 0.01.
        group[key] = bool(changed(old)) if isinstance(old, bool) else changed(old)


def _seed(seed: int) -> None:
    seed %= 2**32
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
