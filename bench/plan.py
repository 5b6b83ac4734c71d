"""Measures the planner against its bars, in the simulator: `make bench-plan`, or some scenarios with --only.

About six minutes of one core.

Simulated figures are the same in every run and on every machine; only `speed` measures this one. Exit code 0: every bar
is known to hold. 1: one is missed, or not measured.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench import command
from bench.parts import Part
from bench.report import LOAD_MAX, BenchReport, What, commit
from bench.simulator import Simulator, changed, programs, total, warm

SAMPLE_BYTES = 110_000
STEP_S = 0.1
# Memory of all nodes over the dataset: the paper's 40 GB of 135 GB.
PAPER_SHARE = 0.296
SOURCES = (0.25, 0.5, 0.72, 1.0, 2.0, 4.0)
# The logarithm's sigma of a latency of 10 ms: none, what a quiet file system has, and two heavy tails.
TAILS = (0.0, 0.5, 1.0, 1.5)
LATENCY_S = 0.010
HEDGE = 0.01
OTHERS = ("belady", "lobster", "lobster_as_written", "nopfs", "pinned", "fill_first", "lru", "none")


def job(nodes: int, gpus: int, batch: int, samples: int, share: float, sigma: float = 0.5) -> dict[str, dict[str, Any]]:
    """A job whose nodes together have room for `share` of the dataset, and nothing that takes time but training."""
    return {
        "cluster": {"nodes": nodes, "gpus": gpus, "cache": int(share * samples * SAMPLE_BYTES / nodes)},
        "dataset": {"samples": samples, "size": SAMPLE_BYTES, "sigma": sigma},
        "job": {"batch": batch, "step": STEP_S},
        "loader": {"policy": "forebay", "schedule": "earliest_deadline", "window": 4},
    }


def demand(scenario: dict[str, dict[str, Any]]) -> float:
    """Bytes a second that the job uses while nothing holds it up."""
    cluster, of_job = scenario["cluster"], scenario["job"]
    return float(cluster["nodes"] * cluster["gpus"] * of_job["batch"] * SAMPLE_BYTES / of_job["step"])


def residency(sim: Simulator, report: BenchReport) -> None:
    """Source bytes of `forebay` in cold and warm epochs, wherever memory is short and where it is not."""
    shapes = ((1, 8, 16, 60_000), (2, 8, 8, 60_000), (8, 4, 8, 120_000), (64, 2, 8, 240_000))
    for nodes, gpus, batch, samples in shapes:
        for sizes, sigma in (("equal", 0.0), ("skewed", 0.8)):
            found = [_bytes(sim, job(nodes, gpus, batch, samples, share, sigma)) for share in (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1)]
            scenario = f"residency: {nodes} nodes, {sizes} sizes, memory 10 to 110 % of S"
            note = "source bytes over S: " + " ".join(f"{each['source']:.3f}" for each in found)
            report.count(
                What(scenario, "warm epoch: source bytes over 1.02 max(0, S - N C) + N W", "", 1.0), [each["warm"] for each in found], note
            )
            report.count(What(scenario, "cold epoch: source bytes over S", "", 1.02), [each["cold"] for each in found])
            window = "W: " + " ".join(f"{each['limit'] / 1e6:.0f}" for each in found) + " MB"
            report.count(What(scenario, "window's bytes over the most that W may be", "", 1.0), [each["window"] for each in found], window)
            report.count(What(scenario, "bytes held over C", "", 1.0), [each["held"] for each in found])
    for share in (0.25, 0.9):
        base = job(8, 4, 8, 120_000, share)
        for policy in ("forebay", "forebay_rotating"):
            epoch = warm(sim.epochs(changed(base, loader_policy=policy, job_epochs=4)))
            size = 120_000 * SAMPLE_BYTES
            moved = (epoch["peer_bytes"] + epoch["handed_bytes"]) / size
            note = f"source bytes {epoch['source_bytes'] / size:.3f}, requests {epoch['source_requests'] / 120_000:.3f}"
            report.once(What(f"residency: 8 nodes, memory {share:.0%} of S", f"{policy}: peer bytes over S", ""), moved, note)


def _bytes(sim: Simulator, scenario: dict[str, dict[str, Any]]) -> dict[str, float]:
    cluster, of_job = scenario["cluster"], scenario["job"]
    epochs = sim.epochs(changed(scenario, job_epochs=4))
    size = total(epochs[:1], "local_bytes") + total(epochs[:1], "peer_bytes") + total(epochs[:1], "source_bytes")
    nodes, cache = cluster["nodes"], cluster["cache"]
    four = 4 * cluster["gpus"] * of_job["batch"] * SAMPLE_BYTES
    limit = max(0.02 * cache, four)
    bar = 1.02 * max(0, size - nodes * cache) + nodes * limit
    # Four iterations hold more bytes than on average where sizes differ: by at most five standard deviations, over all
    # of a job.
    spread = math.sqrt(math.expm1(scenario["dataset"]["sigma"] ** 2))
    most = max(0.02 * cache, four * (1 + 5 * spread / math.sqrt(4 * cluster["gpus"] * of_job["batch"])))
    return {
        "cold": epochs[0]["source_bytes"] / size,
        "warm": max(epoch["source_bytes"] for epoch in epochs[1:]) / bar,
        "source": epochs[-1]["source_bytes"] / size,
        "window": max(epoch["window_bytes_max"] for epoch in epochs) / most,
        "held": max(epoch["held_bytes_max"] for epoch in epochs) / cache,
        "limit": limit,
    }


def fits(sigma: float, window: int, reads: float) -> bool:
    """Returns True if an iteration's slowest read is within the window in 98 % of iterations, 1 % being hedged.

    A read is late when it takes longer than the window, and so does a second one made after the first has taken as long
    as 99 % do.
    """
    within_s = window * STEP_S
    if sigma == 0:
        return within_s > LATENCY_S
    latency = statistics.NormalDist(math.log(LATENCY_S), sigma)
    second_s = math.exp(latency.inv_cdf(1 - HEDGE))
    late = 1 - latency.cdf(math.log(within_s))
    if second_s < within_s:
        late *= 1 - latency.cdf(math.log(within_s - second_s))
    return bool((1 - late) ** reads >= 0.98)


def window_for(sigma: float, reads: float) -> int:
    """The smallest window of 2, 4, 8... steps that the tail fits."""
    window = 2
    while not fits(sigma, window, reads):
        window *= 2
    return window


def ideal(sim: Simulator, report: BenchReport) -> None:
    """Epoch time over max(compute, bytes / bandwidth, requests / rate, CPU)."""
    for nodes, gpus, batch in ((1, 8, 16), (8, 2, 8)):
        for tail in TAILS:
            window = max(4, window_for(tail, nodes * gpus * batch * (1 - PAPER_SHARE)))
            # A window of more than four steps must be within 2 % of the memory, as it is in jobs that are not scaled
            # down.
            steps = 470 if window == 4 else window * 50 / PAPER_SHARE
            base = job(nodes, gpus, batch, int(steps * nodes * gpus * batch), PAPER_SHARE)
            latent = changed(base, source_latency=LATENCY_S, source_tail=tail, loader_window=window, loader_hedge=HEDGE)
            runs = [sim.epochs(changed(latent, source_bandwidth=rho * demand(base))) for rho in SOURCES]
            scenario = f"ideal: {nodes} nodes, tail {tail}, window {window}, source .25 to 4 of demand"
            times = [epoch["seconds"] / epoch["ideal_seconds"] for epoch in map(warm, runs)]
            note = " ".join(f"{time:.3f}" for time in times)
            report.count(What(scenario, "warm epoch: time over the ideal", "", 1.05), times, note)
            hedged = [total(run, "hedged_bytes") / total(run, "source_bytes") for run in runs]
            report.count(What(scenario, "second reads, bytes of all from the source", "", HEDGE), hedged)
            report.count(
                What(scenario, "cold epoch: time over the ideal", ""), [run[0]["seconds"] / run[0]["ideal_seconds"] for run in runs]
            )
    _limits(sim, report)
    _waste(sim, report)


def _limits(sim: Simulator, report: BenchReport) -> None:
    """The same where requests or CPU are what is short."""
    base = job(1, 8, 16, 60_000, PAPER_SHARE)
    rate = demand(base) / SAMPLE_BYTES
    short = {
        "half of the requests": {"source_requests": 0.5 * rate},
        "half of the CPU": {"preprocessing_seconds": 16 / (0.5 * rate), "preprocessing_saturates_at": 16, "cluster_threads": 80},
    }
    for name, change in short.items():
        epoch = warm(sim.epochs(changed(base, source_bandwidth=2 * demand(base), source_latency=LATENCY_S, **change)))
        report.once(
            What(f"ideal: {name} that is needed", "warm epoch: time over the ideal", "", 1.05), epoch["seconds"] / epoch["ideal_seconds"]
        )


def _waste(sim: Simulator, report: BenchReport) -> None:
    """Adds the rows of other policies: their source bytes over the bound, and their time over the ideal."""
    base = job(1, 8, 16, 60_000, PAPER_SHARE)
    for policy in ("forebay", *OTHERS):
        runs = [
            sim.epochs(changed(base, loader_policy=policy, source_bandwidth=rho * demand(base), source_latency=LATENCY_S, job_epochs=4))
            for rho in (0.5, 1.0, 4.0)
        ]
        size = total(runs[0][:1], "source_bytes")
        read = [warm(run)["source_bytes"] / size for run in runs]
        note = "source bytes over S: " + " ".join(f"{share:.3f}" for share in read)
        report.count(
            What("ideal: all policies, 1 node, source .5, 1 and 4 of demand", f"{policy}: warm epoch, time over the ideal", ""),
            [epoch["seconds"] / epoch["ideal_seconds"] for epoch in map(warm, runs)],
            note,
        )


def imbalance(sim: Simulator, report: BenchReport) -> None:
    """Imbalanced iterations where the source can keep up, and threads and bandwidth are at most 80 % used."""
    for nodes, gpus, batch, threads in ((1, 8, 16, 12), (8, 4, 16, 6)):
        base = job(nodes, gpus, batch, 470 * nodes * gpus * batch, PAPER_SHARE)
        # So many threads preprocess, and are at work for 75 % of the time.
        image_s = 0.75 * threads * STEP_S / (gpus * batch)
        busy = changed(base, preprocessing_seconds=image_s, preprocessing_saturates_at=threads, cluster_threads=64 + threads)
        for window in (4, 2):
            for tail in TAILS:
                if not fits(tail, window, nodes * gpus * batch * (1 - PAPER_SHARE)):
                    continue
                runs = [
                    warm(
                        sim.epochs(
                            changed(
                                busy,
                                source_bandwidth=rho * demand(base),
                                source_latency=LATENCY_S,
                                source_tail=tail,
                                loader_window=window,
                                loader_hedge=HEDGE,
                            )
                        )
                    )
                    for rho in (0.9, 1.0, 2.0, 4.0)
                ]
                scenario = f"imbalance: {nodes} nodes, window {window}, tail {tail}, source .9 to 4 of demand"
                report.count(
                    What(scenario, "imbalanced iterations", "", 0.05), [epoch["imbalanced"] / epoch["iterations"] for epoch in runs]
                )
                report.count(What(scenario, "stalled iterations", ""), [epoch["stalled"] / epoch["iterations"] for epoch in runs])


SCHEDULES = ("first_come", "static", "lobster_as_written", "lobster", "earliest_deadline")
FEW = {"cluster_loading_threads": 24, "cluster_threads": 40}
MANY = {"cluster_loading_threads": 256, "cluster_threads": 272}
SLOW = {"job_slow_ranks": [[3, 2.0]]}
MIXED = {"loader_window": [1, 1, 2, 2, 4, 4, 8, 8]}
FILL = {"loader_background_fill": True}
SETUPS: dict[str, dict[str, Any]] = {
    "64 threads": {},
    "64 threads, background fill": FILL,
    "64 threads, a slow rank": SLOW,
    "64 threads, mixed windows": MIXED,
    "24 threads": FEW,
    "24 threads, background fill": FEW | FILL,
    "24 threads, a slow rank": FEW | SLOW,
    "24 threads, mixed windows": FEW | MIXED,
    "24 threads, mixed windows, background fill": FEW | MIXED | FILL,
    "256 threads": MANY,
    "256 threads, a slow rank, background fill": MANY | SLOW | FILL,
}


def schedulers(sim: Simulator, report: BenchReport) -> None:
    """All schedulers in every set-up, with and without hedging. The default is earliest deadline with hedging."""
    base = job(1, 8, 16, 40_000, PAPER_SHARE)
    base = changed(
        base,
        cluster_threads=80,
        cluster_memory=20e9,
        source_bandwidth=1.2 * demand(base),
        source_latency=LATENCY_S,
        source_tail=1.0,
        source_stream=200e6,
        preprocessing_seconds=0.75 * 16 / (8 * 16 / STEP_S),
        preprocessing_saturates_at=16,
    )
    worst = 0.0
    for name, change in SETUPS.items():
        times: dict[tuple[str, float], float] = {}
        for schedule in SCHEDULES:
            for hedge in (0.0, HEDGE):
                epoch = warm(sim.epochs(changed(base, **change, loader_schedule=schedule, loader_hedge=hedge)))
                times[schedule, hedge] = epoch["seconds"] / epoch["ideal_seconds"]
                with_hedge = ", hedged" if hedge else ""
                imbalanced = epoch["imbalanced"] / epoch["iterations"]
                note = f"imbalanced {imbalanced:.1%}, 99th percentile {epoch['step_p99_s'] / STEP_S:.2f} steps"
                report.once(What(f"schedulers: {name}", f"{schedule}{with_hedge}: time over the ideal", ""), times[schedule, hedge], note)
        over_best = times["earliest_deadline", HEDGE] / min(times.values())
        worst = max(worst, over_best)
        report.once(What(f"schedulers: {name}", "the default's time over the best's", ""), over_best)
    report.once(What("schedulers: all set-ups", "the default's time over the best's, worst", "", 1.02), worst)


def speed(_sim: Simulator, report: BenchReport) -> None:
    """An epoch of decisions of each policy: 14.2 million samples, 64 GPUs."""
    for policy in ("forebay", "forebay_rotating", *OTHERS):
        samples = 1_419_710 if report.quick else 14_197_103
        ran = subprocess.run([programs() / "decisions", policy, str(samples)], capture_output=True, text=True, check=True)
        report.note_load()
        told = json.loads(ran.stdout)
        bar = 2.0 if policy == "forebay" else 10.0
        scenario = f"speed: {policy}, 14.2 million samples, 64 GPUs"
        # What a driver does in any case is not decided: to make the order, and to go through it.
        decided = [epoch - walk for epoch, walk in zip(told["epochs_s"], told["walks_s"], strict=True)]
        note = "orders and the way through them: " + " ".join(f"{walk:.2f}" for walk in told["walks_s"]) + " s"
        report.count(What(scenario, "CPU seconds of an epoch of decisions", "s", bar), decided, note)
        report.once(What(scenario, "bytes a sample, orders left out", "B", 64.0), told["memory_bytes"] / samples)


SCENARIOS: dict[str, Callable[[Simulator, BenchReport], None]] = {
    "residency": residency,
    "ideal": ideal,
    "imbalance": imbalance,
    "schedulers": schedulers,
    "speed": speed,
}


def main() -> int:
    """See above."""
    parser = command.parser(__doc__, SCENARIOS)
    args = parser.parse_args()
    # What is simulated depends on no load; only `speed` measures this machine.
    report = BenchReport(
        "plan", tuple(SCENARIOS), quick=args.quick, commit=commit((Part.SIMULATOR,)), load_max=math.inf, load_max_of={"speed": LOAD_MAX}
    )
    return command.run(report, command.wanted(parser, args.only, report), SCENARIOS, Simulator(), args.minutes)


if __name__ == "__main__":
    sys.exit(main())
