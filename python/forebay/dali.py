"""NVIDIA DALI: decodes what the loader has read ahead, or is itself the loader's `decode`.

`external_source` gives a DALI pipeline the loader's batches without a copy. `Decoded` runs operators of
DALI as a dataset's `decode`, in the loader's threads. DALI is imported when one of them is used.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from forebay.loader import Extent, Located

__all__ = ["Decoded", "Encoded", "external_source", "lists"]


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


def external_source(loader: Iterable[Any], *, num_outputs: int = 2, depth: int = 2, **options: Any) -> Any:  # noqa: ANN401  (nodes of a graph)
    """Returns the nodes of a DALI graph that give a loader's batches, epoch by epoch; `StopIteration` ends an epoch.

    Operators on the CPU read the bytes where the loader has them: with `cache=`, in the agent's memory.

    Args:
        loader: with `Encoded` samples and `collate_fn=lists`.
        num_outputs: parts of a batch: bytes and labels.
        depth: the pipeline's `prefetch_queue_depth`. The bytes of the last `depth + 2` batches are kept.
        options: of `fn.external_source`.
    """
    from nvidia.dali import fn  # type: ignore[import-not-found, unused-ignore]

    source = _Lent(loader, depth + 2)
    return fn.external_source(source=source, num_outputs=num_outputs, cycle="raise", no_copy=True, **options)


class Decoded:
    """Samples of another dataset, decoded by operators of DALI on the CPU, in the loader's threads.

    Each thread has a pipeline of its own for one sample at a time, so what a sample is depends on no other.

    Args:
        dataset: with `locate`; its `decode` is not called.
        graph: function from a node of encoded bytes to a node of the sample. With `draws`, it is given a second node:
            so many numbers from 0 to 1, drawn from the sample's generator. Operators that draw numbers themselves would
            give other samples in each run.
        label: function from a sample's index to its label; the index itself unless given.
        draws: numbers that the graph is given.
    """

    def __init__(self, dataset: Located, graph: Callable[..., Any], label: Callable[[int], Any] = int, *, draws: int = 0) -> None:
        self._dataset = dataset
        self._graph = graph
        self._label = label
        self._draws = draws
        self._own = threading.local()

    def __len__(self) -> int:
        return len(self._dataset)

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        return self._dataset.locate(i)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> tuple[Any, Any]:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`: an array, and the label."""
        if (pipeline := getattr(self._own, "pipeline", None)) is None:
            pipeline = self._own.pipeline = self._built()
        pipeline.feed_input("encoded", [np.frombuffer(data, np.uint8)])
        if self._draws:
            pipeline.feed_input("numbers", [_drawn(rng, self._draws)])
        (decoded,) = pipeline.run()
        # The pipeline writes the next sample to the same memory.
        return np.array(decoded[0]), self._label(i)

    def _built(self) -> Any:  # noqa: ANN401  (a pipeline)
        from nvidia.dali import Pipeline, fn

        # A thread decodes one sample at a time: queues and threads of the pipeline's own would only cost.
        own = {"exec_dynamic": False, "exec_async": False, "exec_pipelined": False}
        pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1, **own)
        with pipeline:
            encoded = fn.external_source(name="encoded", no_copy=True)
            numbers = [fn.external_source(name="numbers", no_copy=True)] if self._draws else []
            pipeline.set_outputs(self._graph(encoded, *numbers))
        pipeline.build()
        return pipeline

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())


def _drawn(rng: Any, count: int) -> Any:  # noqa: ANN401  (a generator of torch's, or of NumPy's)
    """Returns numbers from 0 to 1 that a sample's generator draws."""
    if isinstance(rng, np.random.Generator):
        return rng.random(count, np.float32)
    import torch

    return torch.rand(count, generator=rng).numpy()


class _Lent:
    """A loader's batches, of which the last few are kept: DALI has no copy of them."""

    def __init__(self, loader: Iterable[Any], kept: int) -> None:
        self._loader = loader
        self._kept: deque[Any] = deque(maxlen=kept)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._kept.append(batch)
            yield batch
