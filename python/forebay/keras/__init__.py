"""Keras: a callback that lets `fit` be forked while it trains, and the data loader as a `PyDataset`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.keras._dataset import PyDataset
    from forebay.keras._fork import ForkCallback as Fork

__all__ = ["Fork", "PyDataset"]

# Imported when they are asked for: the loader needs torch, which a job on TensorFlow may not have.
_PARTS = {"Fork": ("forebay.keras._fork", "ForkCallback"), "PyDataset": ("forebay.keras._dataset", "PyDataset")}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, part = _PARTS[name]
    return getattr(importlib.import_module(module), part)
