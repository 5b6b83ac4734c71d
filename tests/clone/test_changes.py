"""Changes by `forebay clone --set` to an optimizer's groups.

Compared with the same program that began with the changed numbers.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import forebay.clone as clone
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, train
from tests.clone.jobs import StateJob, full

RATES = (0.1, 0.01)
DECAYS = (0.02, 0.0)


def layered(scheduler: Callable[[torch.optim.Optimizer], Any] | None = None, factor: float = 1.0) -> StateJob:
    """Two groups with rates and decays of their own; with a factor, the rates that a change should lead to."""
    jobs.seed(1)
    model = jobs.StateNet()
    head, body = list(model.head.parameters()), list(model.features.parameters())
    groups = [
        {"params": parameters, "lr": rate * factor, "weight_decay": decay}
        for parameters, rate, decay in zip((head, body), RATES, DECAYS, strict=True)
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
    made = StateJob(model, optimizer)
    made.scheduler = scheduler(optimizer) if scheduler else None
    return made


def values(made: StateJob, name: str) -> list[float]:
    return [float(group[name]) for group in made.optimizer.param_groups]


def changed(made: StateJob, name: str, value: float) -> None:
    made.inventory().change(name, value)


def stepped(made: StateJob, steps: int) -> list[list[float]]:
    """The rates of each step, without training."""
    rates = []
    for _ in range(steps):
        made.optimizer.step()
        if made.scheduler:
            made.scheduler.step()
        rates.append(values(made, "lr"))
    return rates


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any] | None] = {
    "none": None,
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "sequential": jobs.warmed_cosine,
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda step: 0.9**step, lambda step: 0.8**step]),
    "chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)]),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=[group["lr"] for group in o.param_groups], total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(
        o, [group["lr"] / 10 for group in o.param_groups], [group["lr"] for group in o.param_groups], step_size_up=3, cycle_momentum=False
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_factor_keeps_the_proportions_of_rates(schedule: Callable[[torch.optim.Optimizer], Any] | None) -> None:
    """From the change on the rates are those of a program that began with a tenth."""
    made, tenth = layered(schedule), layered(schedule, 0.1)
    stepped(made, 2)
    stepped(tenth, 2)
    changed(made, "lr*", 0.1)
    assert values(made, "lr") == pytest.approx(values(tenth, "lr"))
    for one, other in zip(stepped(made, 9), stepped(tenth, 9), strict=True):
        assert one == pytest.approx(other)


def test_a_number_that_would_level_groups_is_refused() -> None:
    made = layered()
    with pytest.raises(
        clone.DifferenceError,
        match=r"^lr can't be set: the optimizer's groups differ in lr \(0\.1, 0\.01\), and would no longer: scale them by lr\*=FACTOR, "
        r"or set one by lr\[GROUP\]=0\.5$",
    ):
        changed(made, "lr", 0.5)
    with pytest.raises(clone.DifferenceError, match=r"groups differ in weight_decay \(0\.02, 0\)"):
        changed(made, "weight_decay", 0.5)
    assert (values(made, "lr"), values(made, "weight_decay")) == ([*RATES], [*DECAYS]), "nothing was changed"
    changed(made, "momentum", 0.5)
    assert values(made, "momentum") == [0.5, 0.5], "in which they do not differ"


def test_rates_that_only_a_schedule_made_alike_are_not_levelled() -> None:
    """At its last step a schedule has brought both to zero; what it begins with differs."""
    made = layered(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=2))
    stepped(made, 2)
    assert values(made, "lr") == [0.0, 0.0]
    with pytest.raises(clone.DifferenceError, match=r"groups differ in initial_lr \(0\.1, 0\.01\)"):
        changed(made, "lr", 0.5)


def test_one_group_is_changed_alone() -> None:
    made = layered(SCHEDULES["step"])
    changed(made, "lr[1]", 0.5)
    changed(made, "weight_decay[0]*", 2.0)
    assert (values(made, "lr"), values(made, "weight_decay")) == ([0.1, 0.5], [0.04, 0.0])
    assert made.scheduler.base_lrs == [0.1, 0.5]
    changed(made, "weight_decay*", 0.5)
    assert values(made, "weight_decay") == [0.02, 0.0]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("lr*", -1.0, r"^lr\* can't be set: a learning rate can't be negative$"),
        ("lr[2]", 0.1, r"^lr\[2\] can't be set: no such group; lr is in 0, 1$"),
        ("lr[x]", 0.1, r"^lr\[x\] can't be set: write NAME=VALUE, NAME\*=FACTOR or NAME\[GROUP\]=VALUE"),
        ("nesterov*", 2.0, r"^nesterov\* can't be set to 2: it is a truth value, 0 or 1$"),
        ("lrr*", 2.0, r"^lrr\* can't be set: the optimizer has no number of that name; there are .*lr, .*seed"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: float, why: str) -> None:
    with pytest.raises(clone.DifferenceError, match=why):
        changed(layered(), name, value)


def test_a_rate_that_is_a_tensor_is_scaled_in_place() -> None:
    made = jobs.job(jobs.adamw)
    rates = [group["lr"] for group in made.optimizer.param_groups]
    changed(made, "lr*", 0.5)
    assert made.optimizer.param_groups[1]["lr"] is rates[1]
    assert values(made, "lr") == pytest.approx([0.0005, 0.005])


def test_schedulers_of_several_optimizers_are_changed_each_for_its_own() -> None:
    one, two = layered(SCHEDULES["step"]), layered(SCHEDULES["step"], 10.0)
    described = one.inventory(
        model={"a": one.model, "b": two.model},
        optimizer={"a": one.optimizer, "b": two.optimizer},
        scheduler={"a": one.scheduler, "b": two.scheduler},
    )
    described.change("lr[2]", 7.0)
    assert (one.scheduler.base_lrs, two.scheduler.base_lrs) == ([0.1, 0.01], [7.0, 0.1])


def test_p14b_a_clone_is_asked_for_with_a_factor(here: CloneNode, opened: Opened) -> None:
    made, other = full(1), full(2)
    session = opened(made)
    train(made, session, 3)
    with here.cloning("trunk", "--at", "5", "--set", "lr*=0.5", "--set", "momentum[0]=0.25") as asked:
        train(made, session, 2, 4)
        expected = [group["lr"] * 0.5 for group in made.optimizer.param_groups]
        resumed = opened(other, asked=asked)
    assert [group["lr"] for group in other.optimizer.param_groups] == expected
    assert [group["momentum"] for group in other.optimizer.param_groups] == [0.25]
    assert resumed.lineage
    assert resumed.lineage.changes == {"lr*": 0.5, "momentum[0]": 0.25}
