"""Goes through rows of 4 KiB that the agent keeps in memory, in random order, and does nothing with them.

One JSON line comes before the first epoch and one after each. With --step a line on standard input begins an epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from loader_data import ROW_BYTES, ByteRows, joined
from loader_ours import data_loader, settings
from steps import options, say, steps

from forebay.loader import FixedRows


def memcpy_us(rows: int) -> float:
    """Measures the CPU time of copying a row within memory, in microseconds."""
    source, target = torch.ones(rows, ROW_BYTES, dtype=torch.uint8), torch.zeros(rows, ROW_BYTES, dtype=torch.uint8)
    order = torch.randperm(rows)
    begun = time.process_time()
    torch.index_select(source, 0, order, out=target)
    return 1e6 * (time.process_time() - begun) / rows


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--how", choices=("rows", "decode"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--agent", metavar="JSON", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.how == "rows":
        loader, told = data_loader(
            FixedRows(args.root, ROW_BYTES), args.batch, settings(args.agent), seed=0, shuffle=True, num_workers=args.threads
        )
    else:
        loader, told = data_loader(
            ByteRows(args.root), args.batch, settings(args.agent), seed=0, shuffle=True, num_workers=args.threads, collate_fn=joined
        )
    say(samples=len(loader.dataset), memcpy_us=memcpy_us(min(65_536, Path(args.root).stat().st_size // ROW_BYTES)))
    for step in steps(args):
        loader.set_epoch(step.epoch)
        samples = 0
        waits: list[float] = []
        before, asked = time.process_time(), time.monotonic()
        for batch in loader:
            waits.append(time.monotonic() - asked)
            samples += len(batch)
            asked = time.monotonic()
        cpu_s = time.process_time() - before
        say(epoch=step.epoch, samples=samples, cpu_s=cpu_s, waits_s=waits, agent=told())
    return 0


if __name__ == "__main__":
    sys.exit(main())
