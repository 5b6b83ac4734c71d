"""Jobs that can't be forked, and clones that can't be made: the error that fit raises, or the lines that it says."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from forebay.keras import Fork
from forebay.keras._tensorflow import VariableReader
from tests.clone.clone_node import CloneNode
from tests.keras.fits import BATCH, FitOptions, Recorder, arrays, built, dataset, fit, scheduled, watchers
from tests.keras.matrix import Request


class StepsSeen(keras.callbacks.Callback):  # type: ignore[misc]
    """Has state that nobody can know."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0


class Noise(keras.layers.Layer):  # type: ignore[misc]
    """Draws from TensorFlow."""

    def call(self, inputs: Any) -> Any:  # noqa: ANN401  (a tensor)
        return inputs + tf.random.normal(tf.shape(inputs))


HIDDEN = tf.Variable(1.0, name="hidden")


class Hidden(keras.layers.Layer):  # type: ignore[misc]
    """Reads a variable that is not its own."""

    def call(self, inputs: Any) -> Any:  # noqa: ANN401  (a tensor)
        return inputs * HIDDEN


def generated() -> tf.data.Dataset:
    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from zip(*arrays(), strict=True)

    spec = (tf.TensorSpec([6], tf.float32), tf.TensorSpec([2], tf.float32))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH)


def augmented() -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(arrays())
    return data.map(lambda x, y: (x + tf.random.normal([6]), y)).batch(BATCH)


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of Keras' own kind."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  (a batch)
        return tuple(part[:BATCH] for part in arrays())


def unseeded(fork: Fork) -> None:
    model = built(FitOptions())
    tf.random.set_seed(None)
    try:
        model.fit(*arrays(), verbose=0, callbacks=[fork])
    finally:
        keras.utils.set_random_seed(3)


def never_seeded(fork: Fork) -> None:
    """Trains as in a process without `set_random_seed`, which would have made a generator of TensorFlow."""
    model, here = built(FitOptions()), context.context()
    kept = here._rng
    del here._rng
    try:
        model.fit(dataset(seed=3), verbose=0, callbacks=[fork])
    finally:
        here._rng = kept


def mirrored(fork: Fork) -> None:
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.fit(*arrays(), shuffle=False, verbose=0, callbacks=[fork])


def twice(fork: Fork) -> None:
    model = built(FitOptions())
    for _ in range(2):
        model.fit(*arrays(), verbose=0, callbacks=[fork])


def distributed(fork: Fork) -> None:
    model = built(FitOptions())
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices("cpu")))
    try:
        model.fit(*arrays(), verbose=0, callbacks=[fork])
    finally:
        keras.distribution.set_distribution(None)


def wrapped(fork: Fork) -> None:
    """Has statistics in buffers of torch."""
    from keras.layers import TorchModuleWrapper
    from torch import nn

    fit(FitOptions(layers=lambda: [TorchModuleWrapper(nn.BatchNorm1d(9))]), epochs=1, fork=fork)


def unknown_backend(fork: Fork) -> None:
    """Trains as on a backend that Forebay does not know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "openvino")
        fit(FitOptions(), epochs=1, fork=fork)


def restored(fork: Fork) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = built(FitOptions())
        model.build((BATCH, 6))
        model.fit(*arrays(), verbose=0, callbacks=[fork, keras.callbacks.BackupAndRestore(directory)])


CASES: dict[str, Callable[[Fork], object]] = {
    "unseeded": unseeded,
    "never seeded": never_seeded,
    "python data": lambda fork: fit(FitOptions(data=lambda: Rows(workers=1)), epochs=1, fork=fork),
    "callback": lambda fork: fit(FitOptions(callbacks=lambda: [StepsSeen()]), epochs=1, fork=fork),
    "restored": restored,
    "strategy": mirrored,
    "from_generator": lambda fork: fit(FitOptions(data=generated), epochs=1, fork=fork),
    "random map": lambda fork: fit(FitOptions(data=augmented), epochs=1, fork=fork),
    "random op": lambda fork: fit(FitOptions(layers=lambda: [Noise()]), epochs=1, fork=fork),
    "variable": lambda fork: fit(FitOptions(layers=lambda: [Hidden()]), epochs=1, fork=fork),
    "second fit": twice,
    "distributed": distributed,
    "wrapped": wrapped,
    "unknown backend": unknown_backend,
    "tf.data": lambda fork: fit(FitOptions(data=dataset), epochs=1, fork=fork),
    "shuffled batches": lambda fork: fit(FitOptions(fitted={"shuffle": "batch"}), epochs=1, fork=fork),
}


PLAIN, SCHEDULED = FitOptions(), FitOptions(optimizer=scheduled)
# The job's options, the clone's, and words of the command.
CLONES: dict[str, tuple[FitOptions, FitOptions, tuple[str, ...]]] = {
    "another model": (PLAIN, FitOptions(layers=lambda: [keras.layers.Dense(5)]), ()),
    "another shape": (PLAIN, FitOptions(width=10), ()),
    "other data": (PLAIN, FitOptions(data=dataset), ()),
    "other callbacks": (PLAIN, FitOptions(callbacks=watchers), ()),
    "a number": (PLAIN, PLAIN, ("--set", "momentum=0.5")),
    "a rate of a schedule": (SCHEDULED, SCHEDULED, ("--set", "lr=0.1")),
}


def cloned(place: CloneNode, source: FitOptions, options: FitOptions, words: tuple[str, ...]) -> Callable[[Fork], object]:
    """Returns a case in which a program is a clone of a job with other options."""

    def case(fork: Fork) -> None:
        with contextlib.ExitStack() as stack:
            request = Request(place, FitOptions.at, stack, *words)
            stateless = [Recorder, Request]
            fit(source, epochs=2, fork=Fork("trunk", stateless=stateless), more=[request])
            os.environ["FOREBAY_CLONE"] = request.asked
            fit(options, epochs=2, fork=Fork("trunk", stateless=stateless), more=[request])

    return case


def lines_of(case: Callable[[Fork], object], path: Path) -> list[str]:
    """Returns the error of a case, and what it says on standard error."""
    saved = os.dup(2)
    said: list[str] = []
    with path.open("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            case(Fork("refused", stateless=[Recorder]))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return [*said, *(line for line in path.read_text().splitlines() if line.startswith("forebay: "))]


def refused(place: CloneNode, name: str) -> list[str]:
    """Returns the lines of a case."""
    return lines_of(CASES[name] if name in CASES else cloned(place, *CLONES[name]), place.root / "said")


def held_reads() -> dict[str, float]:
    """Returns how much reads that are held change by updates of each kind; TensorFlow documents none of it."""
    variable = tf.Variable(np.ones((1000, 8), np.float32))
    rows = tf.IndexedSlices(tf.ones((2, 8)), tf.constant([3, 7]))
    reader, changes = VariableReader(), {}
    updates: dict[str, Callable[[], object]] = {
        "dense": lambda: variable.assign_add(tf.ones((1000, 8))),
        "sparse": lambda: variable.scatter_add(rows),
        "sparse again": lambda: variable.scatter_sub(rows),
        "dense after sparse": lambda: variable.assign_sub(tf.ones((1000, 8))),
        "assigned": lambda: variable.assign(tf.zeros((1000, 8))),
    }
    for name, update in updates.items():
        (held,) = reader([variable])
        before = held.array.copy()
        update()
        assert not np.array_equal(before, variable.numpy()), name
        changes[name] = float(np.abs(held.array - before).max())
    return changes
