"""State beside parameters, buffers and what optimizers keep by parameter.

Carried, whether or not a `state_dict` has it, or named.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn

import forebay.clone as clone
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, train
from tests.clone.jobs import StateJob, full


class CountedPasses(nn.Module):
    """Adds to its input what it keeps, and keeps more with each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("unit", torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.kept() / 100

    def kept(self) -> float:
        raise NotImplementedError


class Saving(CountedPasses):
    """By `_save_to_state_dict`, as quantizers do."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [(0.0,)]

    def kept(self) -> float:
        object.__setattr__(self, "held", [(self.held[0][0] + 1.0,)])
        return self.held[0][0]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: ANN401
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}held"] = self.held[0][0]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:  # noqa: ANN401
        self.held = [(state_dict.pop(f"{prefix}held"),)]
        super()._load_from_state_dict(state_dict, prefix, *others)


class Closed:
    """Holds a number where nobody sees it."""

    def __init__(self) -> None:
        number = 0.0

        def add() -> float:
            nonlocal number
            number += 1.0
            return number

        def put(value: float) -> None:
            nonlocal number
            number = value

        self.add, self.get, self.put = add, lambda: number, put


class Hooked(CountedPasses):
    """By hooks, out of an object that can't be looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = Closed()
        self._register_state_dict_hook(  # type: ignore[no-untyped-call]
            lambda module, state, prefix, _: state.update({f"{prefix}closed": module.closed.get()})
        )
        self._register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
            lambda state, prefix, *_: self.closed.put(state.pop(f"{prefix}closed"))
        )

    def kept(self) -> float:
        return self.closed.add()


class Overridden(CountedPasses):
    """By a `state_dict` that gives nested dictionaries, and halves of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = Closed()
        self.weight = nn.Parameter(torch.rand(3) / 3)

    def kept(self) -> float:
        return self.closed.add()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        state[f"{prefix}more"] = {"closed": self.closed.get(), "half": self.weight.detach().half(), "own": self.unit}  # type: ignore[no-untyped-call]
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:  # noqa: ANN401
        more = state_dict.pop(f"{prefix}more")
        self.closed.put(more["closed"])
        with torch.no_grad():
            self.weight.copy_(more["half"])
        super()._load_from_state_dict(state_dict, prefix, *others)


class PlainAttributes(CountedPasses):
    """In attributes that no `state_dict` has, of each kind that is carried."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.label, self.limit = 0, "begun", 3
        self.best: float | None = None
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.seen: set[int] = set()
        self.sums = {"all": [0.0]}
        self.mean = torch.zeros(1)
        self.array = np.zeros(2)
        self.last: torch.Tensor | None = None
        self.generator = torch.Generator().manual_seed(1)
        self.view = self.unit

    def kept(self) -> float:
        self.steps += 1
        self.label = f"step {self.steps}"
        self.best = max(self.best or 0.0, float(self.steps % 4))
        self.recent.append(float(self.steps))
        self.seen.add(self.steps % 5)
        self.sums["all"][0] += self.steps
        self.mean += (self.steps - self.mean) / 2
        self.array[0] += self.steps
        self.last = self.mean * 2 if self.last is None else self.last + self.mean
        self.late = [torch.full((2,), float(self.steps))]
        drawn = torch.rand(1, generator=self.generator)
        numbers = [*self.recent, *self.seen, len(self.label), self.best, float(self.mean), self.array[0], float(self.last), float(drawn)]
        return float(sum(numbers)) + self.sums["all"][0] + float(self.late[0][0])


def within(kind: Callable[[], nn.Module]) -> Callable[[int], StateJob]:
    def make(number: int) -> StateJob:
        jobs.seed(number)
        model = nn.Sequential(collections.OrderedDict(kept=kind(), net=jobs.StateNet()))
        return StateJob(model, jobs.momentum(model))

    return make


@pytest.mark.parametrize("kind", [Saving, Hooked, Overridden, PlainAttributes])
def test_p14b_a_module_s_hidden_state_is_carried(here: CloneNode, opened: Opened, kind: Callable[[], nn.Module]) -> None:
    make = within(kind)
    made, other, plain = make(1), make(2), make(1)
    jobs.seed(1)
    session = opened(made)
    train(made, session, 3)
    with here.cloning("trunk", "--at", "5") as asked:
        train(made, session, 6, 4)
        resumed = opened(other, asked=asked)
        with here.cloning("trunk.1", "--at", "7") as again:
            train(other, resumed, 4, 6)
            third = make(3)
            train(third, opened(third, asked=again), 2, 8)
    assert other.losses == made.losses[5:]
    assert third.losses == made.losses[7:]
    jobs.seed(1)
    train(plain, None, 9)
    assert made.losses == plain.losses, "as though nobody had asked"


def metrics() -> dict[str, Callable[[], Any]]:
    classes = torchmetrics.classification
    kinds: dict[str, Callable[[], Any]] = {
        "mean": torchmetrics.MeanMetric,
        "cat": torchmetrics.CatMetric,
        "min-max": lambda: torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()),
        "running": lambda: torchmetrics.wrappers.Running(torchmetrics.SumMetric(), window=2),
        "collection": lambda: torchmetrics.MetricCollection(
            [classes.MulticlassPrecision(3, average="macro"), classes.MulticlassRecall(3, average="macro")]
        ),
    }

    def persistent() -> Any:  # noqa: ANN401
        metric = torchmetrics.MeanMetric()
        metric.persistent(True)
        return metric

    return {**kinds, "persistent": persistent}


def update(metric: Any) -> str:  # noqa: ANN401
    """Updates a metric once more, and returns its value as text."""
    if isinstance(metric, torchmetrics.MetricCollection):
        metric.update(torch.rand(8, 3), torch.randint(0, 3, (8,)))
    else:
        metric.update(torch.rand(4))
    return str(metric.compute())


@pytest.mark.parametrize("where", ["others", "model"])
@pytest.mark.parametrize("kind", metrics().values(), ids=metrics().keys())
def test_p14b_metrics_are_carried(kind: Callable[[], Any], where: str) -> None:
    """In each of two: updates before the fork, and the same ones afterwards."""
    pairs = []
    for number in (1, 2):
        made, metric = full(number), kind()
        if where == "model":
            made.model.add_module("metric", metric)
        others = {"metric": metric} if where == "others" else {}
        pairs.append((made.inventory(others=others), metric))
    (state, original), (loaded, copy) = pairs
    for _ in range(3):
        update(original)
    with state.capture() as capture:
        loaded.load(capture)
        assert loaded.manifest() == capture.manifest
        said = [update(original) for _ in range(3)]
        loaded.load(capture)
    assert [update(copy) for _ in range(3)] == said
    original.reset()
    copy.reset()
    assert update(original) != update(copy), "they draw on"


def test_a_schedule_of_dropout_is_carried() -> None:
    """A number of one of torch's own modules."""
    original, other = full(1), full(2)
    described, loaded = original.inventory(), other.inventory()
    original.model.get_submodule("features.3").p = 0.1  # type: ignore[assignment]
    with described.capture() as capture:
        loaded.load(capture)
    assert other.model.get_submodule("features.3").p == 0.1


class Counting(torch.optim.SGD):
    """Keeps a number in an attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = 0

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        self.count += 1
        self.param_groups[0]["lr"] = 0.1 / self.count
        return super().step(closure)


def carry(optimizer: torch.optim.Optimizer, more: dict[str, int]) -> None:
    """Has an optimizer's `state_dict` carry a dictionary."""

    def save(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["more"] = dict(more)

    def load(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        more.update(state["more"])

    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)


def test_an_optimizer_s_hidden_state_is_carried() -> None:
    """An attribute of its own, and what hooks have added to its `state_dict`."""
    held: list[dict[str, int]] = [{"more": 0}, {"more": 0}]
    made = [jobs.job(lambda model: Counting(model.parameters(), lr=0.1, momentum=0.9), number) for number in (1, 2)]
    for one, more in zip(made, held, strict=True):
        carry(one.optimizer, more)
    original, other = made
    states = [one.inventory() for one in made]
    for _ in range(3):
        original.step()
    held[0]["more"] = 7
    with states[0].capture() as capture:
        states[1].load(capture)
    assert held[1] == {"more": 7}
    jobs.seed(1)
    original.step()
    jobs.seed(1)
    other.generators["torch"].set_state(original.generators["torch"].get_state())
    assert other.optimizer.count == original.optimizer.count - 1  # type: ignore[attr-defined]


def test_a_state_dict_of_an_optimizer_s_own_is_refused() -> None:
    made = full(1)
    made.optimizer.state_dict = dict  # type: ignore[method-assign]
    with pytest.raises(clone.UndescribableError, match="has a state_dict of its own"):
        made.inventory()


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.thing: object = Closed()


def test_what_can_not_be_carried_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    made = full(1)
    made.model.add_module("strange", Strange())
    described = made.inventory()
    described.manifest()
    assert capfd.readouterr().err == ""
    made.model.get_submodule("strange").thing = Closed()  # type: ignore[assignment]
    described.manifest()
    described.manifest()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "model/strange/thing, a tests.clone.test_hidden.Closed, has changed while training, and a fork does not carry it" in said


def test_a_state_dict_s_value_that_can_not_be_described_is_refused_by_name() -> None:
    made = full(1)
    made.model._register_state_dict_hook(lambda module, state, prefix, _: state.update(odd=Closed()))
    with pytest.raises(clone.UndescribableError, match=r"^model/state_dict/odd: a tests\.clone\.test_hidden\.Closed can't be described"):
        made.inventory().manifest()


def test_an_object_that_refuses_its_state_is_named() -> None:
    class Refusing(jobs.Position):
        def load_state_dict(self, _: dict[str, int]) -> None:
            raise KeyError("consumed")

    original, other = full(1), full(2)
    other.loader = Refusing()
    original.loader = Refusing()
    with original.inventory().capture() as capture, pytest.raises(clone.DamagedError, match=r"^loader/state could not be set: KeyError"):
        other.inventory().load(capture)
