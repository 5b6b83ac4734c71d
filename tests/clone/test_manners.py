"""Refusals of a session, so that no state is left out.

And what is the program's, though it comes in the middle of a fork.
"""

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import forebay.clone as clone
from forebay.clone._capture import take
from forebay.clone._errors import RefusedError
from forebay.clone._resume import CloneRequest, resume
from tests.clone.forks import CloneNode, Opened, train, trained
from tests.clone.jobs import full
from tests.support import LONG_S


def described(model: object, optimizer: torch.optim.Optimizer, **given: object) -> clone.Inventory:
    kinds: dict[str, object] = {"scheduler": None, "scaler": None, "ema": None, "loader": None, "counters": {}}
    return clone.inventory(model=model, optimizer=optimizer, **(kinds | given))  # type: ignore[arg-type]


def test_parameters_that_no_given_module_has_are_named() -> None:
    """Their momentum would be the parent's, and they themselves the clone's own."""
    net, head, scale = nn.Linear(3, 4), nn.Linear(4, 2), nn.Parameter(torch.ones(1))
    groups: list[dict[str, Any]] = [{"params": [*net.parameters()]}, {"params": [*head.parameters(), scale]}]
    optimizer = torch.optim.SGD(groups, 0.1)
    with pytest.raises(
        clone.MissingError, match=r"^optimizer trains parameter 1\.0, of sizes \[2, 4\], which no given module has: pass its module, too"
    ):
        described(net, optimizer)
    with pytest.raises(clone.MissingError, match=r"parameter 1\.2, of sizes \[1\]"):
        described({"net": net, "head": head}, optimizer)
    found = described({"net": net, "head": head}, optimizer, others={"scale": {"scale": scale}}).manifest()
    assert {"model/head/parameters/weight", "others/scale/scale"} <= {entry.path for entry in found.entries}


class Outer(torch.optim.Optimizer):
    """Has another one do its steps, as the usual SAM does."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base_optimizer = torch.optim.SGD(self.param_groups, momentum=0.9)


def test_an_optimizer_that_has_another_one_do_its_steps_is_refused() -> None:
    net = nn.Linear(3, 4)
    outer = Outer(net.parameters())
    with pytest.raises(clone.UndescribableError, match=r"Outer has another optimizer do its steps: pass that one, its `base_optimizer`$"):
        described(net, outer)
    described(net, outer.base_optimizer)


@pytest.mark.parametrize("kind", ["ema", "others"])
def test_an_optimizer_is_given_as_one(kind: str) -> None:
    net = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with pytest.raises(clone.UndescribableError, match=r"SGD is an optimizer: pass it as one; of several each by name"):
        described(net, optimizer, **{kind: {"other": torch.optim.SGD(net.parameters(), 0.1)}})


def test_a_rate_that_a_schedule_makes_anew_is_not_set() -> None:
    net = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    there = described(net, optimizer, scheduler=scheduler)
    for name, least in (("lr", "min_lr"), ("momentum", "base_momentum")):
        with pytest.raises(
            clone.DifferenceError, match=f"^{name} can't be set: .* computes it again from max_{name} and {least}: set these$"
        ):
            there.change(name, 0.01)
    there.change("max_lr", 0.01)
    assert optimizer.param_groups[0]["max_lr"] == 0.01


@pytest.mark.parametrize("name", ["lr", "momentum", "max_momentum"])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: torch.optim.lr_scheduler.ChainedScheduler([one])])
def test_what_a_cycle_makes_anew_is_not_set(name: str, wrap: Callable[[object], object]) -> None:
    net = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    there = described(net, optimizer, scheduler=wrap(torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5)))
    if name in optimizer.param_groups[0]:
        with pytest.raises(clone.DifferenceError, match=rf"^{name} can't be set: with each step CyclicLR computes it again from bounds of"):
            there.change(name, 0.2)
    there.change("weight_decay", 0.1)


def test_the_name_of_the_session_s_own_place_is_taken() -> None:
    with pytest.raises(ValueError, match=r"^others={'forebay': \.\.\.}: under that name the session keeps its own position: take another$"):
        clone.session(model=nn.Linear(1, 1), others={"forebay": {}})


class Preempted(Exception):
    """An exception by which a program ends its steps."""


def preempt(_signal: int, _frame: FrameType | None) -> None:
    raise Preempted


@pytest.fixture
def preempted() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, preempt)
    yield
    signal.signal(signal.SIGUSR1, before)


def comes(*_: object) -> None:
    signal.raise_signal(signal.SIGUSR1)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("what", "kind"), [(comes, Preempted), (interrupted, KeyboardInterrupt)], ids=["handler", "Ctrl-C"])
@pytest.mark.usefixtures("preempted")
def test_what_a_signal_raises_within_a_fork_ends_the_fork_and_is_the_program_s(
    what: object, kind: type[BaseException], here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3") as asked, monkeypatch.context() as broken:
        broken.setattr(clone.Inventory, "capture", what)
        with pytest.raises(kind):
            train(made, session, 3, 2)
        # It is told so, and waits no longer.
        with pytest.raises(clone.CloneError, match=f"rank 0 of trunk could not take its state: {kind.__name__}"):
            opened(full(2), asked=asked)
    with here.cloning("trunk", "--at", "6"):
        train(made, session, 4, 4)
    assert [fork.step for fork in session.forks] == [6]


@pytest.mark.usefixtures("preempted")
def test_what_a_signal_raises_before_a_step_is_the_program_s(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    made, session = trained(opened)
    assert session._source
    with monkeypatch.context() as broken:
        broken.setattr(session._source, "before_step", comes)
        with pytest.raises(Preempted):
            made.step()
    with here.cloning("trunk", "--at", "4"):
        train(made, session, 4, 2)
    assert [fork.step for fork in session.forks] == [4]


def test_a_forked_child_that_trains_on_is_no_rank(opened: Opened) -> None:
    made, session = trained(opened, 2)
    assert session._source
    points = session._source._machine.points
    child = os.fork()
    if child == 0:
        status = 1
        try:
            session._note_step()
            session.point(epoch=0, step=9)
            status = 0 if session._source._machine.points == points else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0) == (child, 0)
    train(made, session, 1, 3)
    assert session._source._machine.points == points + 1


def test_a_clone_that_can_not_be_forked_is_one_all_the_same(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, session = trained(opened)

    def refuses(*_: object, **__: object) -> None:
        raise RefusedError("trunk.1 trains here already")

    with here.cloning("trunk", "--at", "3") as asked:
        train(made, session, 4, 2)
        monkeypatch.setattr("forebay.clone._session.ForkSource", refuses)
        other = full(2)
        resumed = opened(other, asked=asked)
    assert resumed.resumed == {"epoch": 0, "step": 3}
    assert "this clone can't be forked: trunk.1 trains here already\n" in capfd.readouterr().err
    train(other, resumed, 1, 4)


class SlowMemory:
    """An object that takes a while to be made."""


def test_no_process_is_forked_while_memory_is_made() -> None:
    """It would hold what nobody knows of, for as long as it lives."""
    living: weakref.WeakSet[SlowMemory] = weakref.WeakSet()
    begun, gate = threading.Event(), threading.Event()

    def made(_length: int) -> SlowMemory:
        begun.set()
        assert gate.wait(LONG_S)
        return SlowMemory()

    with ThreadPoolExecutor(1) as executor:
        making = executor.submit(take, made, "a test", 1, 1, 0, living)
        assert begun.wait(LONG_S)
        opening = threading.Timer(0.2, gate.set)
        opening.start()
        child = os.fork()
        if child == 0:
            os._exit(0 if len(living) == 1 else 1)
        assert os.waitpid(child, 0) == (child, 0)
        assert list(living) == [making.result()]
        opening.join()


def test_a_clone_whose_parent_has_ended_says_so(tmp_path: Path) -> None:
    """The parent's secret is gone when the clone comes to `session()`."""
    asked = CloneRequest(str(tmp_path), "trunk", None, 1, tmp_path / "secrets" / "trunk", {}, 0)
    with pytest.raises(clone.CloneError, match=r"^no clone of trunk: trunk, or this fork of it, has ended before the clone was made: ask"):
        resume(asked, full(1).inventory(), LONG_S)
