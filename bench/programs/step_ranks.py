"""A rank of a job on several nodes, by torchrun: in each step it waits for its batch, trains, and waits for all.

Arguments: the directory, the numbers of epochs and of samples of a batch, the milliseconds of a step, and the agent's
settings as JSON. One JSON line an epoch says how long the rank waited for its batch in each step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from loader_ours import data_loader
from torch import distributed as dist

from testbed.epochs import Contents


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("epochs", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("step_ms", type=float)
    parser.add_argument("agent", type=json.loads)
    given = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    options = {"shuffle": True, "seed": 5, "drop_last": True, "num_workers": 1, "collate_fn": len}
    loader, told = data_loader(Contents(given.folder), given.batch, given.agent, **options)
    for epoch in range(given.epochs):
        loader.set_epoch(epoch)
        batches = iter(loader)
        waited = []
        dist.barrier()
        while True:
            asked = time.monotonic()
            if next(batches, None) is None:
                break
            waited.append(time.monotonic() - asked)
            time.sleep(given.step_ms / 1000)
            dist.barrier()
        # In one write: the ranks of a node share a pipe.
        os.write(1, (json.dumps({"rank": rank, "epoch": epoch, "waits_s": waited, "figures": told()}) + "\n").encode())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
