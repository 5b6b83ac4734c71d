"""Plays a job and its clone in one process, with any set of options."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from forebay.keras import Fork
from forebay.keras._job import KerasJob
from tests.clone.clone_node import CloneNode
from tests.keras.fits import OPTIONS, FitOptions, Recorder, fit

KINDS = {
    "model": ("model", "variables"),
    "optimizer": ("optimizer", "variables"),
    "metrics": ("metrics", "variables"),
    "callbacks": ("callbacks",),
    "data": ("data",),
    "seeds": ("generators", "keras"),
    "process": ("generators", "process"),
}


class Request(keras.callbacks.Callback):  # type: ignore[misc]
    """Asks for a clone when training begins, and keeps the request."""

    def __init__(self, place: CloneNode, at: int, stack: contextlib.ExitStack, *words: str) -> None:
        super().__init__()
        self._place, self._stack = place, stack
        self._words = ("--at", str(at), *words)
        self.asked = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not self.asked:
            self.asked = self._stack.enter_context(self._place.cloning("trunk", *self._words))


def played(place: CloneNode, name: str) -> dict[str, Any]:
    """Plays the options of that name, or with NAME-KIND without carrying that kind of state; see `forked`."""
    option, _, kind = name.partition("-")
    with without(kind):
        return forked(place, OPTIONS[option], (Recorder, Request))


class AgentEnd(keras.callbacks.Callback):  # type: ignore[misc]
    """Kills the fork agent in the step after a fork, while its state is copied."""

    def __init__(self, place: CloneNode, at: int) -> None:
        super().__init__()
        self._place, self._left = place, at

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._left -= 1
        if self._left == -1:
            self._place.kill_agent()


def ended_agent(place: CloneNode) -> dict[str, Any]:
    """Trains alone, and as a job whose fork agent is killed; returns the records."""
    options = OPTIONS["dataset"]
    _, alone = fit(options)
    with contextlib.ExitStack() as stack:
        request = Request(place, options.at, stack)
        fork = Fork("trunk", stateless=[Recorder, Request, AgentEnd])
        _, parent = fit(options, fork=fork, more=[request, AgentEnd(place, options.at)])
        return {"forked": [one.step for one in fork.forks], "alone": alone.told(), "parent": parent.told()}


def forked(place: CloneNode, options: FitOptions, stateless: Sequence[type]) -> dict[str, Any]:
    """Trains alone, then as a job that is forked, then as its clone; returns the records.

    Args:
        place: a node.
        options: options of all three.
        stateless: their callbacks without state.
    """
    _, alone = fit(options)
    with contextlib.ExitStack() as stack:
        request = Request(place, options.at, stack, *options.words)
        # Each job's callbacks: the clone has the same ones.
        source = Fork("trunk", stateless=stateless, early=options.early)
        _, parent = fit(options, fork=source, more=[request])
        os.environ["FOREBAY_CLONE"] = request.asked
        _, clone = fit(options, fork=Fork("trunk", stateless=stateless, early=options.early), more=[request])
        records = {"alone": alone, "parent": parent, "clone": clone}
        (taken,) = source.forks
        return {"stall_s": taken.stall_s, "early": taken.early, **{name: record.told() for name, record in records.items()}}


@contextlib.contextmanager
def without(kind: str) -> Iterator[None]:
    """Leaves a kind of state out on both sides, so that loading does not miss it."""
    whole = KerasJob.components
    path = KINDS[kind] if kind else ("",)
    KerasJob.components = lambda self, of: [one for one in whole(self, of) if one.path[: len(path)] != path]  # type: ignore[method-assign]
    try:
        yield
    finally:
        KerasJob.components = whole  # type: ignore[method-assign]
