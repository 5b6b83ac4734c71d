"""Ranks of one job on this node, in step, some of which read or decode longer than others for a part of the epoch.

Decoding is a real checksum and a timed wait beside it, so that it takes threads and no processor: on two cores, threads
that compute would only share the cores. Steps are timed pauses. One JSON line an epoch of each loader: waits of each
rank by step, its decoding threads by step, the time of the epoch, and a digest of all batches.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import torch
from loader_data import ChecksumFiles
from loader_ours import data_loader, settings
from rank_processes import TOGETHER_S, of_ranks
from steps import say
from torch.utils.data import Dataset

from forebay.loader import Extent
from forebay.loader.dataset import Located

ALL_RANKS = -2
"""Stands for all ranks, where a slow one is named."""


class RankEpoch(NamedTuple):
    """An epoch of a rank.

    By step its waits in seconds and its decoding threads; the digest of its batches, how often its threads changed,
    and the agent's CPU time.
    """

    waits_s: list[float]
    decoders: list[int]
    seconds: float
    digest: str
    moved: int
    agent_cpu_s: float


def main() -> int:
    """Exit code 0, or the first rank's that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", help="one a rank, all with the same files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, required=True, help="of a rank")
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--decode-ms", type=float, default=0.0, help="wait for each sample")
    parser.add_argument("--slower", type=float, default=1.0, help="factor of the slow rank's waits")
    parser.add_argument("--slow", type=int, nargs="*", default=[], help="slow rank of each part of an epoch; -1 for none, -2 for all")
    parser.add_argument("--slow-root", help="the same files on a slow source")
    parser.add_argument("--slow-reads", type=int, nargs="*", default=[], help="rank of each part that reads from there; likewise")
    parser.add_argument("--seed", type=int, help="shuffles; then no rank's reads can be slow")
    parser.add_argument("--threads", type=int, required=True, help="that decode, of a rank")
    parser.add_argument("--agents", metavar="JSON", nargs="+", required=True, help="settings of loaders, which follow one another")
    args = parser.parse_args()
    said = of_ranks(len(args.roots), functools.partial(rank, args))
    found: dict[tuple[int, int, int], RankEpoch] = {(which, epoch, number): one for which, epoch, number, one in said}
    for which, epoch in itertools.product(range(len(args.agents)), range(args.epochs)):
        ranks = [found[which, epoch, number] for number in range(len(args.roots))]
        say(
            loader=which,
            epoch=epoch,
            waits_s=[one.waits_s for one in ranks],
            decoders=[one.decoders for one in ranks],
            moved=[one.moved for one in ranks],
            agent_cpu_s=ranks[0].agent_cpu_s,
            seconds=max(one.seconds for one in ranks),
            digest=hashlib.sha256("".join(one.digest for one in ranks).encode()).hexdigest(),
        )
    return 0


def rank(args: argparse.Namespace, number: int, together: Barrier, said: Queue[tuple[int, int, int, RankEpoch]]) -> None:
    """One of them."""
    torch.set_num_threads(1)
    dataset = WaitingFiles(args, number)
    for which, agent in enumerate(args.agents):
        options = {"shuffle": args.seed is not None, "seed": args.seed, "drop_last": True, "num_workers": args.threads}
        loader, told = data_loader(dataset, args.batch, settings(agent), **options)
        before = 0
        for epoch in range(args.epochs):
            loader.set_epoch(epoch)
            found = gone_through(loader, args, together)
            moved = told()["rank_decoders_changed"]
            said.put((which, epoch, number, found._replace(moved=moved - before)))
            before = moved
        del loader, told


class WaitingFiles(Dataset[torch.Tensor]):
    """Files that are decoded by a checksum and a wait. Wait and source depend on rank and place in the epoch."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.files: Located = ChecksumFiles(args.roots)
        self.slow, self.wait_s, self.slow_wait_s = args.slow, args.decode_ms / 1000, args.decode_ms / 1000 * args.slower
        self.rank, self.ranks = rank, len(args.roots)
        self.slow_files: Located | None = ChecksumFiles([args.slow_root]) if args.slow_root else None
        self.slow_reads = args.slow_reads

    def __len__(self) -> int:
        return len(self.files)

    def is_slow(self, slow: list[int], i: int, rank: int) -> bool:
        """Tells whether a rank is the slow one of the part of an epoch that sample i lies in."""
        return bool(slow) and slow[i * len(slow) // len(self)] in (rank, ALL_RANKS)

    def locate(self, i: int, /) -> Extent:
        """Its file. Without shuffling, the sampler deals sample i to rank i modulo their number."""
        if self.slow_files is not None and self.is_slow(self.slow_reads, i, i % self.ranks):
            return self.slow_files.locate(i)
        return self.files.locate(i)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401 # whatever the loader's generator is
        """Waits, and returns check sum and size."""
        time.sleep(self.slow_wait_s if self.is_slow(self.slow, i, self.rank) else self.wait_s)
        return self.files.decode(data, i, rng)


def gone_through(loader: Any, args: argparse.Namespace, together: Barrier) -> RankEpoch:  # noqa: ANN401
    """Goes through an epoch in step with the other ranks."""
    digest = hashlib.sha256()
    batches = iter(loader)
    waits_s: list[float] = []
    decoders: list[int] = []
    together.wait(TOGETHER_S)
    # The agent's process, and its clock: see `bench.loader_world.BenchNode.agent_cpu_s`.
    clock = ~loader._agent.rank.seat()[1] << 3 | 2
    begun, begun_cpu_s = time.monotonic(), time.clock_gettime(clock)
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        waits_s.append(time.monotonic() - asked)
        digest.update(batch.numpy().tobytes())
        decoders.append(loader._agent.decoders(args.threads))
        time.sleep(args.step_ms / 1000)
        together.wait(TOGETHER_S)
    return RankEpoch(waits_s, decoders, time.monotonic() - begun, digest.hexdigest(), 0, time.clock_gettime(clock) - begun_cpu_s)


if __name__ == "__main__":
    sys.exit(main())
