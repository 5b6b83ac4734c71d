"""Trains nothing: iterates over a loader of files under torchrun, and prints a line of JSON for each epoch."""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from forebay.torch import DataLoader
from tests.loader.data import SampleFolder


class Contents(SampleFolder):
    """Each sample is the content of a file that is there already."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def decode(self, data: memoryview, i: int, _generators: object, /) -> bytes:
        return bytes([i % 251]) + bytes(data)


def loader_of(folder: Path, **options: Any) -> DataLoader:
    shape: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "num_workers": 2, "report": False, "collate_fn": list}
    return DataLoader(Contents(folder), **shape, **options)


def digest_of_epoch(loader: DataLoader, epoch: int, pause_s: float = 0.0) -> tuple[str, float]:
    """Returns a digest of all samples of an epoch, in their order, and the longest wait for a batch in seconds."""
    loader.set_epoch(epoch)
    seen = hashlib.sha256()
    slowest_s, last = 0.0, time.monotonic()
    for batch in loader:
        slowest_s = max(slowest_s, time.monotonic() - last)
        for sample in batch:
            seen.update(sample)
        time.sleep(pause_s)
        last = time.monotonic()
    return seen.hexdigest(), slowest_s


def main() -> None:
    folder, cache, epochs, pause_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    dist.init_process_group("gloo")
    loader = loader_of(folder, cache=cache)
    for epoch in range(epochs):
        digest, slowest_s = digest_of_epoch(loader, epoch, pause_s)
        dist.barrier()
        figures = {} if loader._agent is None else loader._agent.figures()
        said = {"rank": int(os.environ["RANK"]), "epoch": epoch, "digest": digest, "slowest_s": slowest_s, "figures": figures}
        os.write(1, (json.dumps(said) + "\n").encode())
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
