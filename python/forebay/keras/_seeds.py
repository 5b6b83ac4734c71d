"""Generators of random numbers of a Keras job."""

import sys
from typing import Any

from keras.src.backend.common import global_state
from keras.src.random import seed_generator

__all__ = ["global_generator", "seed_generators", "tensorflow_generator"]


def global_generator(*, make: bool = False) -> Any:  # noqa: ANN401  (Keras has no types)
    """Returns the generator of `keras.random` for calls without a seed; None if it has not been used yet.

    Args:
        make: makes it if there is none.
    """
    if make:
        return seed_generator.global_seed_generator()
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def seed_generators(model: Any) -> list[Any]:  # noqa: ANN401
    """Returns the generators of a model's layers, in the order of layers, and the global one last."""
    found = [one for layer in model._flatten_layers() for one in layer._seed_generators]
    last = global_generator()
    return [*dict.fromkeys(found), *([] if last is None else [last])]


def tensorflow_generator() -> Any:  # noqa: ANN401
    """Returns the generator from which eager operations of TensorFlow draw seeds.

    None until `tf.random.set_seed`, or if TensorFlow is not loaded.
    """
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    return None if context is None else getattr(context.context(), "_rng", None)
