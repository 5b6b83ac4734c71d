"""Measures the Lobster paper's Figures 7, 8, 10 and 11 and its hit ratios in the simulator: `make papers-lobster`.

The paper states the cluster's hardware, datasets, memory and batches. It does not state how long a training step, the
preprocessing of an image or a read of the file system takes, or how many threads there are; ours stand below. One of
them, the latency of the file system, is fitted: such that PyTorch's loader uses the GPUs of ResNet50 on ImageNet-1K for
52.3 % of the time, as in Figure 10. The bandwidth of the file system (250 GB/s for all) is not what a node lacks;
threads that wait for it are. Datasets are scaled down, with the memories.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench import command
from bench.parts import Part
from bench.report import BenchReport, What, commit
from bench.simulator import Epoch, Simulator, changed, warm

# Seconds of forward, backward and update for 32 images on an A100: the paper's six models, from the fastest on.
STEPS_S = {"AlexNet": 0.008, "ShuffleNet": 0.011, "SqueezeNet": 0.011, "ResNet32": 0.027, "VGG11": 0.035, "ResNet50": 0.041}
GPUS = 8
BATCH = 32
# A node's threads: eight for each GPU, of which six saturate preprocessing (Figure 6).
THREADS = 8 * GPUS
SATURATES_AT = 6 * GPUS
# Decoding and augmenting an image of 105 KB on one thread.
IMAGE_S = 0.0025
SOURCE = {"bandwidth": 250e9, "latency": 0.005, "tail": 1.0, "stream": 300e6}
LINK = {"link": 25e9, "link_latency": 0.0001, "memory": 20e9}
# Name: nodes, samples (scaled), bytes of a sample, memory of all nodes over the dataset.
PANELS = {
    "1 node, ImageNet-1K": (1, 100_000, 105_000, 40 / 135),
    "1 node, ImageNet-22K": (1, 100_000, 92_000, 40 / 1300),
    "8 nodes, ImageNet-22K": (8, 300_000, 92_000, 320 / 1300),
}
# Each loader's policy, schedule, window and threads that load: DALI has three for each GPU; PyTorch and NoPFS have a
# constant number; Lobster chooses its own; ours is measured.
LOADERS: dict[str, dict[str, Any]] = {
    "PyTorch": {"policy": "lru", "schedule": "static", "window": 2, "threads": 4 * GPUS},
    "DALI": {"policy": "lru", "schedule": "first_come", "window": 2, "threads": 3 * GPUS},
    "NoPFS": {"policy": "nopfs", "schedule": "static", "window": 4, "threads": 4 * GPUS},
    "Lobster as written": {"policy": "lobster_as_written", "schedule": "lobster_as_written", "window": 4, "threads": 4 * GPUS},
    "Lobster": {"policy": "lobster", "schedule": "lobster", "window": 4, "threads": 4 * GPUS},
    "Forebay": {"policy": "forebay", "schedule": "earliest_deadline", "window": 4, "threads": 4 * GPUS, "hedge": 0.01, "measured": True},
}
# Lobster's speed-up over each, by panel, as the text has it.
PAPER_SPEEDUPS = {
    "1 node, ImageNet-1K": {"PyTorch": 1.6, "DALI": 1.7, "NoPFS": 1.2},
    "1 node, ImageNet-22K": {"PyTorch": 1.8, "DALI": 1.7, "NoPFS": 1.2},
    "8 nodes, ImageNet-22K": {"PyTorch": 2.0, "DALI": 1.4, "NoPFS": 1.2},
}
PAPER_HITS = {"PyTorch": 0.245, "DALI": 0.326, "NoPFS": 0.489, "Lobster": 0.632}
PAPER_USE = {"PyTorch": 0.523, "DALI": 0.575, "NoPFS": 0.724, "Lobster": 0.761}
PAPER_IMBALANCE = {
    "1 node, ImageNet-1K": {"PyTorch": 0.489, "DALI": 0.339, "NoPFS": 0.254, "Lobster": 0.175},
    "8 nodes, ImageNet-22K": {"PyTorch": 0.580, "DALI": 0.486, "NoPFS": 0.325, "Lobster": 0.228},
}


def scenario(panel: str, model: str, loader: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A cell of Figure 7."""
    nodes, samples, sample_bytes, share = PANELS[panel]
    return {
        "cluster": {
            "nodes": nodes,
            "gpus": GPUS,
            "cache": int(share * samples * sample_bytes / nodes),
            "threads": THREADS,
            "loading_threads": loader["threads"],
            **LINK,
        },
        "source": SOURCE,
        "dataset": {"samples": samples, "size": sample_bytes, "sigma": 0.5},
        "job": {"batch": BATCH, "step": STEPS_S[model], "epochs": 3},
        "preprocessing": {"seconds": IMAGE_S * sample_bytes / 105_000, "saturates_at": SATURATES_AT, "decline": 0.002},
        "loader": {
            "policy": loader["policy"],
            "schedule": loader["schedule"],
            "window": loader["window"],
            "hedge": loader.get("hedge", 0.0),
        },
    }


def run(sim: Simulator, panel: str, model: str, loader: Mapping[str, Any]) -> Epoch:
    """A warm epoch of a cell."""
    if loader.get("measured"):
        loader = measured(sim, panel, model, loader)
    return warm(sim.epochs(scenario(panel, model, loader)))


def measured(sim: Simulator, panel: str, model: str, loader: Mapping[str, Any]) -> dict[str, Any]:
    """The loader with as many threads that load as serve it best, as measured on a part of the dataset.

    Budgets are never guessed.
    """

    def seconds(threads: int) -> float:
        job = scenario(panel, model, {**loader, "threads": threads})
        part = changed(job, dataset_samples=job["dataset"]["samples"] // 4, cluster_cache=job["cluster"]["cache"] // 4, job_epochs=2)
        return float(warm(sim.epochs(part))["seconds"])

    return {**loader, "threads": min((4 * GPUS, 5 * GPUS, 11 * GPUS // 2, 6 * GPUS, 13 * GPUS // 2), key=seconds)}


def mean(ratios: Iterable[float]) -> float:
    """Returns the geometric mean of ratios."""
    return statistics.geometric_mean(list(ratios))


def cells(sim: Simulator, report: BenchReport) -> None:
    """Figure 7: speed-ups, with six models in three set-ups."""
    for panel in PANELS:
        seconds = {name: {model: run(sim, panel, model, loader)["seconds"] for model in STEPS_S} for name, loader in LOADERS.items()}

        def over(slower: str, faster: str, of: Mapping[str, Mapping[str, float]] = seconds) -> list[float]:
            return [of[slower][model] / of[faster][model] for model in STEPS_S]

        title = f"cells: Figure 7, {panel}"
        for name, paper in PAPER_SPEEDUPS[panel].items():
            speedups = over(name, "Lobster")
            note = f"the paper's: {paper}; " + ", ".join(f"{model} {found:.2f}" for model, found in zip(STEPS_S, speedups, strict=True))
            report.once(What(title, f"Lobster's speed-up over {name}", "x", None, name), mean(speedups), note)
            report.once(What(title, f"Lobster's speed-up over {name}, over the paper's", "", None, "the paper"), mean(speedups) / paper)
            # Held as a ratio of times: at most 1 where Lobster is no slower on the mean.
            report.once(What(title, f"Lobster's time over {name}'s", "", 1.0, name), mean(over("Lobster", name)))
        report.once(What(title, "the text's own time over Lobster's mended", ""), mean(over("Lobster as written", "Lobster")))
        report.once(What(title, "Forebay's speed-up over PyTorch", "x", None, "PyTorch"), mean(over("PyTorch", "Forebay")))
        worst = [max(over("Forebay", name)) for name in ("Lobster", "Lobster as written")]
        note = ", ".join(f"{model} {found:.3f}" for model, found in zip(STEPS_S, over("Forebay", "Lobster"), strict=True))
        report.once(What(title, "Forebay's time over Lobster's, worst model", "", 1.0, "Lobster"), worst[0], note)
        report.once(What(title, "Forebay's time over that of the text's own, worst model", "", 1.0, "Lobster as written"), worst[1])


def hits(sim: Simulator, report: BenchReport) -> None:
    """Section 5.5: hit ratios, by each definition; and Figure 10: the use of the GPUs."""
    panel = "1 node, ImageNet-1K"
    for name, loader in LOADERS.items():
        epochs = {model: run(sim, panel, model, loader) for model in STEPS_S}
        epoch = epochs["ResNet50"]
        samples = sum(epoch["samples_by_origin"])
        size = epoch["local_bytes"] + epoch["peer_bytes"] + epoch["source_bytes"] - epoch["hedged_bytes"]
        paper = f"the paper's: {PAPER_HITS[name]}" if name in PAPER_HITS else ""
        title = f"hits: {panel}, ResNet50"
        report.once(What(title, f"{name}: bytes in memory since an earlier epoch", ""), epoch["local_bytes"] / size, "at most C/S = 0.296")
        report.once(What(title, f"{name}: samples in memory since an earlier epoch", ""), epoch["samples_by_origin"][0] / samples, paper)
        report.once(What(title, f"{name}: samples in memory when the step before ended", ""), epoch["samples_ready"] / samples, paper)
        use = statistics.fmean(epoch["gpu_use"] for epoch in epochs.values())
        paper = f"ResNet50 {epochs['ResNet50']['gpu_use']:.3f}" + (f"; the paper's mean: {PAPER_USE[name]}" if name in PAPER_USE else "")
        report.once(What(f"hits: {panel}, Figure 10", f"{name}: use of the GPUs, mean of six models", ""), use, paper)


def imbalance_of_loaders(sim: Simulator, report: BenchReport) -> None:
    """Figure 8: iterations with load imbalance, and the distribution of batch times."""
    for panel, paper in PAPER_IMBALANCE.items():
        for name, loader in LOADERS.items():
            epoch = run(sim, panel, "ResNet50", loader)
            title = f"loaders: Figure 8, {panel}, ResNet50"
            note = f"stalled {epoch['stalled'] / epoch['iterations']:.3f}" + (f"; the paper's: {paper[name]:.3f}" if name in paper else "")
            report.once(What(title, f"{name}: imbalanced iterations", ""), epoch["imbalanced"] / epoch["iterations"], note)
            note = f"p99 {epoch['step_p99_s'] * 1e3:.1f} ms"
            report.once(What(title, f"{name}: median batch time", "ms"), epoch["step_p50_s"] * 1e3, note)


def ablation(sim: Simulator, report: BenchReport) -> None:
    """Figure 11: what Lobster's threads and its eviction gain by themselves, over DALI."""
    panel = "1 node, ImageNet-1K"
    dali = LOADERS["DALI"]
    variants = {
        "threads alone (the paper's mean: 1.3, at most 1.4)": {**dali, "schedule": "lobster"},
        "eviction alone (the paper's mean: 1.15)": {**dali, "policy": "lobster"},
        "both": {**dali, "policy": "lobster", "schedule": "lobster"},
        "both, with a window of 4 steps": LOADERS["Lobster"],
    }
    baseline = {model: run(sim, panel, model, dali)["seconds"] for model in STEPS_S}
    for name, loader in variants.items():
        speedups = [baseline[model] / run(sim, panel, model, loader)["seconds"] for model in STEPS_S]
        note = ", ".join(f"{model} {found:.2f}" for model, found in zip(STEPS_S, speedups, strict=True))
        report.once(What(f"ablation: Figure 11, {panel}", f"{name}: speed-up over DALI", "x", None, "DALI"), mean(speedups), note)


def apart(sim: Simulator, report: BenchReport) -> None:
    """Splits Forebay's lead over Lobster into that of its measured threads, hedging, schedule and residency."""
    forebay, lobster = LOADERS["Forebay"], LOADERS["Lobster"]
    plain = {**forebay, "hedge": 0.0, "measured": False}
    variants = {
        "with 32 threads, without hedging": plain,
        "with 32 threads": {**plain, "hedge": forebay["hedge"]},
        "without hedging": {**plain, "measured": True},
        "with Lobster's residency": {**forebay, "policy": lobster["policy"]},
        "with Lobster's residency, 32 threads, without hedging": {**plain, "policy": lobster["policy"]},
        "with Lobster's schedule and threads": {**plain, "schedule": lobster["schedule"]},
        "with Lobster's schedule and threads, with hedging": {**plain, "schedule": lobster["schedule"], "hedge": forebay["hedge"]},
        "as it is": forebay,
    }
    hedged = {**lobster, "hedge": forebay["hedge"]}
    models = ("AlexNet", "ResNet32", "ResNet50")
    for panel in PANELS:
        seconds = {model: run(sim, panel, model, lobster)["seconds"] for model in models}

        def over(loader: Mapping[str, Any], panel: str = panel, seconds: Mapping[str, float] = seconds) -> list[float]:
            return [run(sim, panel, model, loader)["seconds"] / seconds[model] for model in models]

        title = f"apart: {panel}, time over Lobster's"
        ratios = {f"Forebay {name}": over(loader) for name, loader in variants.items()}
        ratios["Lobster with hedging"] = over(hedged)
        for name, found in ratios.items():
            note = ", ".join(f"{model} {ratio:.3f}" for model, ratio in zip(models, found, strict=True))
            report.once(What(title, name, "", None, "Lobster"), mean(found), note)


SCENARIOS: dict[str, Callable[[Simulator, BenchReport], None]] = {
    "cells": cells,
    "hits": hits,
    "loaders": imbalance_of_loaders,
    "ablation": ablation,
    "apart": apart,
}


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    args = parser.parse_args()
    # Simulated figures depend on no load.
    report = BenchReport("lobster", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.SIMULATOR, Part.LOADER)), load_max=math.inf)
    return command.run(report, command.wanted(parser, args.only, report), SCENARIOS, Simulator(), args.minutes)


if __name__ == "__main__":
    sys.exit(main())
