"""Jobs to fork: models of the DeepClone paper's two kinds (one huge layer, many small ones), and their data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import nn

# Of CANDLE's NT3, and small pictures. Batches are smaller than those that such models are trained with (CANDLE: 20), so
# that a step takes a second or less; and large enough for forward and backward pass to take longer than a memcpy of the
# state does.
GENES = 50_028
SIDE = 64
LR = 0.001
# The same bytes in few tensors and in many.
TENSORS_BYTES = 102 << 20


class NT3(nn.Module):
    """As CANDLE's NT3: convolutions over a row of genes, and a dense layer that has nearly all of the weights.

    `units` of that layer: 1,000 make 320 MB.
    """

    def __init__(self, units: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 16, 20), nn.ReLU(), nn.Conv1d(16, 16, 10), nn.ReLU(), nn.MaxPool1d(10), nn.Flatten())
        self.classify = nn.Sequential(
            nn.Linear(16 * ((GENES - 28) // 10), units), nn.ReLU(), nn.Dropout(0.1), nn.Linear(units, 20), nn.ReLU(), nn.Linear(20, 2)
        )

    def forward(self, genes: torch.Tensor) -> torch.Tensor:
        """Scores of the two classes, a row a sample; `genes` is float32 [samples, 1, GENES]."""
        scores: torch.Tensor = self.classify(self.features(genes))
        return scores


class TensorModel(nn.Module):
    """Bytes in so many parameters, and next to no work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(TENSORS_BYTES // 4 // count) for _ in range(count))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """Scores of two classes from the sums of all parts; `scale` is float32 [samples, 2]."""
        total = torch.stack([part.mean() for part in self.parts]).mean()
        return scale * total


@dataclass
class ModelJob:
    """A model that is trained on what torch's generator draws, so that equal states see equal data."""

    model: nn.Module
    # Samples a step.
    batch: int
    shape: tuple[int, ...]
    classes: int
    optimizer_name: str
    optimizer: torch.optim.Optimizer

    def step(self) -> float:
        """One step; gives the loss. No gradients are left, so none belong to the state."""
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def backward(self) -> float:
        """A pass forward and one backward; gives the loss."""
        samples = torch.randn(self.batch, *self.shape)
        labels = torch.randint(self.classes, (self.batch,))
        loss = nn.functional.cross_entropy(self.model(samples), labels)
        loss.backward()
        return loss.item()

    def given(self) -> dict[str, Any]:
        """As sessions and inventories want it."""
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": None, "scaler": None, "ema": None, "loader": None}

    def forget(self) -> None:
        """Makes a new optimizer without state, as it is in a program that has just begun."""
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.model)


MODELS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...], int]] = {
    "nt3": (NT3, 8, (1, GENES), 2),
    "nt3-small": (lambda: NT3(30), 2, (1, GENES), 2),
    "resnet50": (lambda: torchvision.models.resnet50(weights=None), 4, (3, SIDE, SIDE), 1000),
    "resnet152": (lambda: torchvision.models.resnet152(weights=None), 4, (3, SIDE, SIDE), 1000),
    "densenet121": (lambda: torchvision.models.densenet121(weights=None), 4, (3, SIDE, SIDE), 1000),
    "tensors-10": (lambda: TensorModel(10), 2, (2,), 2),
    "tensors-320": (lambda: TensorModel(320), 2, (2,), 2),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    # Without momentum, as the paper's: the state is the weights alone.
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=LR),
    # Three times the weights.
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=LR),
}


def made(model: str, optimizer: str) -> ModelJob:
    """A job of such names, its weights drawn from torch's generator."""
    build, batch, shape, classes = MODELS[model]
    module = build()
    return ModelJob(module, batch, shape, classes, optimizer, OPTIMIZERS[optimizer](module))
