"""Trains a small network on small images of digits. While it does, `forebay clone` can fork it at any step.

DATA is an .npz file with `images`, float32 [images, 8, 8], and `labels`, int64 [images]. FILE of --log gets JSON lines:
where the job comes from, then every few steps the loss since the last line and the accuracies by digit. At its end the
scores of the test images and what they are go into an .npz file beside it.
"""

import argparse
import json
import time
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import nn

import forebay.clone as clone

BATCH = 64
CLASSES = 10
EVERY = 10
LOOK_EVERY_S = 0.02
# One in so many images is trained on, so that there is something left to learn from each other.
TRAINED = 5


class DigitNet(nn.Module):
    """Two convolutions and a linear layer, for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)
        )
        self.classify = nn.Linear(32 * 4 * 4, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the digits, a row an image; `images` is float32 [images, 1, 8, 8]."""
        scores: torch.Tensor = self.classify(self.features(images).flatten(1))
        return scores


class Data:
    """Images and labels, to train on and to test with."""

    def __init__(self, file: Path, without: int | None) -> None:
        """`without`: a digit that nothing is learned of."""
        with np.load(file) as loaded:
            images, labels = torch.from_numpy(loaded["images"]).unsqueeze(1), torch.from_numpy(loaded["labels"])
        is_trained = torch.arange(len(labels)) % TRAINED == 0
        self.test_images, self.test_labels = images[~is_trained], labels[~is_trained]
        kept = is_trained if without is None else is_trained & (labels != without)
        self.images, self.labels = images[kept], labels[kept]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Drawn by torch's generator, which is part of what a fork carries."""
        drawn = torch.randint(len(self.labels), (BATCH,))
        return self.images[drawn], self.labels[drawn]


def main() -> None:
    """Trains so many steps; in a clone, so many more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", type=int, choices=range(CLASSES), help="a digit that nothing is learned of")
    parser.add_argument("--hold", type=Path, metavar="FILE", help="before its first step it waits until FILE is gone")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()

    # An empty one says that this program has begun: if it is a clone's, its fork has been asked for.
    args.log.touch()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = Data(args.data, args.without)
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    session = clone.session(model=model, optimizer=optimizer, scheduler=None, scaler=None, ema=None, loader=None)
    step = session.resumed["step"] if session.resumed else 0
    with args.log.open("w") as log:
        lineage = session.lineage
        note(log, job=session.job, parent=lineage.parent if lineage else None, step=step, changes=dict(lineage.changes) if lineage else {})
        while args.hold and args.hold.exists():
            time.sleep(LOOK_EVERY_S)
        last, losses = step + args.steps, []
        while step < last:
            losses.append(train(model, optimizer, *data.batch()))
            step += 1
            if step % EVERY == 0:
                note(log, step=step, loss=sum(losses) / len(losses), lr=optimizer.param_groups[0]["lr"], accuracies=accuracies(model, data))
                losses = []
            session.point(epoch=0, step=step)
    np.savez(args.log.with_suffix(".npz"), scores=scores(model, data).numpy(), labels=data.test_labels.numpy())


def train(model: DigitNet, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """One step; gives the loss."""
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    # So that no gradients are left, which a fork would have to carry.
    optimizer.zero_grad()
    return loss.item()


def scores(model: DigitNet, data: Data) -> torch.Tensor:
    """Returns the probabilities of the test images: float32 [images, CLASSES]."""
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(data.test_images).softmax(1)
    model.train()
    return found


def accuracies(model: DigitNet, data: Data) -> list[float]:
    """The share of test images that are told rightly, by digit."""
    is_right = scores(model, data).argmax(1) == data.test_labels
    return [is_right[data.test_labels == digit].float().mean().item() for digit in range(CLASSES)]


def note(log: TextIO, **told: object) -> None:
    """One line, which others may read at once."""
    log.write(json.dumps(told) + "\n")
    log.flush()


if __name__ == "__main__":
    main()
