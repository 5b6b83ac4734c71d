"""Trains a small Keras network on images of digits by `fit`. While it does, `forebay clone` can fork it at any step.

DATA, the options and the files that it writes are those of train.py, except that a line's loss is the mean of its
epoch's steps so far, as Keras tells it.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from forebay.keras import Fork

BATCH = 64
CLASSES = 10
EVERY = 10
LOOK_EVERY_S = 0.02
# One in so many images is trained on, so that there is something left to learn from each other.
TRAINED = 5
# More than any experiment takes: the log ends training by steps.
EPOCHS = 1_000_000


class Log(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes the log, and ends training after some steps."""

    def __init__(self, file: Path, fork: Fork, steps: int, hold: Path | None, test: tuple[Any, Any]) -> None:
        super().__init__()
        self._fork, self._steps, self._hold = fork, steps, hold
        # Lines are whole, since others read them at once.
        self._file = file.open("w", buffering=1)
        self._images, self._labels = test
        self._step, self._last, self._is_begun = 0, 0, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401  (a dictionary, which is not read)
        """Begins the log once it is known whether this is a clone; `Fork` knows when training has begun."""
        if self._is_begun:
            return
        self._is_begun = True
        lineage = self._fork.lineage
        self._step = lineage.step if lineage else 0
        self._last = self._step + self._steps
        parent, changes = (lineage.parent, dict(lineage.changes)) if lineage else (None, {})
        self._note(job=os.environ.get("FOREBAY_JOB"), parent=parent, step=self._step, changes=changes)
        while self._hold and self._hold.exists():
            time.sleep(LOOK_EVERY_S)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401  (numbers by name)
        """Writes a line every few steps."""
        self._step += 1
        if self._step % EVERY == 0:
            is_right = self.scores().argmax(1) == self._labels
            found = [float(is_right[self._labels == digit].mean()) for digit in range(CLASSES)]
            rate = float(self.model.optimizer.learning_rate)
            self._note(step=self._step, loss=float(logs["loss"]), lr=rate, accuracies=found)
        self.model.stop_training = self._step >= self._last

    def _note(self, **told: object) -> None:
        self._file.write(json.dumps(told) + "\n")

    def scores(self) -> Any:  # noqa: ANN401  (an array)
        """Returns the probabilities of the test images: float32 [images, CLASSES]."""
        return keras.ops.convert_to_numpy(keras.ops.softmax(self.model(self._images, training=False)))


def main() -> None:
    """Trains so many steps; in a clone, so many more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold", type=Path, metavar="FILE", help="before its first step it waits until FILE is gone")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    # An empty one says that this program has begun: if it is a clone's, its fork has been asked for.
    args.log.touch()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(args.seed)
    with np.load(args.data) as loaded:
        images, labels = loaded["images"][..., None], loaded["labels"]
    is_trained = np.arange(len(labels)) % TRAINED == 0
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.3),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.compile(keras.optimizers.SGD(args.lr, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fork = Fork(stateless=[Log])
    log = Log(args.log, fork, args.steps, args.hold, (images[~is_trained], labels[~is_trained]))
    model.fit(images[is_trained], labels[is_trained], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[fork, log])
    np.savez(args.log.with_suffix(".npz"), scores=log.scores(), labels=labels[~is_trained])


if __name__ == "__main__":
    main()
