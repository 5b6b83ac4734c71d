"""A training program as a user would write it, the same for a parent and its clones.

Usage: python -m tests.clone.train [--until-forked | --while FILE | --steps N] [--after K] [--pace SECONDS] [--width N]
[--portable] [--device cpu | cuda]

A parent trains until it has been forked and K steps on, or with --while as long as there is the file; a clone trains K
steps; with --steps a job that nobody forks trains N. A parent's steps are SECONDS apart until it is forked: while its
clone starts, it leaves the processor to it. With --portable it has nothing that can't be dealt to other ranks.
With --device cuda all ranks share a GPU; one alone talks to itself by NCCL. Each rank prints a line: where it began,
its losses, and the digests of its last state; with --while also those K steps after each of its forks.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import forebay.clone as clone
from tests.clone import jobs

parser = argparse.ArgumentParser()
parser.add_argument("--until-forked", action="store_true")
parser.add_argument("--while", dest="present", type=Path)
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--after", type=int, default=5)
parser.add_argument("--pace", type=float, default=0.05)
parser.add_argument("--width", type=int, default=jobs.WIDE)
parser.add_argument("--portable", action="store_true")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
asked = parser.parse_args()

rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
on_gpu = asked.device == "cuda"
if on_gpu:
    # Without it a GPU may add in another order each time.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
# All ranks begin with the same weights, and then draw different samples.
made = jobs.full(width=asked.width, device=asked.device)
if asked.portable:
    made.loader = made.ema = None
jobs.seed(rank)
if ranks > 1 or on_gpu:
    # NCCL wants a GPU for each rank.
    torch.distributed.init_process_group("gloo" if ranks > 1 else "nccl")
    made.model = DistributedDataParallel(made.model)


def warm() -> None:
    images, labels = made.batch()
    torch.nn.functional.cross_entropy(made.model(images), labels).backward()


def is_wanted() -> bool:
    """Returns whether the file of --while is there, alike in all ranks."""
    found = torch.tensor(int(asked.present.exists()))
    if ranks > 1:
        torch.distributed.broadcast(found, 0)
    return bool(found)


def digests() -> dict[str, str]:
    return {entry.path: entry.digest for entry in made.inventory(counters={}).manifest().entries}


# However busy the machine is, no fork is dropped.
session = clone.session(**made.for_session(), warm=warm, stall_s=600.0)
begun = step = session.resumed["step"] if session.resumed else 0
last = begun + asked.after if session.resumed else asked.steps
is_kept = asked.present and not session.resumed
losses = {}
after = {}
while step < last or (asked.until_forked and not session.resumed and not session.forks) or (is_kept and is_wanted()):
    made.step()
    step += 1
    losses[step] = made.losses.pop()
    session.point(epoch=0, step=step)
    if is_kept:
        if any(fork.step + asked.after == step for fork in session.forks):
            after[step] = digests()
        # So that the last fork has its steps.
        last = session.forks[-1].step + asked.after if session.forks else 0
        time.sleep(asked.pace)
    elif session.forks and not session.resumed:
        last = session.forks[0].step + asked.after
    elif asked.until_forked:
        time.sleep(asked.pace)
entries = {} if asked.steps else digests()
told = {
    "rank": rank,
    "job": session.job,
    "begun": begun,
    "forks": [fork.step for fork in session.forks],
    "losses": losses,
    "lr": [float(group["lr"]) for group in made.optimizer.param_groups],
    "lineage": session.lineage and [session.lineage.parent, session.lineage.step, dict(session.lineage.changes)],
    "digests": entries,
    "after": after,
}
# One after the other: the line is longer than what a pipe takes at once.
for turn in range(ranks):
    if turn == rank:
        print(json.dumps(told), flush=True)
    if ranks > 1:
        torch.distributed.barrier()
session.close()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
