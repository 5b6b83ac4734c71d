"""What is as it was at the last look is not described again (P14): whatever a program does in between, the description is a fresh one's."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from forebay import clone
from forebay.clone._adapter import Described
from forebay.clone._values import Path


@dataclass
class Job:
    """A small job with all that can change between two looks."""

    model: nn.Module = field(
        default_factory=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 4 * 4, 6))
    )
    optimizer: Any = None
    ema: dict[str, Any] = field(default_factory=lambda: {"mean": torch.zeros(3), "of": {"many": torch.ones(2, 3), "note": "x"}})
    counters: dict[str, Any] = field(default_factory=lambda: {"epoch": 0, "step": 1000})

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.rand(2, 3, 6, 6)).sum().backward()
        self.optimizer.step()

    def inventory(self) -> clone.Inventory:
        return clone.inventory(
            model=self.model, optimizer=self.optimizer, ema=self.ema, counters=self.counters, scheduler=None, scaler=None, loader=None
        )

    @property
    def last(self) -> nn.Linear:
        last = self.model[3]  # type: ignore[index]
        assert isinstance(last, nn.Linear)
        return last

    def first_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state[self.last.weight]
        return state


def other_data(job: Job) -> None:
    job.last.weight.data = torch.rand(6, 64)


def other_shape(job: Job) -> None:
    # At the same address.
    job.last.weight.data = job.last.weight.data.view(8, 48)


def other_strides(job: Job) -> None:
    weight = job.last.weight.data
    job.last.weight.data = weight.as_strided((6, 64), (1, 6))


def other_type(job: Job) -> None:
    job.ema["mean"].data = job.ema["mean"].data.view(torch.int32)


def other_parameter(job: Job) -> None:
    job.last.weight = nn.Parameter(job.last.weight.detach())


def another_layer(job: Job) -> None:
    job.model.add_module("more", nn.Linear(6, 2))


def other_name(job: Job) -> None:
    # By `del` the others would be numbered anew.
    job.model._modules["more"] = job.model._modules.pop("3")


def frozen(job: Job) -> None:
    job.last.weight.requires_grad_(False)


def no_gradients(job: Job) -> None:
    job.optimizer.zero_grad(set_to_none=True)


def other_moment(job: Job) -> None:
    job.first_state()["exp_avg"] = torch.rand(6, 64)


def moments_swapped(job: Job) -> None:
    state = job.first_state()
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"]


def moment_gone(job: Job) -> None:
    del job.first_state()["exp_avg"]


def moment_a_number(job: Job) -> None:
    job.first_state()["step"] = 1000.0


def state_gone(job: Job) -> None:
    del job.optimizer.state[job.last.weight]


def other_number(job: Job) -> None:
    job.counters["step"] += 1


def a_number_of_another_type(job: Job) -> None:
    job.counters["epoch"] = False


def other_key(job: Job) -> None:
    job.ema["of"]["else"] = job.ema["of"].pop("note")


def other_text(job: Job) -> None:
    job.ema["of"]["note"] = "y"


def other_nesting(job: Job) -> None:
    job.ema["mean"], job.ema["of"] = job.ema["of"], job.ema["mean"]


def a_list(job: Job) -> None:
    job.ema["mean"] = [job.ema["mean"]]


def other_rate(job: Job) -> None:
    job.optimizer.param_groups[0]["lr"] = 0.2


CHANGES: list[Callable[[Job], None]] = [
    Job.step,
    other_data,
    other_shape,
    other_strides,
    other_type,
    other_parameter,
    another_layer,
    other_name,
    frozen,
    no_gradients,
    other_moment,
    moments_swapped,
    moment_gone,
    moment_a_number,
    state_gone,
    other_number,
    a_number_of_another_type,
    other_key,
    other_text,
    other_nesting,
    a_list,
    other_rate,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_p14_what_has_changed_since_the_last_look_is_described_as_it_is(change: Callable[[Job], None]) -> None:
    job = Job()
    known = job.inventory()
    before = known.manifest()
    assert known.manifest() == before
    change(job)
    after = known.manifest()
    assert after == job.inventory().manifest()
    assert after != before
    with known.capture() as capture:
        assert capture.manifest == after


def test_what_has_not_changed_is_not_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    known = job.inventory()
    known.manifest()
    described: list[str] = []

    describe = known.adapter.describe

    def noting(value: object, path: Path) -> Described | None:
        described.append("/".join(path))
        return describe(value, path)

    monkeypatch.setattr(known.adapter, "describe", noting)
    job.step()
    known.manifest()
    # Generators give a new tensor each time they are asked, and gradients are new after `zero_grad`.
    assert {path.split("/")[0] for path in described if not path.startswith("model/gradients")} == {"generators"}


def test_nothing_is_kept_of_what_the_program_has_let_go() -> None:
    job = Job()
    known = job.inventory()
    known.manifest()
    alive = [weakref.ref(parameter.grad) for parameter in job.model.parameters()] + [weakref.ref(job.ema["mean"])]
    job.optimizer.zero_grad(set_to_none=True)
    del job.ema["mean"]
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)
