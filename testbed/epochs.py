"""A job whose ranks iterate over files with `DataLoader(cache=...)`, on nodes of the test bed.

A rank prints a line of JSON for each epoch.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from forebay._launcher import rank_and_world
from forebay.loader import Extent
from forebay.torch import DataLoader

if TYPE_CHECKING:
    from testbed.nodes import JobNode

__all__ = ["PROGRAM", "Contents", "EpochSeen", "free_port", "loader_of", "start"]

PROGRAM = Path(__file__)


class Contents:
    """Each sample is the content of a file, behind a byte of its number."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(path for path in folder.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, i: int, /) -> Extent:
        """Returns where a file is."""
        return Extent(str(self.paths[i]))

    def decode(self, data: memoryview, i: int, _generators: object, /) -> bytes:
        """Returns the sample."""
        return bytes([i % 251]) + bytes(data)


@dataclass(frozen=True)
class EpochSeen:
    """An epoch of a rank: a digest of all samples in their order, its duration and longest wait for a batch."""

    digest: str
    took_s: float
    slowest_s: float

    @classmethod
    def of(cls, loader: DataLoader, epoch: int, pause_s: float = 0.0) -> "EpochSeen":
        """Iterates over an epoch, with a pause after each batch."""
        loader.set_epoch(epoch)
        seen, slowest_s = hashlib.sha256(), 0.0
        begun = last = time.monotonic()
        for batch in loader:
            slowest_s = max(slowest_s, time.monotonic() - last)
            for sample in batch:
                seen.update(sample)
            time.sleep(pause_s)
            last = time.monotonic()
        return cls(seen.hexdigest(), time.monotonic() - begun, slowest_s)


def loader_of(folder: Path, batch_size: int = 4, **options: Any) -> DataLoader:
    """Returns the loader of a rank."""
    return DataLoader(Contents(folder), batch_size, shuffle=True, seed=5, num_workers=2, report=False, collate_fn=list, **options)


def free_port() -> str:
    """Returns a port for the first rank of a job."""
    with socket.socket() as free:
        free.bind(("", 0))
        return str(free.getsockname()[1])


def start(
    job: "Sequence[JobNode]",
    words: Sequence[str],
    variables: Mapping[str, str],
    port: str | None = None,
    before: Mapping[int, Sequence[str]] | None = None,
) -> "list[subprocess.Popen[str]]":
    """Starts the program on all nodes by torchrun, with a rank on each.

    Its words are FOLDER CACHE EPOCHS PAUSE_S [POLICY]. In values of variables, ROOT stands for a node's own directory.
    `before` has words that come before the command on a node, by its number.
    """
    port = port or free_port()
    started = []
    for node in job:
        shape = ["--nnodes", str(len(job)), "--nproc-per-node", "1", "--node-rank", str(node.number)]
        first = ["--master-addr", job[0].address, "--master-port", port]
        inside = (before or {}).get(node.number, ())
        command = [*inside, sys.executable, "-m", "torch.distributed.run", *shape, *first, str(PROGRAM), *words]
        own = {name: value.replace("ROOT", str(node.root)) for name, value in variables.items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **own}
        started.append(node.start(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return started


def main() -> None:
    """Iterates over epochs that begin and end in all ranks together."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("cache")
    parser.add_argument("epochs", type=int)
    parser.add_argument("pause_s", type=float)
    parser.add_argument("policy", nargs="?")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--late-s", type=float, default=0.0, help="time after which ranks other than the first begin")
    given = parser.parse_args()
    rank, world = rank_and_world()
    dist.init_process_group("gloo", rank=rank, world_size=world)
    time.sleep(given.late_s if rank else 0.0)
    loader = loader_of(given.folder, given.batch_size, cache=given.cache, policy=given.policy)
    for epoch in range(given.epochs):
        # The first rank does not wait for those that come late.
        if epoch or not given.late_s:
            dist.barrier()
        seen = EpochSeen.of(loader, epoch, given.pause_s)
        dist.barrier()
        figures = {} if loader._agent is None else loader._agent.figures()
        said = {"rank": rank, "epoch": epoch, **asdict(seen), "figures": figures}
        os.write(1, (json.dumps(said) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
