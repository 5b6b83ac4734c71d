"""Trains a model in Keras on TensorFlow under `Fork(early=True)` until its input ends; a clone trains one step.

Usage: python -m bench.programs.keras_early nt3 | resnet50

A first line once the step is trained after which forks are early. Then a line for each fork: bytes that were copied
while the step before it ran (`early`), bytes of all variables that may be (`marked`), and seconds of that step.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from typing import Any

import keras
import numpy as np

from forebay.keras import Fork
from forebay.keras._tensorflow_marks import MARKED_FROM_BYTES

# As in clone_models.py, whose module needs PyTorch.
GENES = 50_028
UNITS = 1000
SIDE = 64
LR = 0.001
EPOCH_STEPS = 16
# Keras' own train function is compiled in the second step.
FIRST_STEPS = 3


def nt3() -> keras.Model:
    """Network of CANDLE's NT3: convolutions over a row of genes, and a dense layer with nearly all of the weights."""
    of = keras.layers
    layers = [
        keras.Input((GENES, 1)),
        of.Conv1D(16, 20, activation="relu"),
        of.Conv1D(16, 10, activation="relu"),
        of.MaxPooling1D(10),
        of.Flatten(),
        of.Dense(UNITS, activation="relu"),
        of.Dropout(0.1),
        of.Dense(20, activation="relu"),
        of.Dense(2),
    ]
    return keras.Sequential(layers)


def resnet50() -> keras.Model:
    """ResNet-50 for small pictures."""
    return keras.applications.ResNet50(weights=None, input_shape=(SIDE, SIDE, 3), classes=1000, classifier_activation=None)


MODELS = {"nt3": (nt3, 8, 2), "resnet50": (resnet50, 4, 1000)}
"""Models with their samples a step and classes."""


class Forks(keras.callbacks.Callback):  # type: ignore[misc]
    """Prints the forks, and ends training."""

    def __init__(self, fork: Fork) -> None:
        super().__init__()
        self._fork, self._is_over = fork, threading.Event()
        self._steps, self._told, self._begun, self._took_s = 0, 0, 0.0, 0.0

    def on_train_begin(self, logs: object = None) -> None:
        """Waits for the end of the standard input in a thread."""
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self._is_over.set()

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Prints the forks of the boundary before."""
        forks = self._fork.forks
        for one in forks[self._told :]:
            tell(early=one.early, marked=marked(self.model), step_s=self._took_s)
        self._told = len(forks)
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Notes the step's time, and ends training if it is over."""
        self._took_s = time.monotonic() - self._begun
        self._steps += 1
        if self._steps == FIRST_STEPS:
            tell(step=self._steps)
        self.model.stop_training = self._fork.lineage is not None or self._is_over.is_set()


def marked(model: keras.Model) -> int:
    """Bytes of all variables that are copied early."""
    sizes = [math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in (*model.variables, *model.optimizer.variables)]
    return sum(size for size in sizes if size >= MARKED_FROM_BYTES)


def tell(**told: Any) -> None:
    """Prints a line."""
    print(json.dumps(told), flush=True)


def main() -> None:
    """See above."""
    make, batch, classes = MODELS[sys.argv[1]]
    keras.utils.set_random_seed(1)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LR, momentum=0.9), loss)
    choice = np.random.default_rng(1)
    samples = choice.standard_normal((batch * EPOCH_STEPS, *model.input_shape[1:]), dtype=np.float32)
    labels = choice.integers(classes, size=batch * EPOCH_STEPS)
    fork = Fork(early=True, stateless=[Forks])
    model.fit(samples, labels, batch_size=batch, epochs=1_000_000, verbose=0, callbacks=[Forks(fork), fork])


if __name__ == "__main__":
    main()
