"""Writes torch_order.txt: what torch gives, for the tests of forebay_policy::order.

Run it with the project's Python and --wide to renew it; --wide adds the lengths at which torch changes its algorithm
(some GB, a minute).

Lines: `permutation LEN SEED DIGEST FIRST...` and `sampler SAMPLES WORLD RANK SEED EPOCH DROP_LAST INDEX...`. A
digest is sum((index + 1) * value) modulo 2^64. Also
`batches SAMPLES WORLD BATCH SAMPLER_DROP_LAST LOADER_DROP_LAST LENGTH...` by rank 0.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

FIRST = 8
WORD = 2**64
SEED = 3
EPOCH = 5


def permutation(length: int, seed: int) -> str:
    """One permutation: its digest and first entries."""
    values = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    digest = int((values * torch.arange(1, length + 1)).sum()) % WORD
    return " ".join(map(str, ["permutation", length, seed, digest, *values[:FIRST].tolist()]))


def sampler(samples: int, world: int, rank: int, *, drop_last: bool, shuffle: bool = True) -> DistributedSampler[Any]:
    """One rank's sampler at one epoch."""
    dataset: Any = range(samples)
    made: DistributedSampler[Any] = DistributedSampler(dataset, world, rank, shuffle=shuffle, seed=SEED, drop_last=drop_last)
    made.set_epoch(EPOCH)
    return made


def lines() -> list[str]:
    """All vectors."""
    lengths = [1, 2, 3, 7, 623, 624, 625, 1000, 65_536, 65_537, 1_000_000]
    wide = [214_748_363, 214_748_364, 214_748_365] if "--wide" in sys.argv else []
    out = [f"# torch {torch.__version__.split('+')[0]}"]
    out += [permutation(length, seed) for length in lengths for seed in (0, 42, 2**32 + 5, 2**63 - 1)]
    out += [permutation(length, 42) for length in wide]
    for samples, world, drop in itertools.product((1, 2, 3, 10, 17), (1, 2, 3, 8), (False, True)):
        for rank in range(world):
            indices = list(sampler(samples, world, rank, drop_last=drop))
            out.append(" ".join(map(str, ["sampler", samples, world, rank, SEED, EPOCH, int(drop), *indices])))
    for samples, world, batch, drop, partial in itertools.product((10, 17), (1, 3), (1, 2, 4), (False, True), (False, True)):
        batches = BatchSampler(sampler(samples, world, 0, drop_last=drop, shuffle=False), batch, partial)
        out.append(" ".join(map(str, ["batches", samples, world, batch, int(drop), int(partial), *map(len, batches)])))
    return out


if __name__ == "__main__":
    Path(__file__).with_suffix(".txt").write_text("\n".join(lines()) + "\n")
