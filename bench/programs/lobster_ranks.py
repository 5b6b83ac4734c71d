"""Ranks of one job on this node that train in step, in timed pauses, on photographs that torch's loader or ours brings.

Decoding is Pillow's, or a checksum and a timed wait in proportion to the sample's size. One JSON line an epoch: its
seconds, the wait of each rank for its own batch by step, the time of each step, and a digest of all batches, which is
equal for all loaders. A line before them tells what the machine adds: steps of batches that are there already, and
the time of decoding.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import torch
from loader_ours import data_loader, settings
from photographs import Photographs
from rank_processes import TOGETHER_S, of_ranks
from steps import say
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

SEED = 1
BARE = -1
"""Number of the epoch whose batches are there already."""


class RankSteps(NamedTuple):
    """An epoch of a rank: seconds, its waits and all steps in seconds, and a digest of its batches.

    Of the bare one also the seconds in which a thread decodes a byte, while all threads decode.
    """

    epoch: int
    rank: int
    seconds: float
    waits_s: list[float]
    steps_s: list[float]
    digest: str
    decode_s_a_byte: float = 0.0


def main() -> int:
    """Returns exit code 0; ends with that of the first rank that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of a rank")
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument(
        "--threads", type=int, required=True, help="of a rank: worker processes of torch's loader, decoding threads of ours"
    )
    parser.add_argument("--wait-us-a-kb", type=float, help="decoding as a timed wait (default: decode)")
    parser.add_argument("--bare", type=int, default=0, metavar="STEPS", help="steps without a loader, before the epochs")
    parser.add_argument("--agent", metavar="JSON", help="settings of our loader (default: torch's loader)")
    args = parser.parse_args()
    found = of_ranks(args.ranks, functools.partial(rank, args))
    for epoch in range(BARE if args.bare else 0, args.epochs):
        of_epoch = sorted((one for one in found if one.epoch == epoch), key=lambda one: one.rank)
        say(
            epoch=epoch,
            seconds=max(one.seconds for one in of_epoch),
            waits_s=[one.waits_s for one in of_epoch],
            steps_s=of_epoch[0].steps_s,
            digest=hashlib.sha256("".join(one.digest for one in of_epoch).encode()).hexdigest(),
            **({"decode_s_a_byte": statistics.fmean(one.decode_s_a_byte for one in of_epoch)} if epoch == BARE else {}),
        )
    return 0


def rank(args: argparse.Namespace, number: int, together: Barrier, said: Queue[Any]) -> None:
    """Goes through all epochs as one of the ranks."""
    torch.set_num_threads(1)
    dataset = Photographs(args.root, None if args.wait_us_a_kb is None else args.wait_us_a_kb * 1e-9)
    if args.bare:
        steps = gone_through([torch.zeros(args.batch, 2)] * args.bare, BARE, number, args.step_ms / 1000, together)
        together.wait(TOGETHER_S)
        said.put(steps._replace(decode_s_a_byte=decoding_s_a_byte(dataset, args.threads, args.batch)))
    loader: Any
    loader, set_epoch, told = by_torch(dataset, args, number) if args.agent is None else by_forebay(dataset, args)
    for epoch in range(args.epochs):
        set_epoch(epoch)
        said.put(gone_through(loader, epoch, number, args.step_ms / 1000, together))
        told()


def decoding_s_a_byte(dataset: Photographs, threads: int, samples: int) -> float:
    """Returns the seconds in which one of a rank's threads decodes a byte, while all ranks' threads do."""
    with open(dataset.locate(0).path, "rb") as file:  # noqa: PTH123 # as most training programs do
        data = memoryview(file.read())

    def decode(_: int) -> float:
        begun = time.monotonic()
        dataset.decode(data, 0, None)
        return time.monotonic() - begun

    with ThreadPoolExecutor(threads) as pool:
        return statistics.fmean(pool.map(decode, range(samples * threads))) / len(data)


def by_torch(dataset: Photographs, args: argparse.Namespace, number: int) -> tuple[Any, Callable[[int], None], Callable[[], object]]:
    """PyTorch's loader, with worker processes that read and decode whole batches."""
    sampler: Any = DistributedSampler(dataset, args.ranks, number, shuffle=True, seed=SEED, drop_last=True)
    loader = DataLoader(dataset, args.batch, sampler=sampler, num_workers=args.threads, drop_last=True, persistent_workers=True)
    return loader, sampler.set_epoch, dict


def by_forebay(dataset: Photographs, args: argparse.Namespace) -> tuple[Any, Callable[[int], None], Callable[[], object]]:
    """Our loader, with a cache."""
    options = {"shuffle": True, "seed": SEED, "drop_last": True, "num_workers": args.threads}
    loader, told = data_loader(dataset, args.batch, settings(args.agent), **options)
    return loader, loader.set_epoch, told


def gone_through(loader: Any, epoch: int, number: int, step_s: float, together: Barrier) -> RankSteps:  # noqa: ANN401
    """Goes through an epoch in step with the other ranks."""
    digest = hashlib.sha256()
    waits_s: list[float] = []
    steps_s: list[float] = []
    together.wait(TOGETHER_S)
    begun = ended = time.monotonic()
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        waits_s.append(time.monotonic() - asked)
        digest.update(batch.numpy().tobytes())
        together.wait(TOGETHER_S)
        time.sleep(step_s)
        together.wait(TOGETHER_S)
        steps_s.append(time.monotonic() - ended)
        ended = time.monotonic()
    return RankSteps(epoch, number, ended - begun, waits_s, steps_s, digest.hexdigest())


if __name__ == "__main__":
    sys.exit(main())
