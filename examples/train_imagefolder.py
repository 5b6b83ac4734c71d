"""Train a small convolutional network on a folder of images, one directory a class."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class PictureNet(nn.Module):
    """Two convolutions and a linear layer, for small grey images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7)
        )
        self.classify = nn.Linear(16 * 7 * 7, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes, a row an image."""
        scores: torch.Tensor = self.classify(self.features(images).flatten(1))
        return scores


def train_epoch(model: PictureNet, batches: DataLoader[list[torch.Tensor]], optimizer: torch.optim.Optimizer) -> tuple[int, float, float]:
    """Returns the number of images, the mean loss and the share of images classified rightly."""
    images_seen, loss_sum, right = 0, 0.0, 0
    for images, labels in batches:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        images_seen += len(labels)
        loss_sum += loss.item() * len(labels)
        right += int((scores.argmax(1) == labels).sum())
    return images_seen, loss_sum / images_seen, right / images_seen


def main() -> None:
    """Trains and prints a line an epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="directory with one sub-directory a class")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    dataset = datasets.ImageFolder(args.data, transforms.Compose([transforms.Grayscale(), transforms.ToTensor()]))
    batches = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        generator=torch.Generator().manual_seed(args.seed),
    )
    model = PictureNet(len(dataset.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    print(f"{len(dataset)} images, {len(dataset.classes)} classes", flush=True)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        images, loss, accuracy = train_epoch(model, batches, optimizer)
        took = time.perf_counter() - start
        print(f"epoch {epoch}: {took:.2f} s, {images / took:.0f} images/s, loss {loss:.6f}, accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
