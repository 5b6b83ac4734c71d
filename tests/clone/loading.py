"""A job by a session's own loop, whose results are its batches."""

from collections.abc import Callable
from typing import Any

import torch

import forebay.clone as clone
from tests.clone import jobs

BATCHES = 4
"""Of an epoch: 12 samples, 3 a batch."""


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Samples whose augmentation draws from the process's generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


class Loading:
    """Trains nothing, but draws in each step as dropout does."""

    def __init__(self, loader: Callable[[], Any], *, is_given: bool = False) -> None:
        self.job = jobs.job(jobs.sgd)
        self.loader = loader()
        self.job.loader = self.loader if is_given else None
        self.had: list[list[float]] = []

    def run(self, session: clone.Session | None, epochs: int) -> None:
        for _ in session.epochs(epochs) if session else range(epochs):
            for batch in session.batches(self.loader) if session else self.loader:
                torch.rand(1)
                for parameter in self.job.model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                self.job.optimizer.step()
                self.had.append(batch.flatten().tolist())

    def close(self) -> None:
        """Ends workers that stay: they hold whatever the process had open when they were forked."""
        iterator = getattr(self.loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
