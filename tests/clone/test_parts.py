"""Parts unchanged since the last look are not described again (P14b), and the description equals a fresh one."""

import collections
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from forebay import _core, clone
from forebay.clone._adapter import Described
from forebay.clone._values import Path


@dataclass
class ChangingJob:
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


def other_data(job: ChangingJob) -> None:
    job.last.weight.data = torch.rand(6, 64)


def other_shape(job: ChangingJob) -> None:
    # At the same address.
    job.last.weight.data = job.last.weight.data.view(8, 48)


def other_strides(job: ChangingJob) -> None:
    weight = job.last.weight.data
    job.last.weight.data = weight.as_strided((6, 64), (1, 6))


def other_type(job: ChangingJob) -> None:
    job.ema["mean"].data = job.ema["mean"].data.view(torch.int32)


def other_parameter(job: ChangingJob) -> None:
    job.last.weight = nn.Parameter(job.last.weight.detach())


def another_layer(job: ChangingJob) -> None:
    job.model.add_module("more", nn.Linear(6, 2))


def other_name(job: ChangingJob) -> None:
    # `del` would renumber the others.
    job.model._modules["more"] = job.model._modules.pop("3")


def frozen(job: ChangingJob) -> None:
    job.last.weight.requires_grad_(False)


def no_gradients(job: ChangingJob) -> None:
    job.optimizer.zero_grad(set_to_none=True)


def other_moment(job: ChangingJob) -> None:
    job.first_state()["exp_avg"] = torch.rand(6, 64)


def moments_swapped(job: ChangingJob) -> None:
    state = job.first_state()
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"]


def moment_gone(job: ChangingJob) -> None:
    del job.first_state()["exp_avg"]


def moment_a_number(job: ChangingJob) -> None:
    job.first_state()["step"] = 1000.0


def state_gone(job: ChangingJob) -> None:
    del job.optimizer.state[job.last.weight]


def other_number(job: ChangingJob) -> None:
    job.counters["step"] += 1


def a_number_of_another_type(job: ChangingJob) -> None:
    job.counters["epoch"] = False


def other_key(job: ChangingJob) -> None:
    job.ema["of"]["else"] = job.ema["of"].pop("note")


def other_text(job: ChangingJob) -> None:
    job.ema["of"]["note"] = "y"


def other_nesting(job: ChangingJob) -> None:
    job.ema["mean"], job.ema["of"] = job.ema["of"], job.ema["mean"]


def a_list(job: ChangingJob) -> None:
    job.ema["mean"] = [job.ema["mean"]]


def evaluated(job: ChangingJob) -> None:
    job.model.eval()


def a_child_evaluated(job: ChangingJob) -> None:
    job.last.eval()


def other_buffer(job: ChangingJob) -> None:
    job.model[1].running_mean = torch.rand(4)  # type: ignore[index]


def a_buffer_more(job: ChangingJob) -> None:
    job.last.register_buffer("scale", torch.rand(2))


def a_way_of_its_own(job: ChangingJob) -> None:
    named = job.last.named_parameters
    job.model.named_parameters = lambda *_, **__: named()  # type: ignore[method-assign]


class Remembering(nn.Linear):
    """A layer with a state of its own."""

    seen = 0

    def get_extra_state(self) -> int:
        return self.seen


def extra_state(job: ChangingJob) -> None:
    job.model.add_module("more", Remembering(6, 2))


def other_group(job: ChangingJob) -> None:
    first = job.optimizer.param_groups[0]["params"]
    job.optimizer.add_param_group({"params": [first.pop()]})


def other_rate(job: ChangingJob) -> None:
    job.optimizer.param_groups[0]["lr"] = 0.2


CHANGES: list[Callable[[ChangingJob], None]] = [
    ChangingJob.step,
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
    evaluated,
    a_child_evaluated,
    other_buffer,
    a_buffer_more,
    a_way_of_its_own,
    extra_state,
    other_group,
    other_rate,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_p14b_what_has_changed_since_the_last_look_is_described_as_it_is(
    change: Callable[[ChangingJob], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some leave the optimizer with a parameter that no module has any more: the new inventory that is compared with
    # would be refused.
    monkeypatch.setattr("forebay.torch._state.check_given", lambda _: None)
    job = ChangingJob()
    known = job.inventory()
    before = known.manifest()
    assert known.manifest() == before
    change(job)
    after = known.manifest()
    assert after == job.inventory().manifest()
    assert after != before
    with known.capture() as capture:
        assert capture.manifest == after


def test_p14b_a_part_that_was_not_asked_for_when_all_changed_is_described_as_it_is() -> None:
    """A look at only some of the parts must not make the others seem to be known."""
    job = ChangingJob()
    known = job.inventory()
    known.manifest()
    another_layer(job)
    job.last.register_buffer("scale", torch.rand(2))
    known.steady()
    assert known.manifest() == job.inventory().manifest()


def test_p14b_what_was_described_before_something_failed_is_not_believed_later() -> None:
    job = ChangingJob()
    known = job.inventory()
    known.manifest()
    job.model.eval()
    job.counters["odd"] = object()
    with pytest.raises(clone.UndescribableError):
        known.manifest()
    del job.counters["odd"]
    job.model.train()
    assert known.manifest() == job.inventory().manifest()


def test_p14b_what_changes_while_the_state_is_described_is_seen_the_next_time() -> None:
    class Meddling:
        """An object whose state_dict has effects."""

        def state_dict(self) -> dict[str, int]:
            job.model.eval()
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            """Nothing is kept."""

    job = ChangingJob()
    kinds = {"scheduler": None, "scaler": None, "ema": None, "loader": None, "counters": None}
    known = clone.inventory(model=job.model, optimizer=job.optimizer, others={"meddling": Meddling()}, **kinds)
    known.manifest()
    again = clone.inventory(model=job.model, optimizer=job.optimizer, others={"meddling": Meddling()}, **kinds)
    assert known.manifest() == again.manifest()


def test_p14b_two_modules_that_are_alike_are_not_one() -> None:
    job = ChangingJob()
    inner = nn.Sequential()
    inner.one = inner.two = nn.Dropout()
    job.model.add_module("inner", inner)
    job.model.eval()
    known = job.inventory()
    known.manifest()
    inner.two = nn.Dropout().eval()
    assert known.manifest() == job.inventory().manifest()


def test_of_gradients_that_have_a_history_nothing_is_asked(recwarn: pytest.WarningsRecorder) -> None:
    job = ChangingJob()
    job.optimizer.zero_grad(set_to_none=True)
    known = job.inventory()
    known.manifest()
    job.model(torch.rand(2, 3, 6, 6)).sum().backward(create_graph=True)
    assert known.manifest() == job.inventory().manifest()
    assert [str(one.message) for one in recwarn if "leaf" in str(one.message)] == []


def test_a_class_that_was_made_beside_an_inventory_goes_with_it() -> None:
    def work() -> "weakref.ref[object]":
        class Net(nn.Linear):
            """Its method has the inventory."""

            def known(self) -> object:
                return inventory

        net = Net(2, 2)
        inventory = clone.inventory(model=net, optimizer=None, scheduler=None, scaler=None, ema=None, loader=None, counters=None)
        inventory.manifest()
        return weakref.ref(net)

    gone = work()
    gc.collect()
    assert gone() is None


def test_p14b_an_extra_state_is_asked_for_each_time() -> None:
    job = ChangingJob()
    extra_state(job)
    known = job.inventory()
    known.manifest()
    before = known.manifest()
    job.model.more.seen = 1  # type: ignore[union-attr]
    after = known.manifest()
    # The attribute has changed for the one that knew it before.
    assert after.differences(job.inventory().manifest()) == ["model/attributes"]
    assert sorted(after.differences(before)) == ["model/attributes", "model/extra"]


@pytest.mark.parametrize("way", ["DLPack", "each"])
def test_p14b_places_are_seen_to_change_with_and_without_dlpack(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "each":
        monkeypatch.setattr("forebay.torch._state._EXCHANGE", None)
    known = ChangingJob().inventory().adapter.known
    memory = torch.zeros(64)
    one = nn.Parameter(memory[:12])
    others = [torch.ones(3)]
    seen = known([one, *others])
    assert seen is not None
    has_dlpack = way == "DLPack" and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert isinstance(seen, _core.Known) == has_dlpack

    def is_same() -> bool:
        assert seen is not None
        again = seen.again()
        assert again is None or list(map(id, again)) == list(map(id, [one, *others]))
        return again is not None

    assert is_same()
    for other in (memory[1:13], memory[:12].view(3, 4), memory[:24:2], memory[:12].view(torch.int32).view(torch.float32)[:11]):
        one.data = other
        assert not is_same()
    one.data = memory[:12]
    assert is_same()
    others[0].__class__ = OtherTensor
    assert not is_same()
    others[0].__class__ = torch.Tensor
    assert is_same()
    others.clear()
    assert seen.again() is None, "it is gone"
    whole = torch.zeros(4, dtype=torch.complex64)
    seen = known([whole])
    assert seen is not None
    assert not isinstance(seen, _core.Known)
    assert seen.again() == [whole]
    whole.data = whole.data.conj()
    assert seen.again() is None


class OtherTensor(torch.Tensor):
    """A tensor of another type."""


def test_modules_in_a_circle_are_described_each_time() -> None:
    job = ChangingJob()
    job.last.add_module("back", job.model)
    known = job.inventory()
    known.manifest()
    other_data(job)
    assert known.manifest() == job.inventory().manifest()


def test_what_has_not_changed_is_not_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ChangingJob()
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
    job = ChangingJob()
    known = job.inventory()
    known.manifest()
    alive = [weakref.ref(parameter.grad) for parameter in job.model.parameters()] + [weakref.ref(job.ema["mean"])]
    job.optimizer.zero_grad(set_to_none=True)
    del job.ema["mean"]
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)


def looked_at(root: object) -> _core.Look | None:
    return _core.Look.at(root, (torch.Tensor,), ("requires_grad",), ("inside",))


class AttributeHolder:
    """Something with an attribute."""

    def __init__(self, inside: object) -> None:
        self.inside = inside
        self.outside = 0


def test_a_look_finds_what_was_exchanged() -> None:
    kept = {"a": 1.5, "of": [torch.zeros(2), (None, "text")], "object": AttributeHolder({"b": torch.ones(1)})}
    look = looked_at(kept)
    assert look
    assert look.is_same(kept)
    assert look.is_same({**kept, "of": [*kept["of"]]}), "another container with the same in it"  # type: ignore[misc]
    assert look.is_same({"".join(["o", "f"]) if key == "of" else key: value for key, value in kept.items()}), "equal text"
    kept["object"].outside = 1  # type: ignore[attr-defined]
    assert look.is_same(kept)
    tensor = kept["of"][0]  # type: ignore[index]
    for other in (
        {**kept, "a": 2.5},
        {**kept, "a": True},
        {**kept, "c": 0},
        {**kept, "of": (*kept["of"],)},  # type: ignore[misc]
        {**kept, "of": [torch.zeros(2), (None, "text")]},
        {**kept, "of": [tensor, (None, "tex")]},
        {**kept, "of": [tensor, (None, "text", None)]},
        {**kept, "of": [tensor]},
        {**kept, "object": AttributeHolder({"b": torch.ones(1)})},
        {**kept, "object": AttributeHolder([])},
        {"of": kept["of"], "a": 1.5, "object": kept["object"]},
        [kept],
        None,
    ):
        assert not look.is_same(other)
    tensor.requires_grad_()
    assert not look.is_same(kept)


def test_a_look_knows_a_tensor_from_another_at_the_same_address() -> None:
    """A freed object leaves its identity to the next one made, as often as not."""
    for _ in range(100):
        tensors = [torch.zeros(1)]
        look = looked_at(tensors)
        assert look
        tensors.clear()
        tensors.append(torch.zeros(1))
        assert not look.is_same(tensors)


def test_what_is_too_long_is_not_looked_at() -> None:
    assert looked_at([None] * 1000) is not None
    assert looked_at([None] * (1 << 20)) is None


@pytest.mark.parametrize("root", [object(), {1: {2, 3}}, collections.OrderedDict(), [len], nn.Parameter(torch.zeros(1))])
def test_what_can_not_be_looked_at_is_not(root: object) -> None:
    assert looked_at([root]) is None


def test_what_has_no_end_can_not_be_looked_at() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert looked_at(endless) is None
