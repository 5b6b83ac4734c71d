"""Trains a small network on files by ranks of torchrun or of MPI, with `DataLoader(cache=...)`.

Arguments: the directory, the cache, the number of epochs, and `torchrun` or `mpi`. Each rank prints a line of JSON at
the end: the losses of all steps, averaged over the ranks, with all their bits, and the figures of its node's cache.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist

from forebay._launcher import rank_and_world
from testbed.epochs import loader_of

PIXELS = 64
CLASSES = 4
LEARNING_RATE = 0.05
PAUSE_S = 0.02
Average = Callable[[torch.Tensor], torch.Tensor]


def of_torch(rank: int, world: int) -> Average:
    """Returns the average over the ranks of a process group."""
    dist.init_process_group("gloo", rank=rank, world_size=world)

    def average(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor / world

    return average


def of_mpi(_rank: int, world: int) -> Average:
    """Returns the average over the ranks of MPI, which adds in the order of the ranks."""
    from mpi4py import MPI

    def average(tensor: torch.Tensor) -> torch.Tensor:
        parts = torch.empty((world, *tensor.shape))
        MPI.COMM_WORLD.Allgather(tensor.numpy(), parts.numpy())
        return sum(parts.unbind(), torch.zeros_like(tensor)) / world

    return average


def tensors(samples: list[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the pixels and classes of samples."""
    pixels = torch.stack([torch.frombuffer(bytearray(sample[1 : 1 + PIXELS]), dtype=torch.uint8) for sample in samples])
    return pixels.float() / 255, torch.tensor([sample[0] % CLASSES for sample in samples])


def main() -> None:
    """Trains."""
    folder, cache, epochs, launcher = sys.argv[1:]
    rank, world = rank_and_world()
    average = (of_torch if launcher == "torchrun" else of_mpi)(rank, world)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(PIXELS, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES))
    loader = loader_of(Path(folder), cache=cache)
    losses = []
    for epoch in range(int(epochs)):
        loader.set_epoch(epoch)
        for samples in loader:
            pixels, classes = tensors(samples)
            loss = torch.nn.functional.cross_entropy(model(pixels), classes)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(LEARNING_RATE * average(parameter.grad.clone()))
            losses.append(float(average(loss.detach().reshape(1))).hex())
            time.sleep(PAUSE_S)
    assert loader._agent is not None
    said = {"rank": rank, "losses": losses, "figures": loader._agent.figures()}
    # All ranks have read all when the first one leaves.
    average(torch.zeros(1))
    os.write(1, (json.dumps(said) + "\n").encode())
    if launcher == "torchrun":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
