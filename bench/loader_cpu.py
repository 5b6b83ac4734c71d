"""CPU time of an image, from a file in memory to a batch: random-resized crop to 224, flip, bytes."""

from __future__ import annotations

import contextlib
import importlib.util
from collections import defaultdict

from bench.loader_world import WORKERS, InMemory, LoaderBench, start
from bench.report import BenchReport, What
from bench.session import program

CPU_MS_MAX = 1.9
BATCH = 64
OURS, KERNELS = "forebay", "kernels"
# Name: what the row calls it.
PEERS = {
    "torch-pil": "PyTorch's loader, torchvision on Pillow",
    "torch-v2": "PyTorch's loader, torchvision's own codec and v2",
    "torch-cv2": "PyTorch's loader, simplejpeg and OpenCV",
    "spdl": "SPDL, simplejpeg and OpenCV",
    "grain": "Grain, simplejpeg and OpenCV",
    "nodes": "torchdata.nodes, simplejpeg and OpenCV",
    "dali": "DALI, on the processor",
    "forebay-dali": "our loader with DALI as decode",
}
# Modules that these need.
NEEDED = ("torch", "torchvision", "simplejpeg", "cv2", "spdl", "grain", "torchdata", "nvidia.dali")


def cpu(world: LoaderBench, report: BenchReport) -> None:
    """By turns, in an order that goes round.

    What a second of the processor does changes with what else the machine is busy with.
    """
    ways = [OURS, KERNELS, *PEERS]
    found: dict[str, list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        running = {}
        for way in ways:
            words = program("loader_pipelines", world.jpegs, "--step", "--loader", way, "--batch", BATCH, "--threads", WORKERS)
            running[way] = start(stack, InMemory(), words)[0]
            # What is done but once belongs to no image.
            running[way].step()
        for number in range(world.size.pairs):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                said = running[way].step()
                found[way].append(1000 * said["cpu_s"] / said["images"])
                rates[way].append(said["images"] / said["seconds"])
                report.note_load()
            print(f"cpu: round {number + 1} of {world.size.pairs}", flush=True)
    scenario = f"cpu: {world.size.jpegs:,} JPEGs of 120 KB in memory, {WORKERS} threads or processes"
    bound = f"bound {min(found[KERNELS]):.3g}: simplejpeg, a slice and OpenCV in a loop, without any loader"
    report.time(What(scenario, "Forebay", "CPU-ms an image", CPU_MS_MAX), found[OURS], bound)
    for way, name in {KERNELS: "that loop", **PEERS}.items():
        ratios = [mine / theirs for mine, theirs in zip(found[OURS], found[way], strict=True)]
        note = f"{bound}; its CPU-ms an image: {', '.join(f'{each:.3g}' for each in found[way])}"
        report.time(What(scenario, f"Forebay over {name}", "x", 1 if way in PEERS else None, name), ratios, note)
    for way in ways:
        report.time(What(scenario, f"{way}: images a second", "images/s"), rates[way])


def missing_peers() -> list[str]:
    """Modules that are not installed."""
    return [name for name in NEEDED if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
