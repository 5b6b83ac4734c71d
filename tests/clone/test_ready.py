"""Preparation of the objects that a state is to be loaded into, while the state is awaited.

What comes otherwise than expected is made then, as right (P14b).
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from forebay import _core, clone
from forebay.clone import _description, _source
from forebay.clone._filling import LoadPlan
from forebay.clone._inventory import StateSchema
from forebay.clone._shared import Storage
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, drop, taking, train, train_until, wait_for_state
from tests.clone.jobs import WIDE, StateJob, full, job, seed

HEADER = _description.StateHeader("trunk", 0, 0, 0)


def outline_of(inventory: clone.Inventory, storage: Storage) -> StateSchema:
    """As it comes to a clone."""
    with _description.described_schema(b"secret", HEADER, inventory.outline(storage)) as descriptor:
        header, outline = _description.read_schema(b"secret", descriptor)
    assert header == HEADER
    return outline


def received(capture: clone.Capture, outline: StateSchema) -> clone.Capture:
    """As it comes to a clone."""
    manifest = clone.Manifest.from_json(capture.manifest.to_json(), [held for held, _ in outline])
    return clone.Capture(manifest, os.dup(capture.descriptor))


def states_of(made: StateJob) -> list[torch.Tensor]:
    return [value for state in made.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def test_what_comes_as_expected_was_made_before() -> None:
    original, other = job(jobs.adamw, 1), job(jobs.adamw, 2)
    original.step()
    mine, theirs = other.inventory(), original.inventory()
    outline, survey = outline_of(theirs, Storage(theirs.adapter)), mine.survey()
    before = mine.manifest()
    ready = mine.get_ready(outline, survey, mine.adapter.empty)
    assert {"model/parameters", "model/buffers", "optimizer/state"} <= set(ready)
    assert mine.manifest() == before, "nothing is changed by that"
    original.step()
    with theirs.capture() as whole, received(whole, outline) as capture:
        assert all(ready[name].held in capture.manifest.held for name in ready)
        mine.load(capture, survey=survey, ready=ready)
        assert mine.manifest() == whole.manifest
    made = {id(one) for one in ready["optimizer/state"].tensors}
    assert {id(one) for one in states_of(other)} == made
    for one in (other, original):
        seed(9)
        one.step()
    assert other.losses[-1] == original.losses[-1]


def nothing(made: StateJob) -> None:
    pass


def weight_elsewhere(made: StateJob) -> None:
    weight = made.model.get_parameter("head.weight")
    weight.data = weight.data.clone()


def state_anew(made: StateJob) -> None:
    for state in made.optimizer.state.values():
        state.update({key: value.clone() for key, value in state.items()})


def state_with_numbers(made: StateJob) -> None:
    for state in made.optimizer.state.values():
        state["step"] = 7.0


def state_gone(made: StateJob) -> None:
    made.optimizer.state.pop(made.model.get_parameter("head.weight"))


def state_in_another_order(made: StateJob) -> None:
    for state in made.optimizer.state.values():
        state["exp_avg"] = state.pop("exp_avg")


def state_of_another_type(made: StateJob) -> None:
    for state in made.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].double()


CHANGES = [nothing, weight_elsewhere, state_anew, state_with_numbers, state_gone, state_in_another_order, state_of_another_type]


@pytest.mark.parametrize("where", ["there", "here"])
@pytest.mark.parametrize("change", CHANGES)
def test_p14b_what_has_changed_since_is_found_out(change: Callable[[StateJob], None], where: str) -> None:
    original, other = job(jobs.adamw, 1), job(jobs.adamw, 2)
    original.step()
    other.step()
    mine, theirs = other.inventory(), original.inventory()
    storage = Storage(theirs.adapter)
    storage.share(theirs.steady())
    outline, survey = outline_of(theirs, storage), mine.survey()
    ready = mine.get_ready(outline, survey, mine.adapter.empty)
    change(original if where == "there" else other)
    with theirs.capture() as whole, received(whole, outline) as capture:
        mine.load(capture, survey=survey, ready=ready)
        assert mine.manifest() == whole.manifest
    assert len(states_of(other)) == len(states_of(original))
    if where == "there" and change in (state_with_numbers, state_of_another_type):
        # With which AdamW takes no step.
        return
    for one in (other, original):
        seed(9)
        one.step()
    assert other.losses[-1] == original.losses[-1]
    assert mine.manifest() == theirs.manifest()


def test_what_can_t_be_loaded_is_said_when_it_has_come() -> None:
    original, other = job(), StateJob(wide := jobs.StateNet(width=9), jobs.momentum(wide))
    mine, theirs = other.inventory(), original.inventory()
    outline, survey = outline_of(theirs, Storage(theirs.adapter)), mine.survey()
    ready = mine.get_ready(outline, survey, mine.adapter.empty)
    assert "model/parameters" not in ready
    with (
        theirs.capture() as whole,
        received(whole, outline) as capture,
        pytest.raises(clone.DifferenceError, match=r"^model/parameters/.* differs"),
    ):
        mine.load(capture, survey=survey, ready=ready)


def test_an_outline_is_of_who_has_the_secret() -> None:
    theirs = job().inventory()
    with _description.described_schema(b"secret", HEADER, theirs.outline(Storage(theirs.adapter))) as descriptor:
        with pytest.raises(clone.DamagedError, match="failed HMAC verification"):
            _description.read_schema(b"another", descriptor)
        with pytest.raises(clone.DamagedError, match="not of the format"):
            _description.read(b"secret", descriptor)


def tied(made: StateJob) -> StateJob:
    """By way of `data`, so that nobody sees it: both are parameters, at one place."""
    made.model.add_module("one", nn.Linear(3, 3, bias=False))
    made.model.add_module("two", nn.Linear(3, 3, bias=False))
    one, two = (made.model.get_parameter(f"{name}.weight") for name in ("one", "two"))
    two.data = one.data
    return made


@pytest.mark.parametrize("part", [False, True])
def test_p14b_two_tensors_at_one_place_are_not_both_what_was_sent(*, part: bool) -> None:
    """The contents written first are overwritten, yet each digest is that of the bytes written for its tensor."""
    original, other = tied(job()), tied(job())
    untied = original.model.get_parameter("two.weight")
    untied.data = torch.ones(3, 3)
    if part:
        memory = torch.zeros(12)
        for name, first in (("one", 0), ("two", 3)):
            other.model.get_parameter(f"{name}.weight").data = memory[first : first + 9].view(3, 3)
    with (
        original.inventory().capture() as capture,
        pytest.raises(clone.DamagedError, match=r"model/parameters/one.weight.*or does it share memory with another"),
    ):
        other.inventory().load(capture)


def test_two_tensors_at_one_place_may_be_alike() -> None:
    original, other = tied(job()), tied(job())
    with original.inventory().capture() as capture:
        other.inventory().load(capture)
        assert other.inventory().manifest() == capture.manifest


class TensorReads:
    """Reads where tensors lie, as `Remote` does."""

    def __init__(self, manifest: clone.Manifest, storage: Storage) -> None:
        self.held = manifest.held
        self.arenas = [arena.memory.address for arena in storage.arenas]

    def before(self, at: int) -> int:
        return sum(len(held.places) for held in self.held[:at])

    def read(self, wanted: list[tuple[int, int]]) -> bytes:
        lying = [(held.section.kinds[number].length, *place) for held in self.held for number, place in held.places.items()]
        digests = []
        for position, address in wanted:
            length, arena, offset = lying[position]
            ctypes.memmove(address, self.arenas[arena] + offset, length)
            digests.append(bytes.fromhex(_core.digest(address, length)))
        return b"".join(digests)


def test_p14b_a_tensor_with_gaps_may_share_memory_with_one_that_was_read_before() -> None:
    """Its bytes are written last, by way of a copy; the other tensor's place was digested already."""
    original, other = apart(), apart()
    memory = torch.zeros(SIDE, 2 * SIDE)
    one, two = (other.model.get_parameter(f"{name}.weight") for name in ("one", "two"))
    one.data, two.data = memory.view(-1)[: SIDE * SIDE].view(SIDE, SIDE), memory[:, ::2]
    theirs = original.inventory()
    storage = Storage(theirs.adapter)
    storage.share(theirs.steady())
    with theirs.capture(storage=storage) as capture, pytest.raises(clone.DamagedError, match="or does it share memory with another"):
        other.inventory().load(capture, remote=TensorReads(capture.manifest, storage))  # type: ignore[arg-type]


SIDE = 128


def apart() -> StateJob:
    made = job()
    for name in ("one", "two"):
        made.model.add_module(name, nn.Linear(SIDE, SIDE, bias=False))
    return made


@pytest.mark.parametrize("where", ["gradient", "other"])
def test_p14b_what_was_moved_while_a_state_was_waited_for_is_found_where_it_lies(where: str) -> None:
    """Though it is neither a parameter nor an optimizer's."""
    made = [job(number=number) for number in (1, 2)]
    states: list[dict[str, Any]] = []
    for one in made:
        one.step()
        one.model.get_parameter("head.weight").grad = torch.rand_like(one.model.get_parameter("head.weight"))
        states.append({"mean": torch.rand(1000), "number": len(states)})
    theirs, mine = (one.inventory(others={"mean": state}) for one, state in zip(made, states, strict=True))
    survey = mine.survey()
    moved = made[1].model.get_parameter("head.weight").grad if where == "gradient" else states[1]["mean"]
    assert isinstance(moved, torch.Tensor)
    left = moved.data
    was = left.clone()
    moved.data = moved.data.clone()
    with theirs.capture() as capture:
        mine.load(capture, survey=survey)
        assert mine.manifest() == capture.manifest
    assert torch.equal(left, was), "there it is written to no more"


def test_what_was_made_for_a_state_that_counts_is_used_all_the_same() -> None:
    """Its values are others each time, and its tensors are not."""
    original, other = job(jobs.adamw, 1), job(jobs.adamw, 2)
    original.step()
    mine, theirs = other.inventory(), original.inventory()
    for state in original.optimizer.state.values():
        state["count"] = 1
    outline, survey = outline_of(theirs, Storage(theirs.adapter)), mine.survey()
    ready = mine.get_ready(outline, survey, mine.adapter.empty)
    for state in original.optimizer.state.values():
        state["count"] = 2
    with theirs.capture() as whole, received(whole, outline) as capture:
        mine.load(capture, survey=survey, ready=ready)
        assert mine.manifest() == whole.manifest
    assert {id(one) for one in states_of(other)} == {id(one) for one in ready["optimizer/state"].tensors}


def test_a_job_that_can_t_say_what_clones_will_get_is_forked_all_the_same(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise clone.CloneError("no memory")

    made = full(1, width=WIDE)
    session = opened(made)
    with monkeypatch.context() as patched:
        patched.setattr(_source, "described_schema", fails)
        step = train(made, session, 1)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        assert mine.described_ahead() is None
        train_until(made, session, lambda: bool(session.forks), step)
        drop(wait_for_state(mine))
    assert capfd.readouterr().err == ""


def test_a_tensor_that_has_to_stay_costs_no_fork_a_look_at_all_others() -> None:
    """It is asked again, alone, whether it could be moved by now."""
    made = full(1, width=WIDE)
    made.step()
    known = made.inventory()
    storage = Storage(known.adapter)
    weight = made.model.get_parameter("head.weight")
    view = weight.detach()[:1]
    assert set(storage.share(known.steady())) == {"model/parameters/head.weight"}
    assert not storage.could_share_more()
    del view
    assert storage.could_share_more()
    assert storage.share(known.steady()) == {}
    assert not storage.could_share_more()


def test_made_names_its_component() -> None:
    known = job().inventory()
    made = known.get_ready(outline_of(known, Storage(known.adapter)), known.survey(), known.adapter.empty)
    assert all(isinstance(one, LoadPlan) and one.name == name for name, one in made.items())
