"""Optimizers that update in the backward pass, each some parameters as soon as their gradients are there."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer

from forebay.clone._adapter import BeforeStep

__all__ = ["BackwardSteps"]


class BackwardSteps:
    """Updates of a job with several optimizers.

    In a backward pass an update changes what its optimizer has, and nothing else runs between two updates but other
    hooks. So what other optimizers have can still be read in place, until their own update or the end of the pass. A
    hook may follow an update with one of an average, of which nobody is told: so what no optimizer has is closed at the
    first update. Outside of a backward pass the program may do anything after the first update.
    """

    def __init__(self, before: BeforeStep, optimizers: Sequence[Optimizer]) -> None:
        """Takes the function that is called before tensors change, and all optimizers of the job."""
        self._before = before
        self._optimizers = optimizers
        # The backward pass at whose end all tensors are closed.
        self._pass = -1

    def before(self, optimizer: Optimizer) -> None:
        """Names the tensors that the update of an optimizer changes, before it does."""
        # Torch before 2.1 does not know it.
        current = getattr(torch._C, "_current_graph_task_id", lambda: -1)()
        if current == -1:
            self._before(None)
        elif current == self._pass:
            self._before(lambda: (_tensors(optimizer), None))
        elif self._before(lambda: (_tensors(optimizer), chain.from_iterable(map(_tensors, self._optimizers)))):
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._before(None)


def _tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yields all tensors to which an optimizer's update writes."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            yield from _within(optimizer.state.get(parameter, {}))


def _within(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _within(item)
