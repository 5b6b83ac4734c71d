"""Trains with Keras, and prints which samples each batch of each epoch had. Its backend is the environment's.

Usage: fits.py
"""

import json
import time
from typing import Any

import keras
import numpy as np

from forebay.keras import PyDataset
from forebay.torch import DataLoader

SAMPLES, BATCH, SEED = 11, 3, 5


class FitSamples:
    """Each sample is its index, and its target twice that."""

    def __init__(self, samples: int = SAMPLES, bad: int | None = None, takes_s: float = 0.0) -> None:
        self.samples, self.bad, self.takes_s = samples, bad, takes_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == self.bad:
            raise OSError("it is gone")
        time.sleep(self.takes_s)
        return np.array([index], np.float32), np.array([2 * index], np.float32)


class Evens(FitSamples):
    """Twice as much."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return tuple(2 * part for part in super().__getitem__(index))  # type: ignore[return-value]


class KerasModel(keras.Model):  # type: ignore[misc]
    """Remembers what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = keras.layers.Dense(1)
        self.seen: list[list[list[int]]] = []

    def call(self, inputs: Any) -> Any:  # noqa: ANN401  (a backend's tensor)
        return self.scale(inputs)

    def _see(self, *data: Any) -> None:
        # jax's has a state before it.
        inputs, targets = (keras.ops.convert_to_numpy(part) for part in data[-1])
        assert (2 * inputs == targets).all()
        self.seen[-1].append([int(one) for one in inputs[:, 0]])

    def train_step(self, *data: Any) -> dict[str, float]:
        self._see(*data)
        return {"loss": 0.0}

    def test_step(self, *data: Any) -> dict[str, float]:
        self._see(*data)
        return {"loss": 0.0}


class FitEpochs(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the model when an epoch begins, and stops training after a number of batches of one."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.model.seen.append([])

    def on_test_begin(self, logs: object = None) -> None:
        self.model.seen.append([])

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch + 1 == self.stop_after:
            self.model.stop_training = True


class Halves(PyDataset):
    """A user's own, of which each batch is asked for by way of another function."""

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  (whatever a batch is)
        return self.halved(index)

    def halved(self, index: int) -> Any:  # noqa: ANN401  (whatever a batch is)
        inputs, targets = super().__getitem__(index)
        return inputs / 2, targets / 2


def compiled() -> KerasModel:
    model = KerasModel()
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    return model


def fitted(data: PyDataset, **options: Any) -> list[list[list[int]]]:
    """Returns the batches that `fit` gives a new model with its defaults and these options, by epochs."""
    model = compiled()
    model.fit(data, verbose=0, **{"callbacks": [FitEpochs()], **options})
    return model.seen


def data_of(samples: FitSamples, batch: int = BATCH, **options: Any) -> PyDataset:
    return PyDataset(DataLoader(samples, batch, **{"shuffle": True, "seed": SEED, "report": False, **options}))


def main() -> None:
    """See above."""
    found: dict[str, Any] = {}
    data = data_of(FitSamples(), report=True)
    found["whole"] = fitted(data, epochs=2) + fitted(data, epochs=3, initial_epoch=2)
    found["next"] = data.loader.epoch
    # Keras goes on where it was: two of its epochs have one of the loader's.
    found["parts"] = fitted(data_of(FitSamples()), epochs=4, steps_per_epoch=2)
    # All batches of an epoch are looked at before it begins.
    found["two"] = fitted(data_of(FitSamples(), 6), epochs=2)
    validation = data_of(FitSamples(), shuffle=False)
    found["validated"] = fitted(data_of(FitSamples()), epochs=2, validation_data=validation)
    model = compiled()
    model.evaluate(data_of(FitSamples()), verbose=0, callbacks=[FitEpochs()])
    found["evaluated"] = model.seen
    found["predicted"] = compiled().predict(data_of(FitSamples(), shuffle=False), verbose=0).shape
    # A state from the middle of an epoch: its rest first.
    data = data_of(FitSamples())
    batches = iter(data.loader)
    next(batches)
    data.loader.load_state_dict(data.loader.state_dict())
    found["rest"] = fitted(data, steps_per_epoch=data.loader.left) + fitted(data, initial_epoch=1, epochs=2)
    # An epoch that was left is begun again, whatever was asked for ahead, and another one if that is said.
    data = data_of(FitSamples())
    found["left"] = fitted(data, callbacks=[FitEpochs(stop_after=3)]) + fitted(data)
    data = data_of(FitSamples())
    found["left"] += fitted(data, callbacks=[FitEpochs(stop_after=1)])
    data.loader.set_epoch(7)
    found["left"] += fitted(data)
    found["by hand"] = [[[int(one) for one in inputs[:, 0]] for inputs, _ in data] for _ in range(2)]
    data = data_of(FitSamples())
    data[0]
    found["looked at by hand"] = fitted(data)
    found["derived"] = fitted(Halves(DataLoader(Evens(), BATCH, shuffle=True, seed=SEED, report=False)))
    try:
        fitted(data_of(FitSamples(bad=3)))
    except Exception as error:
        found["failed"] = str(error)
    # TensorFlow still asks ahead for the one that was stopped when the next one begins.
    data = data_of(FitSamples(60, takes_s=0.003))
    fitted(data, callbacks=[FitEpochs(stop_after=4)])
    found["at once"] = fitted(data)
    # As the last: what this leaves must not keep the interpreter from ending.
    found["last"] = fitted(data, callbacks=[FitEpochs(stop_after=4)])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
