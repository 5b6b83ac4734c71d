"""Jobs whose variables are copied while the step before the fork runs, and variables that change after that."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import pytest

from forebay import _core
from forebay.clone._early import EarlyCopies, StepCopy
from forebay.keras import Fork, _fork, _tensorflow_marks
from tests import support
from tests.clone.clone_node import CloneNode
from tests.keras.fits import FitOptions, Recorder, averaged, dataset, fit
from tests.keras.matrix import Request, forked
from tests.keras.refusals import lines_of

WIDE = 512


def wide() -> list[Any]:
    """A layer with a kernel of 1 MiB, and one whose constraint changes it after the update."""
    return [
        keras.layers.Dense(WIDE, activation="relu"),
        keras.layers.Dense(WIDE, kernel_constraint=keras.constraints.MaxNorm(0.5)),
    ]


EARLY = FitOptions(layers=wide, width=WIDE, early=True)
EARLY_OPTIONS = {
    "early": EARLY,
    "early dataset between epochs": replace(EARLY, data=dataset, at=11),
    # A boundary at step 11, and the next at 15.
    "early steps_per_execution": replace(EARLY, compiled={"steps_per_execution": 4}, at=12),
    "early accumulation": replace(EARLY, optimizer=lambda: keras.optimizers.SGD(0.01, momentum=0.9, gradient_accumulation_steps=2)),
    "early average": replace(EARLY, optimizer=averaged),
    "early mixed_float16": replace(EARLY, policy="mixed_float16"),
    "early jit": replace(EARLY, compiled={"jit_compile": True}),
}


class NotedCopies(EarlyCopies):
    """Is found by the callbacks of these jobs."""

    last: "NotedCopies | None" = None

    def begin(self) -> None:
        super().begin()
        NotedCopies.last = self


def wait(model: keras.Model) -> None:
    """Waits after a step until all large variables are copied, if the next boundary takes a state."""
    last = NotedCopies.last
    if last is None or last._step is None:
        return
    sizes = [variable.value.numpy().nbytes for variable in [*model.variables, *model.optimizer.variables]]
    large = sum(size for size in sizes if size >= _tensorflow_marks.MARKED_FROM_BYTES)
    support.wait_until(lambda: last._step is not None and last._step.copy.copied_bytes == large, "the copy of all large variables")


class Pause(keras.callbacks.Callback):  # type: ignore[misc]
    """Has all copies end before the boundary, which they else may not in so short a step."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        wait(self.model)


class Move(keras.callbacks.Callback):  # type: ignore[misc]
    """Assigns to a kernel between the fork's step and its boundary, once it was copied."""

    def __init__(self, *, is_seen: bool) -> None:
        super().__init__()
        self._is_seen = is_seen
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        # Step 14 of epochs with 11.
        if (self._epoch, batch) != (1, 2):
            return
        wait(self.model)
        kernel = self.model.layers[3].kernel
        before = address(kernel)
        kernel.assign(kernel.value * 0.5)
        if not self._is_seen:
            OLD[address(kernel)] = before


OLD: dict[int, int] = {}
"""By the address of a variable the one that it had when it was copied."""


def address(variable: keras.Variable) -> int:
    return int(variable.value._read_variable_op()._numpy().ctypes.data)


@contextlib.contextmanager
def unverified() -> Iterator[None]:
    """Takes what was copied early for the variable's value, though it has moved since."""
    whole = StepCopy.finish

    def finish(self: StepCopy, located: Mapping[str, tuple[int, int, int]]) -> dict[str, bytes]:
        return whole(self, {path: (OLD.get(at, at), length, offset) for path, (at, length, offset) in located.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCopy, "finish", finish)
        yield


def moved(place: CloneNode, *, is_seen: bool) -> dict[str, Any]:
    OLD.clear()
    options = replace(EARLY, callbacks=lambda: [Move(is_seen=is_seen)])
    with contextlib.nullcontext() if is_seen else unverified():
        return forked(place, options, (Recorder, Request, Move))


def without_library(fork: Fork) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensorflow_marks, "LIBRARY", "libno_such_library.so.2")
        patch.setattr(_core, "register_final_op", refusing)
        fit(EARLY, epochs=1, fork=Fork("early", stateless=[Recorder], early=True))


def refusing(library: str) -> str:
    raise RuntimeError(f"{library} is not loaded")


FALLBACKS: dict[str, Callable[[Fork], object]] = {
    "early without jit": lambda _: fit(EARLY_OPTIONS["early jit"], epochs=1, fork=Fork("early", stateless=[Recorder], early=True)),
    "early without graph": lambda _: fit(
        replace(EARLY, compiled={"run_eagerly": True}), epochs=1, fork=Fork("early", stateless=[Recorder], early=True)
    ),
    "early without library": without_library,
}


def played_early(place: CloneNode, name: str) -> Any:  # noqa: ANN401
    """Returns the record of a job, or the lines of one without marks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fork, "EarlyCopies", NotedCopies)
        NotedCopies.last = None
        return _played(place, name)


def _played(place: CloneNode, name: str) -> Any:  # noqa: ANN401
    if name in FALLBACKS:
        return lines_of(FALLBACKS[name], place.root / "said")
    if name in ("early moved", "early moved unseen"):
        return moved(place, is_seen=name == "early moved")
    options = EARLY_OPTIONS[name]
    return forked(place, replace(options, callbacks=lambda: [Pause()]), (Recorder, Request, Pause))
