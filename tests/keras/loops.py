"""Training loops of one's own with models of Keras: a job alone, one that is forked, and its clone."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from forebay import clone
from tests.clone.clone_node import CloneNode
from tests.keras.fits import BATCH, FitOptions, arrays, built, digest
from tests.keras.refusals import lines_of

STEPS, FORKED_AT = 16, 7
LATER = 5
"""Steps of a clone after its fork."""


class Loop:
    """A model and its data; a step returns the loss."""

    def __init__(self) -> None:
        self.model = built(FitOptions())
        self.model.build((BATCH, 6))
        self.model.optimizer.build(self.model.trainable_variables)

    def given(self) -> dict[str, Any]:
        """Returns arguments of `session`."""
        return {"model": self.model, "optimizer": self.model.optimizer, "scheduler": None, "scaler": None, "ema": None}

    def resumed(self) -> None:
        """Called in a clone once its state is set."""

    def step(self) -> float:
        raise NotImplementedError


class TapeLoop(Loop):
    """Gradients of its own in a `tf.function`, and an iterator of tf.data."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = keras.metrics.Mean()
        self.draws = tf.random.Generator.from_seed(3)
        self.rows = iter(tf.data.Dataset.from_tensor_slices(arrays()).shuffle(20).batch(BATCH, drop_remainder=True).repeat())
        self._trained = tf.function(self._train)

    def given(self) -> dict[str, Any]:
        return {**super().given(), "loader": self.rows, "others": {"seen": self.seen}, "generators": {"draws": self.draws}}

    def step(self) -> float:
        return float(self._trained(*next(self.rows))) + float(self.seen.result())

    def _train(self, inputs: Any, targets: Any) -> Any:  # noqa: ANN401  (tensors)
        inputs += self.draws.normal(tf.shape(inputs))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(inputs, training=True) - targets) ** 2)
        variables = self.model.trainable_variables
        self.model.optimizer.apply(tape.gradient(loss, variables), variables)
        self.seen.update_state(loss)
        return loss


class BatchLoop(Loop):
    """`train_on_batch`, with batches that NumPy draws."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(5)
        self.step()

    def given(self) -> dict[str, Any]:
        return {**super().given(), "loader": None, "generators": {"draws": self.draws}}

    def step(self) -> float:
        inputs, targets = arrays()
        drawn = self.draws.integers(len(inputs), size=BATCH)
        return float(self.model.train_on_batch(inputs[drawn], targets[drawn], return_dict=True)["mae"])


class ForgetfulLoop(TapeLoop):
    """A loop whose place in the data is not carried."""

    def given(self) -> dict[str, Any]:
        return {**super().given(), "loader": None}


class GradientLoop(Loop):
    """Gradients of PyTorch, and batches of a loader of Forebay's, in an order that torch draws."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        from forebay.torch import DataLoader

        torch.manual_seed(4)
        rows = [tuple(map(torch.from_numpy, row)) for row in zip(*arrays(), strict=True)]
        self.loader = DataLoader(rows, batch_size=BATCH, shuffle=True)
        self.draws = torch.Generator().manual_seed(5)
        self.rows = iter(self.loader)

    def given(self) -> dict[str, Any]:
        return {**super().given(), "loader": self.loader, "generators": {"draws": self.draws}}

    def resumed(self) -> None:
        self.rows = iter(self.loader)

    def step(self) -> float:
        import torch

        batch = next(self.rows, None)
        if batch is None:
            self.rows = iter(self.loader)
            batch = next(self.rows)
        inputs, targets = batch
        inputs = inputs + torch.randn(inputs.shape, generator=self.draws)
        self.model.zero_grad()
        loss = ((self.model(inputs, training=True) - targets) ** 2).mean()
        loss.backward()
        variables = self.model.trainable_variables
        with torch.no_grad():
            self.model.optimizer.apply([variable.value.grad for variable in variables], variables)
        return float(loss)


class StatelessLoop(BatchLoop):
    """Keeps its state in arrays of its own, as functions of JAX do, and never in the model's variables."""

    def step(self) -> float:
        return 0.0


LOOPS: dict[str, Callable[[], Loop]] = {"tape": TapeLoop, "batches": BatchLoop, "forgetful": ForgetfulLoop, "gradients": GradientLoop}


def looped(place: CloneNode, name: str, *words: str) -> dict[str, Any]:
    """Returns the records of a loop alone, as a job that is forked, and as its clone: by step its loss and digest."""
    alone = trained(LOOPS[name](), None, STEPS)
    with contextlib.ExitStack() as stack:
        loop = LOOPS[name]()
        job = clone.session(**loop.given(), job="trunk")
        # The job's end would end its forks.
        stack.callback(job.close)
        asked = stack.enter_context(place.cloning("trunk", "--at", str(FORKED_AT), *words))
        parent = trained(loop, job, STEPS)
        os.environ["FOREBAY_CLONE"] = asked
        other = LOOPS[name]()
        cloned = clone.session(**other.given(), job="trunk")
        stack.callback(cloned.close)
        assert cloned.resumed is not None
        other.resumed()
        record = trained(other, cloned, cloned.resumed["step"] + LATER)
    for one in (loop, other):
        assert "apply" not in vars(one.model.optimizer), "a closed session leaves nothing behind"
    return {"alone": alone, "parent": parent, "clone": record, "forks": [fork.step for fork in job.forks]}


def trained(loop: Loop, session: clone.Session | None, last: int) -> dict[str, str]:
    """Trains to a step; returns what each has left behind."""
    steps: dict[str, str] = {}
    begin = session.resumed["step"] if session and session.resumed else 0
    for step in range(begin + 1, last + 1):
        loss = loop.step()
        steps[str(step)] = f"{loss:.9g} {digest(loop.model)}"
        if session is not None:
            session.point(epoch=0, step=step)
    return steps


def untrained(place: CloneNode) -> list[str]:
    """Returns the lines of a job that never changes its variables and is to be forked."""

    def case(_: object) -> None:
        loop = StatelessLoop()
        with contextlib.ExitStack() as stack:
            job = clone.session(**loop.given(), job="trunk")
            stack.callback(job.close)
            stack.enter_context(place.cloning("trunk", "--at", "3"))
            trained(loop, job, 4)

    return lines_of(case, place.root / "said")


def _session(**changed: Any) -> object:
    return clone.session(**{**Loop().given(), "loader": None, "job": "refused", **changed})


def _unbuilt(what: str) -> object:
    model = built(FitOptions())
    if what == "optimizer":
        model.build((BATCH, 6))
    return _session(model=model, optimizer=model.optimizer)


REFUSED_LOOPS: dict[str, Callable[[], object]] = {
    "loop unbuilt model": lambda: _unbuilt("model"),
    "loop unbuilt optimizer": lambda: _unbuilt("optimizer"),
    "loop no optimizer": lambda: _session(optimizer=None),
    "loop ranks": lambda: _session(ranks="mpi"),
    "loop list": lambda: _session(loader=[1, 2]),
    "loop batches": lambda: next(_session().batches([1, 2])),  # type: ignore[attr-defined]
}


def refused_loop(place: CloneNode, name: str) -> list[str]:
    """Returns the lines of a call that is refused."""
    return lines_of(lambda _: REFUSED_LOOPS[name](), place.root / "said")
