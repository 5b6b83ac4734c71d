"""A rank of torchrun that iterates over files with `DataLoader(cache=...)`; prints a line of JSON for each epoch."""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from forebay.loader import Extent
from forebay.torch import DataLoader


class Lengths:
    """Each sample is the length of a file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(path for path in folder.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, i: int, /) -> Extent:
        """Returns where a file is."""
        return Extent(str(self.paths[i]))

    def decode(self, data: memoryview, _i: int, _generators: object, /) -> int:
        """Returns the file's length."""
        return len(data)


def main() -> None:
    """Iterates over the epochs, which begin and end in all ranks together."""
    folder, cache, epochs, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    loader = DataLoader(Lengths(folder), batch_size=batch, shuffle=True, seed=1, num_workers=2, cache=cache, report=False, collate_fn=sum)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        dist.barrier()
        begun = time.monotonic()
        read_bytes = sum(loader)
        dist.barrier()
        took_s = time.monotonic() - begun
        figures = loader._agent.figures() if loader._agent is not None else {}
        said = {"rank": int(os.environ["RANK"]), "epoch": epoch, "took_s": took_s, "bytes": read_bytes, "figures": figures}
        os.write(1, (json.dumps(said) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
