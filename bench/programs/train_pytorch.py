"""PyTorch's part of train.py: picture files, read and decoded by a DataLoader's workers."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from models import Conv, Dense, Flatten, Layer, Mean, ModelSpec, Pool, ResidualBlock
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Pixels, the class, and the file's size in bytes.
Sample = tuple[torch.Tensor, int, int]


class Pictures(Dataset[Sample]):
    """Files, in the order in which they are to be read."""

    def __init__(self, paths: list[str], side: int) -> None:
        self._paths = paths
        self._side = side

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Sample:
        path = Path(self._paths[number])
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            # Decodes to an eighth, a quarter or half of the size, whichever is just large enough.
            image.draft("RGB", (self._side, self._side))
            pixels = np.array(image.convert("RGB").resize((self._side, self._side)))
        return torch.from_numpy(pixels), int(path.parent.name), len(data)


class ModelTrainer:
    """A model and its optimizer."""

    def __init__(self, model: ModelSpec, classes: int, batch: int, workers: int, seed: int, rate: float, momentum: float) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        self._side, self._batch, self._workers = model.side, batch, workers
        self._model = build(model, classes)
        self._optimizer = torch.optim.SGD(self._model.parameters(), rate, momentum)
        self._loss = nn.CrossEntropyLoss()
        # What is done only once belongs to no epoch.
        self.step((torch.zeros(batch, self._side, self._side, 3), torch.zeros(batch, dtype=torch.long), torch.zeros(batch)))

    def batches(self, paths: list[str], _epoch: int) -> Iterator[list[torch.Tensor]]:
        """By workers that live for one epoch."""
        return iter(DataLoader(Pictures(paths, self._side), self._batch, num_workers=self._workers))

    def step(self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> tuple[int, int, float, int]:
        """Forward, backward, update."""
        pixels, labels, sizes = batch
        outputs = self._model(pixels.permute(0, 3, 1, 2).float().div(255).sub(0.5))
        loss = self._loss(outputs, labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return len(labels), int(sizes.sum()), float(loss), int((outputs.argmax(1) == labels).sum())

    def accuracy(self, paths: list[str], most: int) -> tuple[float, float]:
        """Returns the shares of pictures whose class comes first, and among the first `most`."""
        first = among = 0
        self._model.eval()
        with torch.no_grad():
            for pixels, labels, _ in self.batches(paths, 0):
                found = self._model(pixels.permute(0, 3, 1, 2).float().div(255).sub(0.5))
                best = found.topk(min(most, found.shape[1])).indices == labels[:, None]
                first += int(best[:, 0].sum())
                among += int(best.any(1).sum())
        self._model.train()
        return first / len(paths), among / len(paths)

    def digest(self) -> int:
        """Returns a digest of weights and running statistics."""
        digest = hashlib.sha256()
        for tensor in self._model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return int.from_bytes(digest.digest()[:8], "little")


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.around: nn.Module = nn.Identity() if inputs == channels and stride == 1 else normalised(inputs, channels, 1, stride)
        self.through = nn.Sequential(normalised(inputs, channels, 3, stride), nn.ReLU(), normalised(channels, channels, 3, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Both ways added."""
        return torch.relu(self.through(inputs) + self.around(inputs))


def normalised(inputs: int, channels: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution, then batch normalisation."""
    convolution = nn.Conv2d(inputs, channels, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels))


@functools.singledispatch
def module(layer: Layer, _shape: torch.Size) -> nn.Module:
    """A layer whose input has this shape: batch, channels, height, width; or batch, width."""
    raise TypeError(f"{layer} is not known here")


@module.register
def _(layer: Conv, shape: torch.Size) -> nn.Module:
    if layer.norm:
        return nn.Sequential(normalised(shape[1], layer.channels, layer.kernel, layer.stride), nn.ReLU())
    return nn.Sequential(nn.Conv2d(shape[1], layer.channels, layer.kernel, layer.stride, padding=layer.kernel // 2), nn.ReLU())


@module.register
def _(layer: Pool, _shape: torch.Size) -> nn.Module:
    return nn.MaxPool2d(layer.size, layer.stride, padding=(layer.size - 1) // 2)


@module.register
def _(layer: ResidualBlock, shape: torch.Size) -> nn.Module:
    return Residual(shape[1], layer.channels, layer.stride)


@module.register
def _(_layer: Mean, _shape: torch.Size) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


@module.register
def _(_layer: Flatten, _shape: torch.Size) -> nn.Module:
    return nn.Flatten()


@module.register
def _(layer: Dense, shape: torch.Size) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[1], layer.width), nn.ReLU())


def build(model: ModelSpec, classes: int) -> nn.Sequential:
    """Layer by layer; an empty picture that goes through tells the shapes."""
    layers: list[nn.Module] = []
    seen = torch.zeros(1, 3, model.side, model.side)
    with torch.no_grad():
        for layer in model.layers:
            layers.append(module(layer, seen.shape))
            # Without training: a single picture has no variance to normalise by, and statistics stay as they are.
            seen = layers[-1].eval()(seen)
    return nn.Sequential(*layers, nn.Linear(seen.shape[1], classes)).train()
