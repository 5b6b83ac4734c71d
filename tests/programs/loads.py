"""Loads images with a torch DataLoader, for two epochs, with workers by one start method. Knows nothing of Forebay.

Words after the method are a command, run between the epochs.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Images(Dataset[torch.Tensor]):
    """The images below a directory."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).rglob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(self.files[number])))


def main() -> None:
    root, method, *between = sys.argv[1:]
    images, order = Images(root), torch.Generator()
    loader = DataLoader(
        images,
        batch_size=8,
        sampler=RandomSampler(images, generator=order),
        num_workers=0 if method == "none" else 2,
        multiprocessing_context=None if method == "none" else method,
        persistent_workers=method != "none",
    )
    for epoch in range(2):
        order.manual_seed(epoch)
        digest = hashlib.sha256()
        for batch in loader:
            digest.update(batch.numpy().tobytes())
        print(epoch, digest.hexdigest(), flush=True)
        if between and not epoch:
            subprocess.run(between, check=True)


if __name__ == "__main__":
    main()
