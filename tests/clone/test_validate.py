"""A clone that has read all need not wait for its parent's next step.

The parent says in between that nothing has changed.
"""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import forebay.clone as clone
from forebay import _core
from forebay.clone._later import ThreadResult
from forebay.clone._read_lease import ReadLease
from forebay.torch import _state
from tests import support
from tests.clone.forks import CloneNode, Opened, taking
from tests.clone.jobs import WIDE, full
from tests.clone.test_read_lease import Parent, Played, forked, play


def window_of(parent: Parent) -> ReadLease:
    assert parent.session._source
    window = parent.session._source._machine.lease
    assert window
    return window


def change(parent: Parent) -> None:
    with torch.no_grad():
        parent.made.model.get_parameter("head.weight").mul_(1)


def test_f50_a_clone_that_has_read_all_need_not_wait_for_the_next_step(
    here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    with forked(here, opened) as (parent, played):
        assert played.read() == played.was
        confirmed = executor.submit(played.remote.confirm, time.sleep)
        support.wait_until(confirmed.done, "the parent's word")
        confirmed.result()
        # What comes later is of no matter to it.
        change(parent)
        parent.train(1)
        assert played.remote.is_confirmed()
        assert "no fork" not in capfd.readouterr().err


def test_p14a_a_clone_exists_before_its_parents_next_step(here: CloneNode, opened: Opened, executor: ThreadPoolExecutor) -> None:
    """The whole way, while this thread, which trains, does nothing of torch's."""
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        other = full(9, width=WIDE)
        became = executor.submit(opened, other, asked=asked, wait_s=float(support.PROGRAM_S))
        parent.fork()
        support.wait_until(became.done, "the clone")
        assert became.result().resumed == {"epoch": 0, "step": parent.session.forks[0].step}
    parent.train()
    assert parent.session.forks[0].aside == 0, "it had read all before the step"


@pytest.mark.parametrize("why", ["changed", "closing", "forked", "inside"])
def test_f50_a_parent_that_does_not_know_says_nothing(
    why: str, here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    with forked(here, opened) as (parent, played):
        window = window_of(parent)
        played.read()
        window._vouch()
        assert not played.remote.is_confirmed(), "it has not asked"
        played.remote._reading.ask()
        with monkeypatch.context() as patched:
            if why == "changed":
                change(parent)
            elif why == "closing":
                patched.setattr(window, "_is_silent", True)
            elif why == "forked":
                patched.setattr(window, "_process", 1)
            else:
                patched.setattr(_state, "is_at_rest", lambda: False)
            window._vouch()
            assert not played.remote.is_confirmed()
        if why == "changed":
            # It can't say so any more, and is not asked again and again.
            executor.submit(window._wait).result(support.LONG_S)
            parent.train(1)
            with pytest.raises(clone.CloneError, match=r"changed between point\(\) and the optimizer's step"):
                played.remote.is_confirmed()
        else:
            window._vouch()
            assert played.remote.is_confirmed()


def backward_until(done: Callable[[], bool], *, hook: Callable[[], None] | None = None) -> None:
    """Backward passes of the main thread's, of some milliseconds each, in which Python may be called."""
    weight = torch.eye(256, requires_grad=True)
    if hook:
        weight.register_hook(lambda _: hook())
    deadline = time.monotonic() + support.LONG_S
    while not done():
        assert time.monotonic() < deadline
        product = torch.eye(256)
        for _ in range(20):
            product = product @ weight
        product.sum().backward()


def layers_until(done: Callable[[], bool]) -> None:
    """Forward passes of a large layer."""
    layer, samples = torch.nn.Linear(2048, 2048), torch.ones(512, 2048)
    deadline = time.monotonic() + support.LONG_S
    while not done():
        assert time.monotonic() < deadline
        layer(samples)


@pytest.mark.parametrize("operations", [backward_until, layers_until])
def test_f50_in_a_long_operation_that_only_reads_it_is_said_beside_it(
    operations: Callable[..., None], here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two instructions it can't be said then, since it is one."""
    monkeypatch.setattr(ReadLease, "_vouch", lambda _: None)
    with forked(here, opened) as (_, played):
        played.read()
        confirmed = executor.submit(played.remote.confirm, time.sleep)
        operations(confirmed.done)
        confirmed.result()


def test_f50_what_may_write_to_its_arguments_is_no_operation_that_only_reads() -> None:
    functional = torch.nn.functional
    reading = (functional.layer_norm, functional.multi_head_attention_forward, functional.interpolate, functional.cross_entropy)
    writing = (functional.relu, functional.dropout, functional.normalize, functional.batch_norm)
    assert [function.__code__ in _state._READING for function in reading] == [True] * len(reading)
    assert [function.__code__ in _state._READING for function in writing] == [False] * len(writing)


@pytest.mark.parametrize("why", ["at rest", "hook", "changed"])
def test_f50_beside_a_thread_that_may_be_in_the_middle_of_something_nothing_is_said(
    why: str, here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    with forked(here, opened) as (parent, played):
        window = window_of(parent)
        played.read()
        played.remote._reading.ask()
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            executor.submit(window._vouch_beside).result(support.LONG_S)

        def look_on() -> None:
            for _ in range(200):
                look()
                time.sleep(0.001)

        if why == "at rest":
            look()
        elif why == "hook":
            backward_until(lambda: looks > 3, hook=look)
        else:
            change(parent)
            backward_until(executor.submit(look_on).done)
        assert looks
        assert not played.remote.is_confirmed()
        if why != "changed":
            parent.train()
            assert played.remote.is_confirmed()


def test_one_clone_that_was_vouched_for_stays_and_the_other_is_dropped(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    parent = Parent(opened)
    at = str(parent.step + 20)
    with here.cloning("trunk", "--at", at) as one, here.cloning("trunk", "--at", at) as two:
        first, second = taking(one), taking(two)
        parent.fork()
        clones: list[Played] = [play(one, first), play(two, second)]
        for played in clones:
            played.read()
        clones[0].remote._reading.ask()
        window_of(parent)._vouch()
        change(parent)
        parent.train(1)
        assert clones[0].remote.is_confirmed()
        with pytest.raises(clone.CloneError, match="changed between"):
            clones[1].remote.is_confirmed()
        for played in clones:
            played.close()
    parent.check()


def threads_of_ours() -> int:
    """Returns the number of helper threads, found by their function: they start as all Python threads do, unnamed."""
    frames = (list(traceback.walk_stack(frame)) for frame in sys._current_frames().values())
    return sum(any(frame.f_code is ThreadResult._run.__code__ for frame, _ in stack) for stack in frames)


def test_a_window_that_is_closed_leaves_no_thread(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        parent.fork()
        assert threads_of_ours() == 1
        parent.train(1)
        support.wait_until(lambda: threads_of_ours() == 0, "no thread")
        del mine


def test_a_job_that_trains_in_another_thread_says_so_by_its_step(here: CloneNode, opened: Opened, executor: ThreadPoolExecutor) -> None:
    """Between two instructions of the main thread that one may be in the middle of an operation."""
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        executor.submit(parent.fork).result()
        # One that watched would stay until the next step.
        support.wait_until(lambda: threads_of_ours() == 0, "no thread")
        played = play(asked, mine)
        played.read()
        executor.submit(parent.train, 1).result()
        played.remote.confirm(time.sleep)
        played.close()


def test_an_operation_that_runs_python_is_not_over() -> None:
    seen: list[bool] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            seen.append(_state.is_at_rest())
            return func(*args, **(kwargs or {}))

    weight = torch.ones(1)
    with Mode():  # type: ignore[no-untyped-call]
        weight.add_(1)
    assert seen
    assert not any(seen)
    assert _state.is_at_rest()


def test_calls_between_instructions_are_the_main_threads(executor: ThreadPoolExecutor) -> None:
    seen: list[threading.Thread] = []

    def ask() -> bool:
        return _core.between_instructions(lambda: seen.append(threading.current_thread()))

    assert executor.submit(ask).result()
    support.wait_until(lambda: seen, "the call")
    assert seen == [threading.main_thread()]


class Stopped(Exception):
    """An exception raised by a program's handler."""


@pytest.fixture
def stopping() -> Iterator[None]:
    """A program whose handler of SIGUSR1 raises."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_between_instructions_is_the_programs(stopping: None) -> None:
    def program() -> None:
        assert _core.between_instructions(lambda: signal.raise_signal(signal.SIGUSR1))
        support.wait_until(lambda: False, "the signal")

    with pytest.raises(Stopped):
        program()


def test_what_a_handler_raises_while_the_parent_vouches_is_the_programs(
    here: CloneNode, opened: Opened, stopping: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    with forked(here, opened) as (parent, played):
        played.read()
        played.remote._reading.ask()
        window = window_of(parent)
        with monkeypatch.context() as patched:

            def interrupted() -> bool:
                signal.raise_signal(signal.SIGUSR1)
                return True

            patched.setattr(_state, "is_at_rest", interrupted)
            with pytest.raises(Stopped):
                window._vouch()
        assert not played.remote.is_confirmed()
        window._vouch()
        assert played.remote.is_confirmed(), "it can still say so"
        parent.train(1)


def test_an_error_of_ours_between_instructions_is_not_the_programs(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    with forked(here, opened) as (parent, played):
        played.read()
        played.remote._reading.ask()
        window = window_of(parent)
        with monkeypatch.context() as patched:
            # Of which no version is known.
            patched.setattr(window, "_tensors", (None,))
            window._vouch()
        assert not played.remote.is_confirmed()
        parent.train(1)
        assert played.remote.is_confirmed(), "its step says so"


def test_an_interrupt_while_a_window_is_closed_leaves_it_closed(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadLease, "watching", lambda _: None)
    parent = Parent(opened)
    with parent.forked(here) as played:
        played.read()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(ReadLease, "_close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                parent.made.optimizer.step()
        with pytest.raises(clone.CloneError, match="changed between"):
            played.remote.is_confirmed()
