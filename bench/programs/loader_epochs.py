"""Reads every file of a directory once an epoch, by PyTorch's loader or by ours, in a DistributedSampler's order.

Samples cost next to nothing to decode; after each batch there is a pause, for the step that an accelerator would take.
One JSON line comes before the first epoch and one after each. With --step a line on standard input begins an epoch; the
end of the input ends the program. The digest tells which samples came, in which order.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from loader_cost import cpu_s, resident_mib
from loader_data import ChecksumFiles
from steps import options, say, steps
from torch.utils.data import DataLoader, DistributedSampler


def epoch(batches: Iterable[torch.Tensor], pause_s: float) -> dict[str, Any]:
    """Goes through one; what there is to say of it."""
    digest = files = size = 0
    waits: list[float] = []
    begun, cpu, asked = time.monotonic(), cpu_s(), time.monotonic()
    for batch in batches:
        waits.append(time.monotonic() - asked)
        digest = zlib.crc32(batch.numpy().tobytes(), digest)
        files += len(batch)
        size += int(batch[:, 1].sum())
        if pause_s:
            time.sleep(pause_s)
        asked = time.monotonic()
    seconds = time.monotonic() - begun
    return {
        "seconds": seconds,
        "wait_s": sum(waits),
        "cpu_s": cpu_s() - cpu,
        "files": files,
        "batches": len(waits),
        "bytes": size,
        "digest": digest,
        "resident_mib": resident_mib(),
    }


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--loader", choices=("torch", "forebay"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--agent", metavar="JSON", help="of Forebay's: settings of the agent; without them each rank reads for itself")
    args = parser.parse_args()
    torch.set_num_threads(1)
    files = ChecksumFiles([args.root])
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(files, num_replicas=1, rank=0, shuffle=True, seed=args.seed)
    told: Callable[[], dict[str, Any]] = dict
    loader: Any
    if args.loader == "torch":
        loader = DataLoader(files, args.batch, sampler=sampler, num_workers=args.threads, persistent_workers=True)
    else:
        # Only who measures it needs it.
        from loader_ours import data_loader, settings

        loader, told = data_loader(files, args.batch, settings(args.agent), seed=args.seed, shuffle=True, num_workers=args.threads)
    say(files=len(files), resident_mib=resident_mib())
    for step in steps(args):
        (sampler if args.loader == "torch" else loader).set_epoch(step.epoch)
        said = epoch(loader, step.pause_s)
        say(epoch=step.epoch, **said, agent=told())
    return 0


if __name__ == "__main__":
    sys.exit(main())
