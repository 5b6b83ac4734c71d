"""A training program whose ranks share their work by MPI or by FSDP2, the same for a parent and its clones.

Usage: python -m tests.clone.train_ranks mpi | fsdp [FILE]

A parent trains until it was forked and five steps on, or as long as there is the file; a clone trains five steps. Each
rank prints a line as `tests.clone.train` does. With FSDP2 it has digests of whole tensors at each step, too, from all
ranks' parts.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forebay.clone as clone

FURTHER = 5
WIDTH = 96
"""Wide enough that weights are large tensors, which clones read where they lie."""

how, *present = sys.argv[1:]
model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 4))
torch.manual_seed(0)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.1)
world: Any = None
if how == "mpi":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))


def whole() -> str:
    """Returns a digest of parameters and optimizer's state, each put together from all ranks' parts."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter, *optimizer.state.get(parameter, {}).values()):
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found.update(full.detach().numpy().tobytes())
    return found.hexdigest()


def is_wanted() -> bool:
    """Returns whether the file is there, alike in all ranks."""
    found = torch.tensor(int(Path(present[0]).exists()))
    torch.distributed.broadcast(found, 0)
    return bool(found)


optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
kinds: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": None, "scaler": None, "ema": None, "loader": None}
session = clone.session(**kinds, ranks="mpi" if how == "mpi" else None, stall_s=600.0)
begun = step = session.resumed["step"] if session.resumed else 0
last = begun + FURTHER if session.resumed else None
losses = {}
wholes = {step: whole()} if how == "fsdp" else {}
while last is None or step < last:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
    loss.backward()
    if world is not None:
        # FSDP2 sums gradients by itself.
        for parameter in model.parameters():
            assert parameter.grad is not None
            world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= ranks
    optimizer.step()
    step += 1
    losses[step] = float(loss.item()).hex()
    if how == "fsdp":
        wholes[step] = whole()
    session.point(epoch=0, step=step)
    if present and not session.resumed:
        last = None if is_wanted() else step
        time.sleep(0.2)
    elif last is None and session.forks:
        last = session.forks[0].step + FURTHER
    elif last is None:
        time.sleep(0.2)
entries = clone.inventory(**kinds, counters={}, ranks="mpi" if how == "mpi" else None).manifest().entries
told = {
    "rank": rank,
    "begun": begun,
    "forks": [fork.step for fork in session.forks],
    "losses": losses,
    "wholes": wholes,
    "digests": {entry.path: entry.digest for entry in entries},
}
os.write(1, json.dumps(told).encode() + b"\n")
session.close()
if how == "fsdp":
    torch.distributed.destroy_process_group()
