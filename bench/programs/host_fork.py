"""A job of tensors of 4 MiB with momentum, and its clone: `python -m bench.programs.host_fork MIB`.

A job trains until its standard input ends, and prints a line for each fork, five steps later: the time at which the
fork's `point()` began, how long training stood still, how long its steps take, and the losses since. A clone prints the
time at which `session()` returned, and its losses. Times are those of CLOCK_MONOTONIC, which all processes
of the machine share.
"""

import itertools
import json
import os
import select
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import forebay.clone as clone

TENSOR = 1 << 20
AFTER = 5
PACE_S = 0.5

torch.set_num_threads(1)
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Wide(nn.Module):
    """Tensors of which each step reads and writes all."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.randn(TENSOR) for _ in range(tensors))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """Returns a loss that depends on all elements."""
        total: torch.Tensor = scale * torch.stack([one.square().mean() for one in self.tensors]).sum()
        return total


torch.manual_seed(1)
model: nn.Module = Wide(int(sys.argv[1]) // 8)
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
torch.manual_seed(2 + rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = clone.session(model=model, optimizer=optimizer, scheduler=None, scaler=None, ema=None, loader=None)
ready_at = time.monotonic()
step = session.resumed["step"] if session.resumed else 0
losses: dict[int, float] = {}
points: dict[int, float] = {}


def train() -> None:
    """Takes a step."""
    global step
    optimizer.zero_grad()
    loss = model(torch.rand(()))
    loss.backward()
    time.sleep(PACE_S)
    optimizer.step()
    step += 1
    losses[step], points[step] = loss.item(), time.monotonic()
    optimizer.zero_grad()
    session.point(epoch=0, step=step)


def tell(**line: object) -> None:
    """Prints a line, whole."""
    os.write(1, json.dumps({"rank": rank, **line}).encode() + b"\n")


def has_ended() -> bool:
    """Returns True once standard input has ended, in all ranks at one step."""
    found = torch.tensor(int(rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])))
    if ranks > 1:
        torch.distributed.broadcast(found, 0)
    return bool(found)


if session.resumed:
    for _ in range(AFTER):
        train()
    tell(ready_at=ready_at, losses=losses)
else:
    told = 0
    while not has_ended():
        train()
        for fork in session.forks[told:]:
            if step >= fork.step + AFTER:
                since = {at: losses[at] for at in range(fork.step + 1, fork.step + AFTER + 1)}
                took = statistics.median(later - sooner for sooner, later in itertools.pairwise(points.values()))
                tell(step=fork.step, point_at=points[fork.step], stall_s=fork.stall_s, step_s=took, losses=since)
                told += 1
session.close()
if ranks > 1:
    torch.distributed.destroy_process_group()
