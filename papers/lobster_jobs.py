"""Jobs of `papers.lobster_measured`: loaders, the set-up in kind, and the very same set-up for the simulator."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bench.loader_world import lines, node
from bench.session import program
from bench.simulator import Simulator
from papers.lobster import STEPS_S
from testbed import datasets
from testbed.testbed import drop_caches, slowfs

RANKS = 4
BATCH = 8
SEED = 1
SCALE = 2.5
"""Factor of the times of `papers.lobster`, so that they are long beside what an operating system adds."""
STEPS_MS = {model: SCALE * STEPS_S[model] * 1000 for model in ("AlexNet", "ResNet32", "ResNet50")}
LATENCY_MS = 40.0
"""Median latency of opening a file on the source."""
TAIL = 1.0
"""Sigma of the latency's logarithm."""
DECODE_MS = 10.0
"""Timed wait for a sample of the mean size."""
CACHE = 40 / 135
"""Room for samples over the bytes of all, as on the paper's node with ImageNet-1K."""
PICTURE_KB = 12
READS = 16
"""Reading threads of the node: four for each rank."""
DECODERS = 2
"""Decoding threads of a rank."""
WINDOW = 10
"""Steps that our loader requests ahead: two batches that are decoded, and eight."""
PREPARED = 2
WORKERS_AHEAD = 2
"""Batches that torch's loader gives to each worker process ahead."""


class MeasuredLoader(NamedTuple):
    """A loader: of ours its policy and schedule, its reads of the node, and the threads or processes of each rank."""

    policy: str
    schedule: str
    reads: int = READS
    threads: int = DECODERS
    hedge: float = 0.0
    is_torch: bool = False


LOADERS = {
    "PyTorch": MeasuredLoader("none", "static", threads=READS // RANKS, is_torch=True),
    "DALI-like": MeasuredLoader("none", "first_come", reads=3 * RANKS, threads=3),
    "NoPFS": MeasuredLoader("nopfs", "static"),
    "Lobster as written": MeasuredLoader("lobster_as_written", "lobster_as_written"),
    "Lobster": MeasuredLoader("lobster", "lobster"),
    "Forebay": MeasuredLoader("forebay", "forebay", hedge=0.01),
}
ABLATION = {
    "threads alone": MeasuredLoader("none", "lobster", reads=3 * RANKS, threads=3),
    "eviction alone": MeasuredLoader("lobster", "first_come", reads=3 * RANKS, threads=3),
    "both": MeasuredLoader("lobster", "lobster", reads=3 * RANKS, threads=3),
}


TIMED_THREADS = 64
"""Threads that gain by each other where decoding is a timed wait: all."""
BARE_STEPS = 20
"""Steps without a loader, by which is known what the machine adds to a training step."""
DRAWS = 9
"""Simulations of a set-up, each with other latencies: that of an epoch depends on where the long ones fall."""
OPENED = 128
"""Files that are opened to know what the machine adds to the source's latency."""


class MachineCost(NamedTuple):
    """Times of a job as the machine makes them, measured just before the job.

    Attributes:
        step_s: seconds of a training step whose batches are there already.
        decode_s_a_byte: seconds in which a thread decodes a byte, while all ranks' threads do.
        open_s: seconds by which an open takes longer than the source's latency, in the median.
    """

    step_s: float
    decode_s_a_byte: float
    open_s: float

    @classmethod
    def told(cls, step_ms: float, mean_bytes: float) -> MachineCost:
        """Returns the costs of a machine that adds nothing, where decoding is a timed wait."""
        return cls(step_ms / 1000, DECODE_MS / 1000 / mean_bytes, 0.0)


@dataclass(frozen=True)
class LobsterSize:
    """Steps of an epoch, epochs of a run, runs of each cell, and seconds of each round of decoding."""

    steps: int
    epochs: int
    runs: int
    decode_s: float


FULL = LobsterSize(steps=60, epochs=3, runs=1, decode_s=5.0)
QUICK = LobsterSize(steps=6, epochs=2, runs=1, decode_s=0.1)


class Cell(NamedTuple):
    """A loader with a model, in kind and simulated: epochs of the program, and the simulator's answers by draw."""

    measured: list[dict[str, Any]]
    draws: list[dict[str, Any]]
    machine: MachineCost

    @property
    def warm(self) -> dict[str, Any]:
        """The last epoch in kind."""
        return self.measured[-1]

    @property
    def simulated(self) -> dict[str, Any]:
        """The simulator's answer whose last epoch took the median time."""
        by_time = sorted(self.draws, key=lambda draw: float(draw["epochs"][-1]["seconds"]))
        return by_time[len(by_time) // 2]

    @property
    def predicted_imbalance(self) -> float:
        """Share of imbalanced steps in the simulator's last epochs, in the mean of draws."""
        return statistics.fmean(draw["epochs"][-1]["imbalanced"] / draw["epochs"][-1]["iterations"] for draw in self.draws)

    @property
    def seconds(self) -> float:
        """Mean time of the epochs in kind after the first one, in seconds."""
        return statistics.fmean(epoch["seconds"] for epoch in self.measured[1:] or self.measured)

    @property
    def predicted_s(self) -> float:
        """Mean time of the simulator's epochs after the first one, in the mean of draws, in seconds."""
        return statistics.fmean(epoch["seconds"] for draw in self.draws for epoch in draw["epochs"][1:] or draw["epochs"])

    @property
    def ratio(self) -> float:
        """The simulator's epoch time over the measured one."""
        return self.predicted_s / self.seconds

    @property
    def later_ratio(self) -> float:
        """The ratio of the last epoch without its first step."""
        return float(sum(self.simulated["step_times_s"][1:])) / float(sum(self.warm["steps_s"][1:]))


@dataclass
class LobsterBench:
    """Photographs on a local directory, the source that shows them slowly, and the simulator."""

    size: LobsterSize
    place: Path
    simulator: Simulator
    _cells: dict[tuple[MeasuredLoader, float, bool], Cell] = field(default_factory=dict)
    _digests: dict[bool, str] = field(default_factory=dict)

    @cached_property
    def files(self) -> Path:
        """Photographs, one a sample."""
        path = self.place / "files"
        datasets.photos(path, RANKS * BATCH * self.size.steps, size_kb=PICTURE_KB)
        return path

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of the files in bytes, by name."""
        return [path.stat().st_size for path in sorted(self.files.rglob("*.jpg"))]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(self.sizes)

    @property
    def mean_bytes(self) -> float:
        """Mean size of a file."""
        return self.bytes / len(self.sizes)

    @property
    def window_bytes(self) -> int:
        """Room for the samples that are requested ahead."""
        return int((WINDOW + 3) * RANKS * BATCH * self.mean_bytes) + max(self.sizes)

    @property
    def wait_words(self) -> list[object]:
        """Options that make decoding a timed wait."""
        return ["--wait-us-a-kb", 1000 * DECODE_MS / (self.mean_bytes / 1000)]

    def cell(self, loader: MeasuredLoader, step_ms: float, saturates_at: int = TIMED_THREADS) -> Cell:
        """Returns the epochs of a loader, measured when they are first asked for.

        Args:
            loader: the loader.
            step_ms: pause that stands for a training step.
            saturates_at: decoding threads that gain by each other; with `TIMED_THREADS` decoding is a timed wait.
        """
        is_timed = saturates_at == TIMED_THREADS
        key = loader, step_ms, is_timed
        if key not in self._cells:
            open_s = self.opening_s()
            bare, *measured = self.measured(loader, step_ms, is_timed=is_timed)
            machine = MachineCost(statistics.median(bare["steps_s"]), bare["decode_s_a_byte"], open_s)
            digest = self._digests.setdefault(is_timed, measured[-1]["digest"])
            if measured[-1]["digest"] != digest:
                raise RuntimeError(f"{loader} gave other batches than the loader before it")
            scenario = self.scenario(loader, machine, saturates_at)
            drawn = [{**scenario, "source": {**scenario["source"], "seed": draw}} for draw in range(DRAWS)]
            draws = [self.simulator.answer(one) for one in drawn]
            self._cells[key] = Cell(measured, draws, machine)
        return self._cells[key]

    def opening_s(self) -> float:
        """Returns the seconds by which an open of the source takes longer than its latency, without the tail."""
        paths = sorted(self.files.rglob("*.jpg"))[:OPENED]

        def open_one(path: Path) -> float:
            begun = time.monotonic()
            path.read_bytes()
            return time.monotonic() - begun

        with mounted(self.files, self.place, tail=0.0) as mnt, ThreadPoolExecutor(READS) as pool:
            # One pause of the machine would count in all of the simulator's reads.
            found = statistics.median(pool.map(open_one, [mnt / path.relative_to(self.files) for path in paths]))
        return max(0.0, found - LATENCY_MS / 1000)

    def measured(self, loader: MeasuredLoader, step_ms: float, *, is_timed: bool) -> list[dict[str, Any]]:
        """Runs the job in kind, on a node and a source of its own: steps without a loader, then its epochs."""
        options = ["--ranks", RANKS, "--epochs", self.size.epochs, "--batch", BATCH, "--step-ms", step_ms, "--threads", loader.threads]
        options += ["--bare", BARE_STEPS]
        options += self.wait_words if is_timed else []
        options += [] if loader.is_torch else ["--agent", json.dumps(self.agent(loader))]
        with mounted(self.files, self.place) as mnt, node() as here:
            return lines(program("lobster_ranks", mnt, *options), here.variables)

    def agent(self, loader: MeasuredLoader) -> dict[str, Any]:
        """Settings of the loader agent."""
        return {
            "memory_bytes": int(CACHE * self.bytes),
            "window_bytes": self.window_bytes,
            "policy": loader.policy,
            "schedule": loader.schedule,
            "reads_max": loader.reads,
            "hedge_budget": loader.hedge,
        }

    def scenario(self, loader: MeasuredLoader, machine: MachineCost, saturates_at: int = TIMED_THREADS) -> dict[str, Any]:
        """Returns the very same set-up, for the simulator, with the times that the machine makes of it."""
        decoders = RANKS * loader.threads
        # All decoded while it was measured.
        seconds = machine.decode_s_a_byte * self.mean_bytes * min(1.0, saturates_at / decoders)
        mean_s = LATENCY_MS / 1000 * math.exp(TAIL**2 / 2)
        latency_s = LATENCY_MS / 1000 * (mean_s + machine.open_s) / mean_s
        window = WORKERS_AHEAD * loader.threads if loader.is_torch else WINDOW
        own = {"workers": loader.threads} if loader.is_torch else {"decoders": loader.threads, "learns_reads": True}
        return {
            "detailed": True,
            "cluster": {
                "nodes": 1,
                "gpus": RANKS,
                "cache": int(CACHE * self.bytes) + self.window_bytes,
                "reserved": self.window_bytes,
                "threads": loader.reads + decoders,
                "loading_threads": loader.reads,
            },
            "source": {"bandwidth": None, "latency": latency_s, "tail": TAIL, "stream": None},
            "dataset": {"samples": len(self.sizes), "listing": self.sizes},
            "job": {"batch": BATCH, "step": machine.step_s, "epochs": self.size.epochs, "seed": SEED, "drop_last": True},
            "preprocessing": {"seconds": seconds, "saturates_at": saturates_at},
            "loader": {
                "policy": loader.policy,
                "schedule": loader.schedule,
                "window": window,
                "prepared": PREPARED if not loader.is_torch else window,
                "hedge": loader.hedge,
                "across_epochs": False,
                **own,
            },
        }


@contextlib.contextmanager
def mounted(files: Path, place: Path, tail: float = TAIL) -> Iterator[Path]:
    """The files on a file system on which each open takes long, now and then very long."""
    mnt = Path(tempfile.mkdtemp(prefix="source-", dir=place))
    settings: Mapping[str, float] = {
        "mbps": 0,
        "meta_us": 0,
        "read_us": 0,
        "open_ms": LATENCY_MS,
        "tail": tail,
        "slots": 256,
        "threads": 64,
    }
    with slowfs(files, mnt, allow_other=True, readdirplus=True, attr_ttl_ms=600_000, **settings):
        drop_caches()
        yield mnt
