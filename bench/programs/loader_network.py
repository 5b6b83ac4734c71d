"""Trains ResNet-18 on pictures, by PyTorch's loader or by ours, and prints each step's loss and the last accuracy.

With `--chance keyed` both loaders draw each sample's augmentation from (seed, epoch, index): the same pictures, to the
last bit. With `stock` each has its own way; torchvision's transforms are as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from steps import say
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder as TheirFolder
from torchvision.models import resnet18
from torchvision.transforms import Compose, Pad, RandomCrop, RandomHorizontalFlip, ToTensor

from forebay.torch import DataLoader as OurLoader
from forebay.torch import ImageFolder as OurFolder
from forebay.torch import Keyed

SIDE = 32
RATE = 0.05
MOMENTUM = 0.9
CLASSES = 10


def batches_of(args: argparse.Namespace) -> tuple[Any, Any]:
    """A loader, and what is to be told of each epoch."""
    augment = Compose([Pad(2), RandomCrop(SIDE, padding=2), RandomHorizontalFlip(), ToTensor()])
    if args.loader == "forebay":
        folder = OurFolder(args.train, transform=augment)
        ours = OurLoader(folder, args.batch, shuffle=True, seed=args.seed, drop_last=True, num_workers=args.threads, report=False)
        return ours, [ours]
    dataset: Any = TheirFolder(str(args.train), augment)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, 1, 0, shuffle=True, seed=args.seed, drop_last=True)
    told: list[Any] = [sampler]
    if args.chance == "keyed":
        dataset = Keyed(dataset, args.seed)
        told.append(dataset)
    return DataLoader(dataset, args.batch, sampler=sampler, num_workers=args.threads, drop_last=True), told


def tops(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The share of pictures whose class the model says."""
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for pictures, labels in batches:
            right += int((model(pictures).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path, help="a directory with one directory a class")
    parser.add_argument("test", type=Path)
    parser.add_argument("--loader", choices=("torch", "forebay"), required=True)
    parser.add_argument("--chance", choices=("keyed", "stock"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    model = resnet18(num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    measure = nn.CrossEntropyLoss()
    batches, told = batches_of(args)
    losses: list[str] = []
    for epoch in range(args.epochs):
        for each in told:
            each.set_epoch(epoch)
        model.train()
        for pictures, labels in batches:
            loss = measure(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(struct.pack("<f", loss.item()).hex())
        scheduler.step()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    plain = TheirFolder(str(args.test), Compose([Pad(2), ToTensor()]))
    say(losses=losses, digest=digest.hexdigest(), top1=tops(model, DataLoader(plain, 256)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
