"""Jobs that update in the backward pass, an optimizer for each parameter: tensors are read in place until their own."""

import contextlib
import copy
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import forebay.clone as clone
from tests.clone.forks import CloneNode, Opened, taking
from tests.clone.test_read_lease import ALL, LENGTHS, LONG, PIECE, Played, Tensors, play

FIRST, LAST = "0.weight", "2.weight"
BYTES = 64 * 1024 * 4
# Each weight has a momentum of its size.
OF_LAST = 2 * BYTES
STEPS, FORKED_AT, VERIFIED = 12, 4, 3


class BackwardJob:
    """A model whose parameters are updated as soon as their gradients are there, the last layer's first."""

    def __init__(self, *, averages: bool = False) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
        self.average = copy.deepcopy(self.model) if averages else None
        parameters = dict(self.model.named_parameters())
        self.optimizers = {name: torch.optim.SGD([one], lr=0.01, momentum=0.9) for name, one in parameters.items()}
        self.updated: Callable[[str], object] = lambda name: None
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._update(name))

    def _update(self, name: str) -> None:
        self.optimizers[name].step()
        self.optimizers[name].zero_grad()
        if self.average:
            # In a way that moves no version.
            self.average.get_parameter(name).data.lerp_(self.model.get_parameter(name).data, 0.5)
        self.updated(name)

    def for_session(self) -> dict[str, Any]:
        absent = dict.fromkeys(("scheduler", "scaler", "loader"))
        return {"model": self.model, "optimizer": self.optimizers, "ema": self.average, **absent}

    def step(self) -> float:
        loss = ((self.model(torch.randn(4, 64)) - 1) ** 2).mean()
        loss.backward()
        return float(loss.detach())

    def train(self, session: clone.Session | None, first: int, last: int) -> dict[int, tuple[float, float]]:
        """Trains from a step to another; returns the loss of each, and the sum of all parameters after it."""
        seen = {}
        for step in range(first, last + 1):
            loss = self.step()
            seen[step] = loss, float(sum(one.detach().double().sum() for one in self.model.parameters()))
            if session is not None:
                session.point(epoch=0, step=step)
        return seen


def paths(name: str) -> tuple[str, str]:
    """Returns the paths of a parameter and its momentum."""
    return f"model/parameters/{name}", f"optimizer/{name}/state/0.0/momentum_buffer"


@contextlib.contextmanager
def forked(here: CloneNode, opened: Opened, *, averages: bool = False) -> Iterator[tuple[BackwardJob, clone.Session, Played]]:
    """Gives a job that has just been forked, and its clone, which has read nothing."""
    made = BackwardJob(averages=averages)
    session = opened(made, stall_s=LONG)
    with here.cloning("trunk", "--at", str(FORKED_AT)) as asked:
        mine = taking(asked)
        made.train(session, 1, FORKED_AT)
        assert [fork.step for fork in session.forks] == [FORKED_AT]
        played = play(asked, mine)
        entries = clone.inventory(**made.for_session(), counters={}).manifest().entries
        played.was = {entry.path: entry.digest for entry in entries}
        yield made, session, played
        played.close()


def test_f50_tensors_are_read_in_place_until_their_own_update(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (made, session, played):
        assert len(played.manifest.in_place) == 4
        read: dict[str, str] = {}

        def updated(name: str) -> None:
            if name == LAST:
                read.update(played.read(*paths(FIRST)))

        made.updated = updated
        made.train(session, FORKED_AT + 1, FORKED_AT + 1)
        assert len(read) == 2
        assert read.items() <= played.was.items()
        assert session.forks[0].aside == OF_LAST, "the first layer was read between the last one's update and its own"
        assert played.read(*paths(LAST)).items() <= played.was.items()
        assert played.remote.is_confirmed()


def test_f50_a_clone_that_has_read_nothing_gets_all_from_the_buffer(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (made, session, played):
        made.train(session, FORKED_AT + 1, FORKED_AT + 3)
        assert session.forks[0].aside == 4 * BYTES
        assert played.read().items() <= played.was.items()
        assert played.remote.is_confirmed()


def test_f50_an_average_that_follows_the_first_update_is_closed_before(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened, averages=True) as (made, session, played):
        assert len(played.manifest.in_place) == 6
        made.train(session, FORKED_AT + 1, FORKED_AT + 1)
        assert session.forks[0].aside == 6 * BYTES
        assert played.read().items() <= played.was.items()
        assert played.remote.is_confirmed()


def test_f50_an_update_outside_of_a_backward_pass_ends_the_lease(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (made, session, played):
        made.optimizers[LAST].step()
        assert session.forks[0].aside == 4 * BYTES
        assert played.read().items() <= played.was.items()


def test_f51_a_backward_pass_that_fails_leaves_the_rest_to_the_next_point(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (made, session, played):

        def failing(name: str) -> None:
            raise ValueError(name)

        made.updated = failing
        with pytest.raises(ValueError, match=r"2\.bias|2\.weight"):
            made.step()
        assert session.forks[0].aside == 0, "the lease goes on"
        session.point(epoch=0, step=FORKED_AT + 1)
        assert session.forks[0].aside == 4 * BYTES
        assert played.read().items() <= played.was.items()
        assert played.remote.is_confirmed()


def test_f50_a_change_between_two_updates_invalidates_the_lease(here: CloneNode, opened: Opened) -> None:
    with forked(here, opened) as (made, session, played):
        first = made.model.get_parameter(FIRST)

        def updated(name: str) -> None:
            if name == LAST:
                with torch.no_grad():
                    first.mul_(2)

        made.updated = updated
        made.train(session, FORKED_AT + 1, FORKED_AT + 1)
        with pytest.raises(clone.CloneError, match="its parent's tensors were changed"):
            played.remote.is_confirmed()


def test_f50_a_clone_is_exact_under_shadow_verification(here: CloneNode, opened: Opened) -> None:
    alone = BackwardJob().train(None, 1, STEPS)
    made = BackwardJob()
    session = opened(made, stall_s=LONG)
    with here.cloning("trunk", "--at", str(FORKED_AT), "--verify", f"shadow:{VERIFIED}") as asked:
        assert made.train(session, 1, STEPS) == alone
        assert [fork.step for fork in session.forks] == [FORKED_AT]
        other = BackwardJob()
        cloned = opened(other, asked=asked)
        assert cloned.resumed is not None
        assert cloned.resumed["step"] == FORKED_AT
        seen = other.train(cloned, FORKED_AT + 1, STEPS)
        assert not cloned.verifying
        assert cloned.lineage is not None
        assert cloned.lineage.verified == f"shadow:{VERIFIED}"
    assert seen.items() <= alone.items()


def close_some(tensors: Tensors, *numbers: int) -> int:
    return tensors.window.close_some(list(numbers), tensors.aside.address, tensors.aside.length, LONG)


def test_f50_tensors_that_are_closed_early_are_copied_once() -> None:
    tensors = Tensors(readers=2)
    first, second = tensors.reading(0), tensors.reading(1)
    assert tensors.read(second, 0) == tensors.digest(0)
    assert close_some(tensors, 0) == 0
    ctypes.memset(tensors.memory.address, 0, LENGTHS[0])
    assert [tensors.read(reading, 0) for reading in (first, second)] == 2 * [tensors.digest(0)]
    assert tensors.read(first, 1) == tensors.digest(1), "in place"
    assert first.outcome == "open"
    assert tensors.close() == (sum(LENGTHS), 0, 0)
    tensors.step()
    for reading in (first, second):
        assert [tensors.read(reading, tensor) for tensor in ALL] == [tensors.digest(tensor) for tensor in ALL]


def test_f51_what_has_no_room_early_drops_the_fork() -> None:
    tensors = Tensors(readers=2, aside=1500)
    reading, has_all = tensors.reading(0), tensors.reading(1)
    for tensor in ALL:
        tensors.read(has_all, tensor)
    assert close_some(tensors, 1) == 0
    assert close_some(tensors, 0) == 2 * PIECE
    tensors.step()
    assert tensors.close() == (1000 + 64, 2 * PIECE + 1, 0b01)
    assert tensors.read(reading, 1) == tensors.digest(1)
    with pytest.raises(ConnectionAbortedError, match="the job's next step came before it was read"):
        tensors.read(reading, 0)
    with pytest.raises(ValueError, match="there is no tensor 3"):
        close_some(tensors, 3)
