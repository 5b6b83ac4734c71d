"""Changes that `forebay clone --set` makes in a clone of a Keras job: a learning rate and a seed."""

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from forebay.clone._errors import DifferenceError
from forebay.keras._seeds import seed_generators, tensorflow_generator

__all__ = ["change"]


def change(given: Mapping[str, Mapping[str, object]], name: str, value: float, rank: int) -> None:
    """Sets a number; see `StateAdapter.change`.

    Raises:
        DifferenceError: there is nothing of that name, or the next step would undo the change.
    """
    if name == "seed":
        _seed(given["model"].values(), (int(value) + rank) % 2**31)
    elif name in ("lr", "lr*"):
        for optimizer in given["optimizer"].values():
            _set_rate(optimizer, name, value)
    else:
        raise DifferenceError(f"{name} can't be set: Keras compiles it into the train step; there are lr and seed")


def _set_rate(optimizer: Any, name: str, value: float) -> None:  # noqa: ANN401
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise DifferenceError(f"{name} can't be set: with each step {type(inner._learning_rate).__name__} computes it again")
    new = float(inner.learning_rate) * value if name == "lr*" else value
    if new < 0:
        raise DifferenceError(f"{name} can't be set: a learning rate can't be negative")
    inner.learning_rate = new


def _seed(models: Iterable[Any], seed: int) -> None:
    """Seeds all generators, those of layers each in its own way."""
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if (own := tensorflow_generator()) is not None:
        own.seed(seed)
    for number, generator in enumerate(dict.fromkeys(one for model in models for one in seed_generators(model))):
        generator.state.assign(np.array([seed, number], generator.state.dtype))
