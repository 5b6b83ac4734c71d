"""Figures of `make bench-loader`: bounds, bars, imbalance, noise.

And that its programs give what they say.
"""

import contextlib
import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import loader_cpu, loader_imbalance, loader_memory, loader_network, loader_policies, loader_small, loader_warm, loader_world
from bench.loader import SCENARIOS
from bench.loader_bounds import (
    apart,
    growth,
    ideal_s,
    imbalanced,
    least_of,
    lru_share,
    over_others,
    payload_least,
    payload_max,
    quantile,
    stalled,
)
from bench.loader_world import BANDWIDTH, QUICK, LoaderBench
from bench.report import BenchReport, scenario_of
from bench.session import EpochFigures, ProgramError, program
from bench.world import SourceTraffic
from forebay.loader._settings import Kept
from forebay.torch import DataLoader

pytestmark = pytest.mark.usefixtures("idle_machine")

PROGRAM_S = 300
S = 1_000_000


def test_a_warm_epoch_may_read_what_the_cache_lacks_and_a_window() -> None:
    assert payload_least(S, 300_000) == 700_000
    assert payload_max(S, 300_000, 10_000) == pytest.approx(1.03 * 700_000 + 10_000)
    assert payload_max(S, 2 * S, 10_000) == 10_000


def test_the_ideal_is_what_takes_longest() -> None:
    assert ideal_s(2.0, 10.0, 0.6) == pytest.approx(4.0)
    assert ideal_s(5.0, 10.0, 0.6) == 5.0
    assert ideal_s(2.0, 10.0, 1.0, cpu_s=3.0) == 3.0


def test_the_most_at_30_percent_is_1_43() -> None:
    bar, bound = least_of(0.3, 1.3)
    assert bar == pytest.approx(0.769, abs=1e-3)
    assert 1 / bound == pytest.approx(1.43, abs=0.01)
    assert bar > bound


def test_a_least_recently_used_cache_answers_what_the_closed_form_says() -> None:
    assert lru_share(0.296) == pytest.approx(0.049, abs=5e-4)
    assert (lru_share(0.0), lru_share(1.0)) == (0.0, 1.0)
    # And what a cache that is tried out does, in epochs of random orders.
    samples, held = 2_000, 1_200
    recent: dict[int, None] = {}
    hits = 0
    for epoch in range(6):
        for sample in random.Random(epoch).sample(range(samples), samples):  # noqa: S311
            if epoch == 5 and sample in recent:
                hits += 1
            recent.pop(sample, None)
            recent[sample] = None
            if len(recent) > held:
                del recent[next(iter(recent))]
    assert hits / samples == pytest.approx(lru_share(held / samples), abs=0.03)


def test_bars_against_lru_lie_within_what_can_be_reached() -> None:
    for share, faster in loader_policies.FASTER_THAN_LRU.items():
        assert loader_policies.least("lru", share) < 1 / faster
    assert loader_policies.least("pinned", 0.3) == 1


def test_a_step_in_which_all_wait_alike_is_a_stall_and_not_imbalanced() -> None:
    waits = [[0.0, 0.02, 0.004, 0.001], [0.0, 0.02, 0.011, 0.0]]
    # 5 % of 100 ms are 5 ms.
    assert imbalanced(waits, 0.1) == 1
    assert stalled(waits, 0.1) == 1
    with pytest.raises(ValueError, match="shorter"):
        imbalanced([[0.0], []], 0.1)


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([5, 1, 4, 2, 3], 0.99) == 5
    assert quantile([5, 1, 4, 2, 3], 0.5) == 3
    assert quantile([7], 0.0) == 7


def test_growth_leaves_out_the_epochs_in_which_caches_fill() -> None:
    assert growth([1, 2, 3, 3, 3, 3, 3, 3]) == 1
    assert growth([1, 2, 3, 3, 3, 3, 6, 6]) == 2


def test_accuracies_are_apart_only_beyond_the_noise_of_their_seeds() -> None:
    assert apart([0.80, 0.81, 0.79], [0.80, 0.82, 0.78]) == 0
    assert apart([0.80, 0.81, 0.79], [0.795, 0.805, 0.80]) < 1
    assert apart([0.80, 0.81, 0.79], [0.70, 0.71, 0.69]) > 1
    assert apart([0.8, 0.8], [0.7, 0.7]) == math.inf


def test_reads_of_all_ranks_have_room_and_those_of_the_slow_one_do_not_have_it_in_its_share() -> None:
    world = LoaderBench(Path("/nowhere"), loader_world.FULL)
    busy = loader_imbalance.busy(world)
    of_slow = busy * loader_imbalance.SLOWER / (loader_imbalance.RANKS - 1 + loader_imbalance.SLOWER)
    assert busy < 0.8 * loader_imbalance.READS
    assert of_slow > loader_imbalance.READS / loader_imbalance.RANKS


@pytest.mark.parametrize(("fill", "bar"), [(False, 5.0), (True, 2.0)])
def test_ours_is_held_against_both_others(fill: bool, bar: float) -> None:
    assert loader_imbalance.bar_of({"static": [40, 40], "first_come": [3, 5]}, fill=fill) == (8 if not fill else bar)
    assert loader_imbalance.bar_of({"static": [10, 10], "first_come": [3, 5]}, fill=fill) == bar


@pytest.mark.parametrize(
    ("ours", "others", "ratio", "low", "high"),
    [(3, 3, 1.0, 0.134, 7.47), (0, 3, 0.0, 0.0, 2.42), (3, 1197, 0.0025, 0.0005, 0.0073), (20, 100, 0.2, 0.117, 0.325)],
)
def test_few_events_tell_little(ours: int, others: int, ratio: float, low: float, high: float) -> None:
    found, interval = over_others(ours, others)
    assert found == pytest.approx(ratio, rel=0.01)
    assert list(interval) == pytest.approx([low, high], rel=0.02, abs=1e-4)


def test_there_are_200_batches_an_epoch() -> None:
    size = loader_world.FULL
    assert size.files // size.batch >= 200
    assert size.files % size.batch == 0
    assert size.batch % loader_imbalance.RANKS == 0


class KnownSizes(LoaderBench):
    """A world whose files need not be there."""

    sizes = [30_000] * QUICK.files
    jpegs = Path("/nowhere")
    memory = Path("/nowhere")


def warm_epoch(share: float, seconds: float) -> EpochFigures:
    said = {"batches": QUICK.files // QUICK.batch, "agent": {"left_to_ranks": 0}}
    return EpochFigures(
        seconds, 1.0, QUICK.files, 30_000 * QUICK.files, 4711, SourceTraffic(round(30_000 * QUICK.files * (1 - share)), ()), 0, 0, said=said
    )


def test_warm_rows_have_their_bounds_beside_them() -> None:
    world = KnownSizes(Path("/nowhere"), QUICK)
    report = BenchReport("loader", ("warm-bandwidth",), quick=False, commit="c0ffee")
    mine, theirs = [warm_epoch(0.6, 0.41)] * 9, [warm_epoch(0.0, 1.0)] * 9
    loader_warm.rows("warm-bandwidth", BANDWIDTH, 0.6, world, report, mine, theirs, 1.0, world.bytes, loader_warm.STEP_MS)
    held: dict[str, tuple[Any, ...]] = {row.metric: (row.value, row.bar, row.holds) for row in report.rows if row.bar is not None}
    assert held["time over the ideal"] == (pytest.approx(0.41 / 0.4), 1.08, "yes")
    assert held["time over PyTorch's loader's"] == (pytest.approx(0.41), pytest.approx(1 / 1.5), "yes")
    assert held["the same over 1 - C/S"] == (pytest.approx(0.41 / 0.4), 1.08, "yes")
    value, bar, holds = held["source bytes over 1.03 x (S - C) + W"]
    assert (bar, holds) == (1, "yes")
    assert value == pytest.approx(0.4 * world.bytes / (1.03 * 0.4 * world.bytes + world.window_bytes), rel=1e-3)
    assert all("bound" in row.note for row in report.rows if row.bar is not None)


def test_too_many_bytes_or_seconds_miss_the_bars() -> None:
    world = KnownSizes(Path("/nowhere"), QUICK)
    report = BenchReport("loader", ("warm-bandwidth",), quick=False, commit="c0ffee")
    mine, theirs = [warm_epoch(0.0, 0.8)] * 9, [warm_epoch(0.0, 1.0)] * 9
    loader_warm.rows("warm-bandwidth", BANDWIDTH, 0.6, world, report, mine, theirs, 1.0, world.bytes, loader_warm.STEP_MS)
    assert {row.holds for row in report.rows if row.bar is not None} == {"no"}


def test_loaders_that_give_other_samples_are_not_compared() -> None:
    loader_world.agree({"torch": 1, "ours": 1})
    with pytest.raises(ProgramError, match="not all loaders gave the same batches"):
        loader_world.agree({"torch": 1, "ours": 2})


def answered(monkeypatch: pytest.MonkeyPatch, module: ModuleType, answer: Callable[[list[str]], list[dict[str, Any]]]) -> None:
    """Programs are not run, but answer."""
    monkeypatch.setattr(module, "lines", lambda words, _variables=None: answer([str(word) for word in words]))


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


class Answering:
    """A program that answers: an epoch in which things are done but once, then others."""

    def __init__(self, ms: float) -> None:
        self.epochs = iter([90.0, *[ms] * loader_world.FULL.pairs])

    def step(self) -> dict[str, Any]:
        return {"images": 100, "cpu_s": next(self.epochs) / 10, "seconds": 0.1}


def test_cpu_is_that_of_warm_epochs_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"forebay": 1.8, "kernels": 1.5, "spdl": 1.7}

    def start(_stack: object, _source: object, words: list[str]) -> tuple[Answering, None]:
        return Answering(cost.get(option([str(word) for word in words], "--loader"), 2.4)), None

    monkeypatch.setattr(loader_cpu, "start", start)
    world = KnownSizes(Path("/nowhere"), loader_world.FULL)
    report = BenchReport("loader", ("cpu",), quick=False, commit="c0ffee")
    loader_cpu.cpu(world, report)
    held = {row.metric: row.holds for row in report.rows if row.bar is not None}
    assert len(held) == 1 + len(loader_cpu.PEERS)
    assert held.pop("Forebay over SPDL, simplejpeg and OpenCV") == "no"
    assert set(held.values()) == {"yes"}
    assert report.rows[0].value == pytest.approx(1.8)


def test_imbalanced_steps_of_all_runs_are_held_against_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(_world: LoaderBench, schedule: str, *, fill: bool) -> list[list[list[float]]]:
        assert not fill
        late = {"static": 100, "first_come": 30, "earliest_deadline": 20}[schedule]
        return [[[0.0] * 200] * 3 + [[0.05] * late + [0.0] * (200 - late)]]

    monkeypatch.setattr(loader_imbalance, "run", runs)
    world = KnownSizes(Path("/nowhere"), loader_world.FULL)
    report = BenchReport("loader", ("imbalance",), quick=False, commit="c0ffee")
    loader_imbalance.imbalance(world, report)
    found = {row.metric: (row.value, row.bar, row.holds) for row in report.rows}
    assert found["static: imbalanced steps"] == (300, None, None)
    assert found["earliest_deadline: imbalanced steps"] == (60, 75, "yes")


def test_the_first_step_of_a_run_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [[0.3, 0.0, 0.0], [0.0, 0.02, 0.0]]
    monkeypatch.setattr(loader_imbalance, "lines", lambda _words, _variables: [{"waits_s": waits}, {"waits_s": waits}])
    monkeypatch.setattr(loader_imbalance, "node", lambda: contextlib.nullcontext(loader_world.BenchNode(Path("/nowhere"))))
    slow = contextlib.nullcontext(loader_world.SlowSource(Path("/nowhere")))
    monkeypatch.setattr(KnownSizes, "source", lambda *_, **__: slow)
    monkeypatch.setattr(loader_world.SlowSource, "drop_caches", lambda _: None)
    found = loader_imbalance.run(KnownSizes(Path("/nowhere"), QUICK), "first_come", fill=True)
    assert [imbalanced(epoch, 0.1) for epoch in found] == [1, 2]
    assert [len(epoch[0]) for epoch in found] == [2, 3]


def test_losses_are_compared_by_their_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answer(words: list[str]) -> list[dict[str, Any]]:
        ours = option(words, "--loader") == "forebay"
        last = "0000003f" if not ours else "0100003f"
        return [{"losses": ["0000803f", last], "digest": "same", "top1": 0.8 + int(option(words, "--seed")) / 100}]

    answered(monkeypatch, loader_network, answer)
    (tmp_path / "train").mkdir()
    world = KnownSizes(tmp_path, QUICK)
    report = BenchReport("loader", ("network",), quick=False, commit="c0ffee")
    loader_network.network(world, report)
    found = {row.metric: (row.value, row.holds) for row in report.rows}
    assert found["losses that differ, keyed"] == (1, "no")
    assert found["distance of mean accuracies, stock augmentation"] == (0, "yes")


def test_rows_of_each_scenario_bear_its_name() -> None:
    report = BenchReport("loader", tuple(SCENARIOS), quick=True, commit="c0ffee")
    world, mine, theirs = KnownSizes(Path("/nowhere"), QUICK), [warm_epoch(0.3, 1)] * 2, [warm_epoch(0, 1)] * 2
    loader_warm.rows("warm-balanced", BANDWIDTH, 0.3, world, report, mine, theirs, 1.0, S, loader_warm.STEP_MS)
    assert {scenario_of(row) for row in report.rows} <= set(SCENARIOS)
    assert {f"policies-{other}" for other in loader_policies.OTHERS} | {f"small-{how}" for how in loader_small.WANTED} <= set(SCENARIOS)
    assert loader_memory.FLAT_MAX > 1


def test_an_epoch_reads_each_file_once_in_an_order_that_the_epoch_decides(tmp_path: Path) -> None:
    for number in range(23):
        (tmp_path / f"{number:02d}").write_bytes(bytes([number]) * (number + 1))
    words = program("loader_epochs", tmp_path, "--step", "--loader", "torch", "--batch", 4, "--threads", 1)
    told = "".join(f'{{"epoch": {epoch}}}\n' for epoch in (1, 2, 1))
    ended = subprocess.run(words, input=told, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ended.returncode == 0, ended.stderr
    first, *epochs = [json.loads(line) for line in ended.stdout.splitlines()]
    assert first["files"] == 23
    assert [(each["files"], each["batches"], each["bytes"]) for each in epochs] == [(23, 6, 23 * 24 // 2)] * 3
    assert epochs[0]["digest"] == epochs[2]["digest"] != epochs[1]["digest"]


def test_the_agent_is_told_what_a_scenario_wants_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(program("loader_ours")[1]).parent))
    import loader_data
    import loader_ours

    (tmp_path / "one").write_bytes(b"1")
    wanted = {"memory_bytes": 5000, "window_bytes": 777, "reads_max": 3, "policy": "lru", "schedule": "first_come"}
    made: list[Any] = []

    def make(*words: Any, **options: Any) -> Any:  # noqa: ANN401 # whatever a loader is given
        made.append(DataLoader(*words, **options))
        return made[0]

    monkeypatch.setattr(loader_ours, "DataLoader", make)
    loader_ours.data_loader(loader_data.ChecksumFiles([str(tmp_path)]), 1, wanted, seed=0, shuffle=True, rank=0, world_size=1)
    agent = made[0]._agent
    joining = agent.joining
    told = json.loads(joining._described(Kept(5000, (), "/nowhere", None)))["alike"]
    told |= told["room"]
    assert {name: told[name] for name in wanted} == wanted
    assert agent.settings == joining.settings, "who asks for samples knows of it, too"


def test_parts_of_images_lie_within_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(program("loader_crops")[1]).parent))
    import loader_crops

    seen: Counter[bool] = Counter()
    for width, height in ((500, 375), (40, 900), (1, 1)):
        for _ in range(200):
            left, top, wide, high = loader_crops.part(width, height)
            assert left >= 0
            assert top >= 0
            assert 0 < wide <= width - left
            assert 0 < high <= height - top
            seen[wide * high < 0.5 * width * height] += 1
    assert min(seen.values()) > 50


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_cpu, "NEEDED", ("json", "no_such_loader", "no_such.module"))
    assert loader_cpu.missing_peers() == ["no_such_loader", "no_such.module"]


def test_an_option_that_cannot_be_is_refused() -> None:
    for words, said in ((["--pairs", "0"], "--pairs 0: give 1 or more"), (["--only", "warm"], "there is no scenario warm")):
        ended = subprocess.run([sys.executable, "-m", "bench.loader", *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert said in ended.stderr
