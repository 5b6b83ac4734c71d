"""Reads images with PyTorch's DataLoader, as one rank of several: each has its share of every epoch.

With --ranks N and no --rank, starts N such processes and waits for them. Each prints one JSON line an epoch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time


def start_all(args: argparse.Namespace) -> int:
    """One process a rank, side by side; the first exit code that is not 0."""
    words = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(args.ranks)]
    return max(rank.wait() for rank in ranks)


def train(args: argparse.Namespace) -> int:
    """One rank."""
    import numpy
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    torch.set_num_threads(1)

    class Images(Dataset[tuple[torch.Tensor, int]]):
        """Every file below a directory."""

        def __init__(self, root: str) -> None:
            self.paths = sorted(os.path.join(place, name) for place, _, names in os.walk(root) for name in names)  # noqa: PTH118

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            with open(self.paths[number], "rb") as file:  # noqa: PTH123
                data = file.read()
            with Image.open(io.BytesIO(data)) as image:
                pixels = numpy.asarray(image.convert("RGB").resize((64, 64)))
            return torch.from_numpy(pixels.copy()), len(data)

    images = Images(args.root)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        images, num_replicas=args.ranks, rank=args.rank, shuffle=True, seed=args.seed
    )
    loader = DataLoader(images, batch_size=32, sampler=sampler, num_workers=args.workers)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        size = digest = files = 0
        begun = time.monotonic()
        for pixels, sizes in loader:
            files += len(sizes)
            size += int(sizes.sum())
            digest = (digest + int(pixels.sum(dtype=torch.int64))) % 2**64
        seconds = time.monotonic() - begun
        said = {"rank": args.rank, "epoch": epoch + 1, "seconds": seconds, "files": files, "bytes": size, "digest": digest}
        print(json.dumps(said), flush=True)
    return 0


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    return start_all(args) if args.rank is None else train(args)


if __name__ == "__main__":
    sys.exit(main())
