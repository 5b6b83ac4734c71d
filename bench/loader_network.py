"""A network that is trained with PyTorch's loader and with ours.

The same losses to the last bit, and the same accuracy.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.loader_bounds import apart
from bench.loader_world import WORKERS, LoaderBench, agree, lines
from bench.report import BenchReport, What
from bench.session import program
from testbed import datasets

BATCH = 64
TORCH, OURS = "torch", "forebay"


def network(world: LoaderBench, report: BenchReport) -> None:
    """ResNet-18 on Fashion-MNIST."""
    train, test = world.place / "train", world.place / "test"
    if not train.exists():
        datasets.fashion_mnist(train, train_per_class=world.size.pictures)
        datasets.fashion_mnist(test, split="test", limit=50 * world.size.pictures)
    keyed = {way: one(world, train, test, way, "keyed", 0) for way in (TORCH, OURS)}
    report.note_load()
    scenario = f"network: ResNet-18, Fashion-MNIST, {10 * world.size.pictures:,} pictures, {world.size.epochs} epochs"
    losses = {way: said["losses"] for way, said in keyed.items()}
    differing = sum(a != b for a, b in zip(losses[TORCH], losses[OURS], strict=True))
    note = f"bound 0; of {len(losses[OURS])} steps, as floats' bits; both through forebay.torch.Keyed's chance, one seed"
    report.once(What(scenario, "losses that differ, keyed", "losses", 0, "PyTorch's loader"), differing, note)
    agree({way: said["digest"] for way, said in keyed.items()})
    tops: dict[str, list[float]] = {TORCH: [], OURS: []}
    for seed in range(world.size.seeds):
        for way in (TORCH, OURS) if seed % 2 == 0 else (OURS, TORCH):
            print(f"network: seed {seed}, {way}", flush=True)
            tops[way].append(one(world, train, test, way, "stock", seed)["top1"])
            report.note_load()
    note = "bound 1: twice the standard error of the difference; " + "; ".join(
        f"{way}: {', '.join(f'{top:.4f}' for top in found)}" for way, found in tops.items()
    )
    what = What(scenario, "distance of mean accuracies, stock augmentation", "x the seeds' noise", 1, "PyTorch's loader")
    report.once(what, apart(tops[TORCH], tops[OURS]), note)
    report.once(What(scenario, "top-1 accuracy with ours", "of the test's"), statistics.mean(tops[OURS]))


def one(world: LoaderBench, train: Path, test: Path, way: str, chance: str, seed: int) -> dict[str, Any]:
    """A training."""
    options = ["--loader", way, "--chance", chance, "--seed", seed, "--epochs", world.size.epochs, "--batch", BATCH, "--threads", WORKERS]
    return lines(program("loader_network", train, test, *options))[-1]
