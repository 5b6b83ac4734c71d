"""Measures the Lobster paper's Figures 3, 6, 7a, 8a, 8c and 11 in kind: `make papers-lobster-measured`. Needs root.

Four ranks of one node train in timed pauses on photographs that lie on a file system with a latency tail. Each figure
stands beside what the simulator says of the very same set-up; their ratio has a bar. Times are those of
`papers.lobster`, 2.5 times as long. Decoding is a timed wait, since threads that compute would only share two cores;
the scenario `decoded` really decodes. At most 30 minutes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import command
from bench.loader_bounds import imbalanced
from bench.loader_world import lines
from bench.parts import Part
from bench.report import BenchReport, What
from bench.session import program
from bench.simulator import Simulator
from papers.lobster import PAPER_IMBALANCE, PAPER_SPEEDUPS
from papers.lobster_jobs import ABLATION, FULL, LOADERS, QUICK, RANKS, STEPS_MS, Cell, LobsterBench

PANEL = "1 node, ImageNet-1K"
PAPER_OF = {"PyTorch": "PyTorch", "DALI-like": "DALI", "NoPFS": "NoPFS", "Lobster": "Lobster"}
"""The paper's name of a loader."""
FIGURE_MODEL = "ResNet50"
BROKEN_DOWN = ("DALI-like", "Forebay")
KEPT = 8
"""Steps at the beginning, in the middle and at the end of an epoch that Figure 3 shows."""
THREADS = (1, 2, 3, 4, 6, 8)
AGREES = 0.1
"""Most that the simulator's epoch time may differ from the measured one, as a share."""
PAPER_ABLATION = {"threads alone": "1.3, at most 1.4", "eviction alone": "1.15", "both": ""}
BUSY_RANKS_LOAD = 3.0


def threads(world: LobsterBench, report: BenchReport) -> None:
    """Figure 6: throughput of decoding by threads."""
    for name, cost in (("decoded", decoding(world, is_timed=False)), ("timed waits", decoding(world, is_timed=True))):
        note = f"with {', '.join(map(str, THREADS))} threads; the paper's peak is at 6; {cost['cpu_s'] * 1e3:.2f} CPU-ms a sample"
        report.time(What("threads: Figure 6", f"{name}: samples by threads", "samples/s"), cost["rates"], note)


def decoding(world: LobsterBench, *, is_timed: bool) -> dict[str, Any]:
    """Returns what was measured of decoding."""
    words = ["--threads", *THREADS, "--seconds", world.size.decode_s, *(world.wait_words if is_timed else [])]
    return lines(program("decode_threads", world.files, *words))[0]


def speed(world: LobsterBench, report: BenchReport) -> None:
    """Figure 7a: epochs of all loaders with three models."""
    found = {name: {model: world.cell(loader, ms) for model, ms in STEPS_MS.items()} for name, loader in LOADERS.items()}
    scenario = f"speed: Figure 7a, {RANKS} ranks"
    for name, cells in found.items():
        for model, cell in cells.items():
            beside(report, scenario, f"{model}, {name}", cell)
            report.note_load()
    lobster = found["Lobster"]
    for name, cells in found.items():
        if name == "Lobster":
            continue
        ratios = [cells[model].seconds / lobster[model].seconds for model in STEPS_MS]
        predicted = [cells[model].predicted_s / lobster[model].predicted_s for model in STEPS_MS]
        paper = PAPER_SPEEDUPS[PANEL].get(PAPER_OF.get(name, ""))
        note = f"simulated {statistics.geometric_mean(predicted):.2f}" + (f"; the paper's: {paper}" if paper else "")
        report.time(What(scenario, f"Lobster's speed-up over {name}", "x", None, name), ratios, note)
        if paper:
            what = What(scenario, f"Lobster's time over that of {name}, mean of models", "x", 1.0, name)
            report.once(what, 1 / statistics.geometric_mean(ratios))
    agreement(report, scenario, [cell for cells in found.values() for cell in cells.values()])


def beside(report: BenchReport, scenario: str, name: str, cell: Cell) -> None:
    """Adds the epoch time of a cell, and the simulator's over it."""
    epochs = ", ".join(f"{epoch['seconds']:.2f}" for epoch in cell.measured)
    note = f"all epochs: {epochs}; first step of the last {cell.warm['steps_s'][0]:.2f} s"
    report.once(What(scenario, f"{name}: epoch", "s"), cell.seconds, note)
    epochs = ", ".join(f"{epoch['seconds']:.2f}" for epoch in cell.simulated["epochs"])
    note = f"all epochs: {epochs}; a step {cell.machine.step_s * 1e3:.1f} ms, an open {cell.machine.open_s * 1e3:.1f} ms longer"
    report.once(What(scenario, f"{name}: epoch, simulated", "s"), cell.predicted_s, note)
    note = f"without the first step of the last {cell.later_ratio:.2f}"
    report.once(What(scenario, f"{name}: simulator over measured", "x", None, "measured"), cell.ratio, note)


def agreement(report: BenchReport, scenario: str, cells: Sequence[Cell]) -> None:
    """Adds the row with the bar: how far the simulator's worst cell is from the measured one."""
    ratios = [cell.ratio for cell in cells]
    later = [cell.later_ratio for cell in cells]
    spread = [f"{min(some):.2f} to {max(some):.2f}, median {statistics.median(some):.2f}" for some in (ratios, later)]
    note = f"ratios {spread[0]}; without first steps {spread[1]}"
    what = What(scenario, "simulator over measured, farthest from 1", "", AGREES, "measured")
    report.once(what, max(abs(1 - ratio) for ratio in ratios), note)


def balance(world: LobsterBench, report: BenchReport) -> None:
    """Figures 8a and 8c: imbalanced steps, and the distribution of the times of steps."""
    step_ms = STEPS_MS[FIGURE_MODEL]
    scenario = f"balance: Figure 8, {FIGURE_MODEL}, {RANKS} ranks"
    for name, loader in LOADERS.items():
        cell = world.cell(loader, step_ms)
        report.note_load()
        steps_s = cell.warm["steps_s"]
        share = imbalanced(cell.warm["waits_s"], step_ms / 1000) / len(steps_s)
        predicted = cell.predicted_imbalance
        paper = PAPER_IMBALANCE[PANEL].get(PAPER_OF.get(name, ""))
        note = f"simulated {predicted:.3f}" + (f"; the paper's: {paper:.3f}" if paper else "")
        report.once(What(scenario, f"{name}: imbalanced steps", "of all"), share, note)
        report.once(What(scenario, f"{name}: imbalanced steps, simulated", "of all"), predicted)
        report.time(What(scenario, f"{name}: time of a step", "s"), steps_s)
        report.time(What(scenario, f"{name}: time of a step, simulated", "s"), cell.simulated["step_times_s"])


def breakdown(world: LobsterBench, report: BenchReport) -> None:
    """Figure 3: how long each rank waits for its own batch, and for the others, in 24 steps of an epoch."""
    step_ms = STEPS_MS[FIGURE_MODEL]
    scenario = f"breakdown: Figure 3, {FIGURE_MODEL}, {RANKS} ranks"
    for name in BROKEN_DOWN:
        cell = world.cell(LOADERS[name], step_ms)
        report.note_load()
        steps = kept(len(cell.warm["steps_s"]))
        late = late_of(cell.simulated["steps"])
        for rank in range(RANKS):
            waits = [cell.warm["waits_s"][rank][step] for step in steps]
            longest = [max(of_rank[step] for of_rank in cell.warm["waits_s"]) for step in steps]
            note = f"steps {', '.join(map(str, steps))}"
            report.time(What(scenario, f"{name}, rank {rank}: wait for its own batch", "s"), waits, note)
            idle = [most - own for most, own in zip(longest, waits, strict=True)]
            report.time(What(scenario, f"{name}, rank {rank}: wait for other ranks", "s"), idle, note)
            report.time(What(scenario, f"{name}, rank {rank}: wait for its own batch, simulated", "s"), late[rank])


def kept(steps: int) -> list[int]:
    """Returns the numbers of the steps that Figure 3 shows, as the simulator keeps them."""
    middle = max(0, steps // 2 - KEPT // 2)
    return [step for step in range(steps) if step < KEPT or middle <= step < middle + KEPT or step + KEPT >= steps]


def late_of(steps: Sequence[Mapping[str, Any]]) -> dict[int, list[float]]:
    """Returns, by rank, how long each waited in the steps that the simulator kept."""
    return {rank: [step["late_s"] for step in steps if step["rank"] == rank] for rank in range(RANKS)}


def ablation(world: LobsterBench, report: BenchReport) -> None:
    """Figure 11: what Lobster's threads and its eviction gain by themselves over the DALI-like loader."""
    step_ms = STEPS_MS[FIGURE_MODEL]
    scenario = f"ablation: Figure 11, {FIGURE_MODEL}, {RANKS} ranks"
    dali = world.cell(LOADERS["DALI-like"], step_ms)
    cells = {name: world.cell(loader, step_ms) for name, loader in ABLATION.items()}
    report.note_load()
    for name, cell in cells.items():
        beside(report, scenario, name, cell)
        simulated = dali.predicted_s / cell.predicted_s
        note = f"simulated {simulated:.2f}" + (f"; the paper's mean: {PAPER_ABLATION[name]}" if PAPER_ABLATION[name] else "")
        report.once(What(scenario, f"{name}: speed-up over DALI-like", "x", None, "DALI-like"), speed_up(dali, cell), note)
        report.once(What(scenario, f"{name}: speed-up over DALI-like, simulated", "x", None, "DALI-like"), simulated)
    for name in ("threads alone", "eviction alone"):
        what = What(scenario, f"time of both over {name}", "x", 1.0, name)
        report.once(what, cells["both"].seconds / cells[name].seconds)
    agreement(report, scenario, list(cells.values()))


def speed_up(slower: Cell, faster: Cell) -> float:
    """Returns the ratio of two epochs in kind."""
    return slower.seconds / faster.seconds


def decoded(world: LobsterBench, report: BenchReport) -> None:
    """All loaders with real decoding; the simulator is told its cost as all threads had it just before."""
    step_ms = STEPS_MS[FIGURE_MODEL]
    scenario = f"decoded: {FIGURE_MODEL}, {RANKS} ranks, Pillow"
    cells = {}
    cores = os.cpu_count() or 1
    for name, loader in LOADERS.items():
        cells[name] = world.cell(loader, step_ms, cores)
        report.note_load()
        beside(report, scenario, name, cells[name])
        seconds = cells[name].machine.decode_s_a_byte * world.mean_bytes
        note = f"{RANKS * loader.threads} threads on {cores} cores"
        report.once(What(scenario, f"{name}: decoding a sample, all threads at work", "ms"), seconds * 1e3, note)
    for name, cell in cells.items():
        if name != "Lobster":
            report.once(What(scenario, f"Lobster's speed-up over {name}", "x", None, name), speed_up(cell, cells["Lobster"]))
    agreement(report, scenario, list(cells.values()))


SCENARIOS: dict[str, Callable[[LobsterBench, BenchReport], None]] = {
    "threads": threads,
    "balance": balance,
    "breakdown": breakdown,
    "ablation": ablation,
    "speed": speed,
    "decoded": decoded,
}


@contextlib.contextmanager
def world(quick: bool, parent: Path) -> Iterator[LobsterBench]:
    """Makes photographs when they are first asked for, and removes them at the end."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=parent) as place, Simulator() as simulator:
        yield LobsterBench(QUICK if quick else FULL, Path(place), simulator)


BENCH = command.RootBench("papers-lobster-measured", "lobster-measured", __doc__, (Part.LOADER, Part.SIMULATOR), load_max=BUSY_RANKS_LOAD)


def main() -> int:
    """See above."""
    return command.run_as_root(BENCH, SCENARIOS, world)


if __name__ == "__main__":
    sys.exit(main())
