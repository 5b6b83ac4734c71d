"""Ranks of one job on this node, in step: each waits for its batch, trains for a while, and for the others.

Sample i is read below root i modulo their number, and goes to the rank of that number, since the order is not shuffled:
so a rank whose root is slow has slow reads. One JSON line an epoch says how long each rank waited for its batch in each
step.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from rank_processes import TOGETHER_S, of_ranks
from steps import say


def main() -> int:
    """Exit code 0, or the first rank's that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", help="one a rank")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, required=True, help="of a rank")
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--threads", type=int, default=1, help="that decode, of a rank")
    parser.add_argument("--agent", metavar="JSON", required=True)
    args = parser.parse_args()
    # Nothing that has threads is loaded yet.
    said = of_ranks(len(args.roots), functools.partial(rank, args))
    waits = {(epoch, number): waited for epoch, number, waited in said}
    for epoch in range(args.epochs):
        say(epoch=epoch, waits_s=[waits[epoch, number] for number in range(len(args.roots))])
    return 0


def rank(args: argparse.Namespace, number: int, together: Barrier, said: Queue[tuple[int, int, list[float]]]) -> None:
    """One of them."""
    import torch
    from loader_data import ChecksumFiles
    from loader_ours import data_loader, settings

    torch.set_num_threads(1)
    loader, told = data_loader(
        ChecksumFiles(args.roots), args.batch, settings(args.agent), shuffle=False, drop_last=True, num_workers=args.threads
    )
    for epoch in range(args.epochs):
        loader.set_epoch(epoch)
        batches = iter(loader)
        waited: list[float] = []
        together.wait(TOGETHER_S)
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                break
            waited.append(time.monotonic() - asked)
            time.sleep(args.step_ms / 1000)
            together.wait(TOGETHER_S)
        said.put((epoch, number, waited))
        told()


if __name__ == "__main__":
    sys.exit(main())
