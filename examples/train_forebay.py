"""Train a small convolutional network on a folder of images with Forebay's loader.

Stop it at any time, and it goes on where it was.

As it is, or on several ranks (`torchrun --nproc-per-node 2 train_forebay.py ...`); what is stopped on two may go on on
one.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from forebay.torch import DataLoader, ImageFolder, TrainCrop


def main() -> None:
    """Trains, and prints a line an epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="directory with one sub-directory a class")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="file to keep the training's state in")
    parser.add_argument("--state-every", type=int, default=50, help="batches")
    args = parser.parse_args()

    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    torch.manual_seed(args.seed)
    # Random parts of the images, as bytes; random by seed, epoch and image alone.
    train = ImageFolder(args.data, TrainCrop(28, scale=(0.5, 1.0), flip=0))
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 7 * 7, len(train.classes))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if args.state and args.state.exists():
        for name, state in torch.load(args.state).items():
            parts[name].load_state_dict(state)
    trained = DistributedDataParallel(model) if loader.world_size > 1 else model
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        counts = torch.zeros(2, dtype=torch.int64)
        for number, (images, labels) in enumerate(loader, 1):
            scores = trained(images.float().div_(255))
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts += torch.tensor([len(labels), int((scores.argmax(1) == labels).sum())])
            if args.state and number % args.state_every == 0 and loader.rank == 0:
                # Whole, or not at all: a job may be stopped while it writes.
                torch.save({name: part.state_dict() for name, part in parts.items()}, part_of := args.state.with_suffix(".part"))
                part_of.replace(args.state)
        if loader.world_size > 1:
            distributed.all_reduce(counts)
        seen, right = counts.tolist()
        if loader.rank == 0:
            print(f"epoch {epoch}: {seen} images, accuracy {right / max(seen, 1):.4f}", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
