"""NVIDIA DALI: samples and batches for its external source, so that DALI decodes what the loader has read ahead.

Imports no DALI.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from forebay.loader import Extent, Located

__all__ = ["Encoded", "lists"]


class Encoded:
    """The undecoded bytes of another dataset's samples, each with a label.

    Args:
        dataset: with `locate`; its `decode` is not called.
        label: function from a sample's index to its label; the index itself unless given. Called from several threads.
    """

    def __init__(self, dataset: Located, label: Callable[[int], Any] = int) -> None:
        self._dataset = dataset
        self._label = label

    def __len__(self) -> int:
        return len(self._dataset)

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        return self._dataset.locate(i)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> tuple[Any, Any]:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`: an array of bytes, and the label."""
        del rng
        return np.frombuffer(data, np.uint8), self._label(i)


def lists(samples: list[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """Makes a batch for DALI, as a loader's `collate_fn`: arrays of bytes of any length, and an array of the labels."""
    encoded, labels = zip(*samples, strict=True)
    return list(encoded), np.asarray(labels)
