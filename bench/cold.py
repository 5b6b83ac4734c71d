"""Measures the first read of large files against its bars: `make bench-cold`. Needs root; about 30 minutes, two cores.

The source answers a read after 5 ms and works on 16 at the same time; or, in `bandwidth`, after 0.2 ms through a link
of 100 MB/s. In `gluster` it is a GlusterFS whose two bricks have links of 400 Mbit/s. Page caches are dropped before
each run. Bytes are those that the source's server reads, or its bricks send. `parallel` is the same files read by 16
threads of one program, without Forebay: nothing can be much faster.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import command, peers
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import ProgramError, program
from testbed.testbed import Gluster, drop_caches, gluster, have_fuse, have_gluster, slowfs

FOREBAY = Path(sys.executable).with_name("forebay")
LATENCY: dict[str, Any] = {"mbps": 0, "open_ms": 5, "meta_us": 5000, "read_us": 5000, "slots": 16, "attr_ttl_ms": 60_000, "threads": 64}
BANDWIDTH: dict[str, Any] = LATENCY | {"mbps": 100, "open_ms": 0.2, "meta_us": 200, "read_us": 200}
QUOTA = "8G"
PROGRAM_S = 600
FILES = 8
TENSORS = 16
SHARDS = 16
SMALL_BYTES = 30_000


@dataclass(frozen=True)
class ColdSize:
    """Sizes in bytes, and numbers of runs and files."""

    weights: int
    shard: int
    small: int
    runs: int


# Files of weights are half as large as they might be: the bench keeps its time, and the ratios do not depend on it.
FULL = ColdSize(weights=128 << 20, shard=64 << 20, small=6_000, runs=3)
QUICK = ColdSize(weights=16 << 20, shard=8 << 20, small=200, runs=1)


@dataclass(frozen=True)
class ColdBench:
    """The files of the source, and a local directory for tiers."""

    size: ColdSize
    place: Path

    def data(self, name: str) -> Path:
        """Returns a directory of the source's files."""
        return self.place / "data" / name


@dataclass(frozen=True)
class ColdRun:
    """Duration of a program in seconds, its checksum, and the source's bytes."""

    seconds: float
    total: int
    source_bytes: int


@dataclass(frozen=True)
class ColdSource:
    """A mounted source, and the bytes that its servers have read or sent so far."""

    mnt: Path
    sent_bytes: Callable[[], int]


# Mounts a directory of data at a place, for the length of a `with` block.
Mounted = Callable[[Path, Path], AbstractContextManager[ColdSource]]


def slow(settings: dict[str, Any]) -> Mounted:
    """A slow FUSE file system."""

    @contextlib.contextmanager
    def mounted(data: Path, mnt: Path) -> Iterator[ColdSource]:
        mnt.mkdir(exist_ok=True)
        with slowfs(data, mnt, **settings) as fs:
            yield ColdSource(mnt, lambda: fs.stats()["bytes_read"])

    return mounted


def standing(source: ColdSource) -> Mounted:
    """A source that stays mounted from run to run."""

    @contextlib.contextmanager
    def mounted(_data: Path, _mnt: Path) -> Iterator[ColdSource]:
        yield source

    return mounted


@dataclass(frozen=True)
class Kept:
    """Directories that outlast a run: of what is known of earlier ones, and of the tier, if one is given."""

    state: Path
    tier: Path | None = None
    freshness: str = "immutable"


def run(world: ColdBench, name: str, words: Sequence[str], mode: str | None, source: Mounted, kept: Kept | None = None) -> ColdRun:
    """Runs a program over a directory of the source, which is its first argument, with `--prefetch mode` or alone.

    Without `kept` nothing outlasts the run.
    """
    with tempfile.TemporaryDirectory(dir=world.place) as made, tempfile.TemporaryDirectory(dir=world.place) as made_tier:
        kept = kept or Kept(Path(made))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")}
        places = {"FOREBAY_RUNTIME_DIR": f"{kept.state}/runtime", "FOREBAY_STATE_DIR": f"{kept.state}/state"}
        with source(world.data(name), kept.state / "mnt") as mounted:
            mnt = mounted.mnt
            options = ["--source", str(mnt), "--tier", f"{kept.tier or made_tier}={QUOTA}", "--prefetch", mode or ""]
            before = [str(FOREBAY), "run", *options, "--freshness", kept.freshness, "--quiet", "--"] if mode else []
            drop_caches()
            sent = mounted.sent_bytes()
            replaced = [str(mnt) if word == "MNT" else word.replace("MNT/", f"{mnt}/") for word in words]
            done = subprocess.run(
                [*before, *replaced], env=inherited | places, capture_output=True, text=True, timeout=PROGRAM_S, check=False
            )
            if done.returncode:
                raise ProgramError(done.stderr)
            while mode and list(kept.state.glob("runtime/*/control.sock")):
                # The agent keeps what the run has read once its copies have ended.
                time.sleep(0.05)
            source_bytes = mounted.sent_bytes() - sent
    said = json.loads(done.stdout.splitlines()[-1])
    return ColdRun(said["seconds"], said.get("total", said.get("digest", 0)), source_bytes)


def compare(
    world: ColdBench,
    report: BenchReport,
    scenario: str,
    name: str,
    words: Sequence[str],
    bars: tuple[float, float, float],
    source: Mounted = slow(LATENCY),  # noqa: B008
) -> None:
    """Measures a program alone, under `auto` and `file`, and the same bytes read in parallel.

    `bars`: time over parallel, time over the program alone, source bytes over those of the parallel readers.
    """
    rounds: list[tuple[dict[str | None, ColdRun], ColdRun]] = []
    for _ in range(world.size.runs):
        took: dict[str | None, ColdRun] = {mode: run(world, name, words, mode, source) for mode in (None, "auto", "file")}
        if len({one.total for one in took.values()}) > 1:
            raise ProgramError(f"{words} read other bytes under Forebay")
        parallel = run(world, name, program("read_cold", "MNT", "--how", "parallel"), None, source)
        rounds.append((took, parallel))
        report.note_load()
    alone = statistics.median(took[None].seconds for took, _ in rounds)
    for mode in ("auto", "file"):
        note = f"{statistics.median(took[mode].seconds for took, _ in rounds):.1f} s; alone {alone:.1f} s"
        of_parallel = [took[mode].seconds / parallel.seconds for took, parallel in rounds]
        report.count(What(scenario, f"{mode}: time", "x parallel", bars[0] or None, "16 readers"), of_parallel, note)
        of_alone = [took[mode].seconds / took[None].seconds for took, _ in rounds]
        report.count(What(scenario, f"{mode}: time", "x alone", bars[1] or None, "the program as it is"), of_alone)
        read = [took[mode].source_bytes / parallel.source_bytes for took, parallel in rounds]
        report.count(What(scenario, f"{mode}: source bytes", "x parallel", bars[2], "16 readers"), read)


def weights(world: ColdBench, report: BenchReport) -> None:
    """safetensors, by one process and by four ranks."""
    for ranks in (1, 4):
        words = program("read_cold", "MNT", "--how", "tensors", "--ranks", ranks)
        compare(world, report, f"weights: {FILES} safetensors files, safe_open, {ranks} ranks", "weights", words, (1.15, 0.2, 1.02))


def transformers(world: ColdBench, report: BenchReport) -> None:
    """A model of `transformers`, which reads its files in its own way."""
    words = program("read_cold", "MNT", "--how", "pretrained")
    compare(world, report, "transformers: from_pretrained of a random model", "model", words, (1.15, 0.2, 1.02))


def gluster_weights(world: ColdBench, report: BenchReport) -> None:
    """Weights on a GlusterFS; its bytes are those on the links of its bricks, with all headers."""
    with gluster(world.place / "gluster", rate="400mbit", populate=world.data("weights")) as cluster:
        words = program("read_cold", "MNT", "--how", "tensors")
        scenario = f"gluster: {FILES} safetensors files, safe_open"
        source = standing(ColdSource(cluster.mnt, lambda: _sent(cluster)))
        compare(world, report, scenario, "weights", words, (1.15, 0, 1.02), source)


def _sent(cluster: Gluster) -> int:
    return int(cluster.stats()["sent_bytes"])


def others(world: ColdBench, report: BenchReport) -> None:
    """Other ways: read all files into the page cache first, or mount the source through a cache."""
    scenario = f"others: {FILES} safetensors files, safe_open"
    words = program("read_cold", "MNT", "--how", "tensors")
    found: dict[str, list[float]] = {"file": [], "first": [], "rclone": []}
    for _ in range(world.size.runs):
        found["file"].append(run(world, "weights", words, "file", slow(LATENCY)).seconds)
        found["first"].append(run(world, "weights", [*words, "--first-parallel"], None, slow(LATENCY)).seconds)
        found["rclone"].append(_through_rclone(world, words).seconds)
        report.note_load()
    named = {"first": "16 readers of all files, then the program", "rclone": "rclone mount, full VFS cache"}
    for key, name in named.items():
        ratios = [ours / theirs for ours, theirs in zip(found["file"], found[key], strict=True)]
        note = f"{statistics.median(found['file']):.1f} s; {statistics.median(found[key]):.1f} s"
        report.count(What(scenario, "file: time", f"x {key}", None, name), ratios, note)


def _through_rclone(world: ColdBench, words: Sequence[str]) -> ColdRun:
    @contextlib.contextmanager
    def mounted(data: Path, mnt: Path) -> Iterator[ColdSource]:
        with slow(LATENCY)(data, mnt) as source, peers.rclone(world.place, source.mnt, 8 << 30) as other:
            yield ColdSource(other, source.sent_bytes)

    return run(world, "weights", words, None, mounted)


def torch_load(world: ColdBench, report: BenchReport) -> None:
    """Checkpoints of torch."""
    words = program("read_cold", "MNT", "--how", "torch")
    compare(world, report, f"torch: {FILES} checkpoints, torch.load(mmap=True)", "torch", words, (1.15, 0, 1.05))


def quarter(world: ColdBench, report: BenchReport) -> None:
    """Four ranks that read a quarter of every file."""
    words = program("read_cold", "MNT", "--how", "quarter", "--ranks", 4)
    compare(world, report, "quarter: 4 ranks map a quarter of every safetensors file each", "weights", words, (1.15, 0, 1.05))


def shards(world: ColdBench, report: BenchReport) -> None:
    """The first epoch over shards, by four readers."""
    words = program("read_cold", "MNT", "--how", "stream", "--ranks", 4)
    compare(world, report, f"shards: epoch 1 of {SHARDS} shards, 4 readers", "shards", words, (0, 0.7, 1.02))


def bandwidth(world: ColdBench, report: BenchReport) -> None:
    """Measures first reads where the source's link is the limit."""
    words = program("read_cold", "MNT", "--how", "stream", "--ranks", 4)
    compare(world, report, f"bandwidth: epoch 1 of {SHARDS} shards, 4 readers, 100 MB/s", "shards", words, (0, 1.02, 1.02), slow(BANDWIDTH))


def part(world: ColdBench, report: BenchReport) -> None:
    """Programs that read a twentieth of each shard after another program has read two of them whole."""
    scenario = "part: programs that read 5 % of each shard"
    first = f"cat MNT/0.tar MNT/1.tar > /dev/null; exec {sys.executable} "
    for how in ("read", "seek", "pread", "mmap"):
        words = ["sh", "-c", first + " ".join(program("read_part", "MNT/", "--how", how)[1:])]
        shares = []
        for _ in range(world.size.runs):
            alone = run(world, "shards", words, None, slow(LATENCY))
            ours = run(world, "shards", words, "auto", slow(LATENCY))
            whole = 2 * world.size.shard
            shares.append((ours.source_bytes - whole) / (alone.source_bytes - whole))
            report.note_load()
        report.count(What(scenario, f"{how}: source bytes", "x its own", 1.05, "the program as it is"), shares)


def again(world: ColdBench, report: BenchReport) -> None:
    """Runs a command twice, the second time with an empty tier, and over files on the local disk."""
    for name, how in (("weights", "tensors"), ("small", "stream")):
        words = program("read_cold", "MNT", "--how", how)
        local = [str(world.data(name)) if word == "MNT" else word for word in words]
        times, shares = [], []
        for _ in range(world.size.runs):
            with tempfile.TemporaryDirectory(dir=world.place) as kept:
                first, second = (run(world, name, words, "auto", slow(LATENCY), Kept(Path(kept))) for _ in range(2))
            drop_caches()
            done = subprocess.run(local, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
            times.append(second.seconds / json.loads(done.stdout.splitlines()[-1])["seconds"])
            shares.append(second.source_bytes / first.source_bytes)
            report.note_load()
        scenario = f"again: second run of a command over {name}, empty tier"
        report.count(What(scenario, "auto: time", "x local", 1.15, "the files on the local disk"), times)
        report.count(What(scenario, "auto: source bytes", "x the first run", 1.05, "the first run"), shares)


def expired(world: ColdBench, report: BenchReport) -> None:
    """The second run over copies whose validity has run out."""
    words = program("read_cold", "MNT", "--how", "stream")
    read = []
    for _ in range(world.size.runs):
        with tempfile.TemporaryDirectory(dir=world.place) as state, tempfile.TemporaryDirectory(dir=world.place) as tier:
            kept = Kept(Path(state), Path(tier), "ttl=1")
            with slow(LATENCY)(world.data("shards"), kept.state / "mnt") as source:
                first = run(world, "shards", words, "auto", standing(source), kept)
                time.sleep(2)
                second = run(world, "shards", words, "auto", standing(source), kept)
        read.append(second.source_bytes / first.source_bytes)
        report.note_load()
    report.count(What(f"expired: second run over {SHARDS} shards, warm tier, ttl over", "source bytes", "x the first run", 0.0), read)


def small(world: ColdBench, report: BenchReport) -> None:
    """Small files, which are not read ahead."""
    words = program("read_cold", "MNT", "--how", "stream", "--ranks", 4)
    ratios = []
    for number in range(world.size.runs):
        order = ("auto", "follow") if number % 2 == 0 else ("follow", "auto")
        took = {mode: run(world, "small", words, mode, slow(LATENCY)) for mode in order}
        ratios.append(took["auto"].seconds / took["follow"].seconds)
        report.note_load()
    report.count(What("small: epoch 1 of small files", "auto: time", "x follow", None, "--prefetch follow"), ratios)


SCENARIOS: dict[str, Callable[[ColdBench, BenchReport], None]] = {
    "weights": weights,
    "others": others,
    "transformers": transformers,
    "gluster": gluster_weights,
    "torch": torch_load,
    "quarter": quarter,
    "shards": shards,
    "bandwidth": bandwidth,
    "part": part,
    "again": again,
    "expired": expired,
    "small": small,
}


def _make(world: ColdBench) -> None:
    import numpy as np
    import torch
    from safetensors.numpy import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    drawn = np.random.default_rng(1)

    def bytes_of(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return drawn.integers(0, 256, size, dtype=np.uint8)

    for name in ("weights", "torch", "shards", "small"):
        world.data(name).mkdir(parents=True)
    for number in range(FILES):
        layers = {f"layer.{layer:02}": bytes_of(world.size.weights // TENSORS) for layer in range(TENSORS)}
        save_file(layers, world.data("weights") / f"model-{number + 1:05}-of-{FILES:05}.safetensors")
        torch.save({key: torch.from_numpy(layer) for key, layer in layers.items()}, world.data("torch") / f"{number}.pt")
    # In float32, of which the layers have eight ninths.
    width = 1024 if world.size.weights > QUICK.weights else 256
    per_layer = 4 * (4 * width * width + 3 * width * 4 * width)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=max(1, FILES * world.size.weights // per_layer),
        num_attention_heads=8,
        vocab_size=32_000,
    )
    LlamaForCausalLM(config).save_pretrained(world.data("model"), max_shard_size=world.size.weights)
    for number in range(SHARDS):
        bytes_of(world.size.shard).tofile(world.data("shards") / f"{number}.tar")
    for number in range(world.size.small):
        bytes_of(SMALL_BYTES).tofile(world.data("small") / f"{number:04}.jpg")


@contextlib.contextmanager
def made(size: ColdSize, place: Path) -> Iterator[ColdBench]:
    """Makes the files, and removes them."""
    with tempfile.TemporaryDirectory(dir=place, prefix="forebay-bench-cold-") as directory:
        world = ColdBench(size, Path(directory))
        _make(world)
        yield world


# Readers that wait for the source count, too: 16 of them, or four programs beside the server.
OWN_LOAD = 12.0
BENCH = command.RootBench("bench-cold", "cold", __doc__, (Part.TIERING,), lacks=lambda: have_fuse() or have_gluster(), load_max=OWN_LOAD)


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, lambda quick, place: made(QUICK if quick else FULL, place))


if __name__ == "__main__":
    sys.exit(main())
