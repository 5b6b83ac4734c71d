"""Keras jobs for tests of forks, with any set of options, and what each of their steps leaves behind.

They run on the backend that the environment names.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from forebay.keras import Fork

SAMPLES, BATCH, WIDTH = 44, 4, 6


@dataclass
class FitOptions:
    """A way to train.

    Attributes:
        compiled: arguments of `compile`.
        optimizer: makes the optimizer.
        data: `arrays`, or makes a tf.data.
        fitted: arguments of `fit`.
        callbacks: makes further callbacks.
        policy: the model's type of numbers.
        layers: makes further layers.
        at: step of the fork.
        words: options of `forebay clone`.
        width: neurons of the first layer.
        early: variables are copied while the step before the fork runs.
    """

    compiled: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(0.01)
    data: Callable[[], Any] | None = None
    fitted: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[Any]] = list
    policy: str = "float32"
    layers: Callable[[], list[Any]] = list
    at: int = 14
    words: tuple[str, ...] = ()
    width: int = 9
    early: bool = False


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the loss and the digest of all variables after each step, and the numbers of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[tuple[int, int], str] = {}
        self.epochs: dict[int, dict[str, float]] = {}
        self._epoch = 0

    def told(self) -> dict[str, Any]:
        return {"steps": {f"{epoch}:{batch}": seen for (epoch, batch), seen in self.steps.items()}, "epochs": self.epochs}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.steps[self._epoch, batch] = f"{float((logs or {})['loss']):.9g} {digest(self.model)}"

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.epochs[epoch] = {name: float(value) for name, value in (logs or {}).items()}


def digest(model: keras.Model) -> str:
    """Returns a digest of everything that a model, its optimizer and its metrics hold."""
    found = hashlib.sha256()
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
    for variable in [*model.variables, *model.optimizer.variables, *model.metrics_variables]:
        found.update(np.asarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
    return found.hexdigest()[:16]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(5)
    inputs = drawn.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    return inputs, inputs[:, :2] @ np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def dataset(*, seed: int | None = None, repeats: bool = False, known: bool = True) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(20, seed=seed)
    if not known:
        data = data.filter(lambda x, y: True)
    data = data.map(lambda x, y: (2 * x, y)).batch(BATCH)
    return (data.repeat() if repeats else data).prefetch(2)


def rows() -> Any:  # noqa: ANN401  (torch is loaded only if it is asked for)
    """Returns the rows of a loader, in an order that torch's generator draws."""
    import torch

    from forebay.keras import PyDataset
    from forebay.torch import DataLoader

    torch.manual_seed(4)
    return PyDataset(DataLoader(list(zip(*arrays(), strict=True)), batch_size=BATCH, shuffle=True))


def built(options: FitOptions) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(options.policy)
    layers = [
        keras.layers.Dense(options.width, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
    ]
    model = keras.Sequential([*layers, *options.layers(), keras.layers.Dense(2, dtype="float32")])
    model.compile(options.optimizer(), "mse", metrics=["mae"], **{"jit_compile": False, **options.compiled})
    return model


def fit(options: FitOptions, *, epochs: int = 3, fork: Fork | None = None, more: Sequence[Any] = ()) -> tuple[keras.Model, Recorder]:
    """Trains, and returns the model and the record."""
    model, recorder = built(options), Recorder()
    data: dict[str, Any] = {"x": options.data()} if options.data else dict(zip("xy", arrays(), strict=True))
    if not options.data:
        data["batch_size"] = BATCH
    forks = [] if fork is None else [fork]
    model.fit(**data, epochs=epochs, verbose=0, callbacks=[*forks, recorder, *options.callbacks(), *more], **options.fitted)
    return model, recorder


class Augment(keras.layers.Layer):  # type: ignore[misc]
    """Draws from Keras' global generator, since it has none of its own."""

    def call(self, inputs: Any, *, training: bool = False) -> Any:  # noqa: ANN401  (a tensor)
        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs)) if training else inputs


def watchers() -> list[Any]:
    """A rate that falls when `min_delta` says so, which these two change the sign of by themselves."""
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=10.0)
    return [
        plateau,
        keras.callbacks.EarlyStopping(monitor="loss", patience=9, restore_best_weights=True),
        keras.callbacks.SwapEMAWeights(True),
    ]


def averaged() -> keras.Optimizer:
    return keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=None)


def scheduled() -> keras.Optimizer:
    return keras.optimizers.Lion(keras.optimizers.schedules.CosineDecay(0.01, 40))


def noised() -> list[Any]:
    """Layers that draw; a compiled step of JAX can't from the generator of the process."""
    layers = [keras.layers.GaussianNoise(0.1)]
    return layers if keras.backend.backend() == "jax" else [*layers, Augment()]


# Steps: 11 in an epoch, and 3 epochs.
OPTIONS = {
    "plain": FitOptions(),
    "arrays between epochs": FitOptions(at=11),
    "dataset": FitOptions(data=dataset),
    "dataset between epochs": FitOptions(data=dataset, at=11),
    "dataset with a seed": FitOptions(data=lambda: dataset(seed=3)),
    "dataset repeated": FitOptions(data=lambda: dataset(repeats=True), fitted={"steps_per_epoch": 8}, at=13),
    "dataset of unknown length": FitOptions(data=lambda: dataset(known=False)),
    "arrays in parts of an epoch": FitOptions(fitted={"steps_per_epoch": 5}, at=8),
    "loader": FitOptions(data=rows),
    "loader between epochs": FitOptions(data=rows, at=11),
    "jit": FitOptions(compiled={"jit_compile": True}),
    "steps_per_execution": FitOptions(compiled={"steps_per_execution": 4}, at=15),
    "mixed_float16": FitOptions(policy="mixed_float16"),
    "bfloat16": FitOptions(policy="bfloat16"),
    "average": FitOptions(optimizer=lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5)),
    "accumulation": FitOptions(optimizer=lambda: keras.optimizers.SGD(0.01, momentum=0.9, gradient_accumulation_steps=3)),
    "callbacks": FitOptions(optimizer=averaged, callbacks=watchers),
    "eager": FitOptions(compiled={"run_eagerly": True}),
    "noise": FitOptions(layers=noised),
    "shadow": FitOptions(words=("--verify", "shadow:3")),
    "seed": FitOptions(words=("--set", "seed=7")),
    "rate": FitOptions(words=("--set", "lr*=0.5")),
    "schedule": FitOptions(optimizer=scheduled),
}
