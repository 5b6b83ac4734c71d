"""`DataLoader(plan=...)`: a plan's settings reach the agent, arguments come first, and bad plans are one line."""

from pathlib import Path
from typing import Any

import pytest

from forebay.torch import DataLoader
from tests.loader.data import KeyedFiles, epoch, same
from tests.loader.node import LoaderNode

LENGTH = 40
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "report": False}
RUN = """
[dataset]
samples = 40

[cluster]
gpus = 1

[run]
policy = "lru"
schedule = "lobster"
hedge_budget = 0.0
reads = 5
thread_tau = 0.2
cache = ["ram=1000000B"]
"""


@pytest.fixture
def files(node: LoaderNode) -> KeyedFiles:
    return KeyedFiles(node.root / "samples", LENGTH)


@pytest.fixture
def plan(node: LoaderNode) -> Path:
    path = node.root / "plan.toml"
    path.write_text(RUN)
    return path


def test_a_plan_is_carried_out_and_arguments_come_first(files: KeyedFiles, plan: Path) -> None:
    loader = DataLoader(files, **OPTIONS, plan=plan, schedule="static")
    assert loader._agent is not None
    settings = loader._agent.settings
    found = (settings.policy, settings.schedule, settings.hedge_budget, settings.reads_max, settings.thread_tau)
    assert found == ("lru", "static", 0.0, 5, 0.2)
    assert loader._agent.joining.cache == ("ram=1000000B",)
    assert same(epoch(loader, 0), epoch(DataLoader(files, **OPTIONS), 0)) == len(loader)
    assert loader._agent.lost is None
    other = DataLoader(files, **OPTIONS, plan=plan, cache="ram=2M")
    assert other._agent is not None
    assert other._agent.joining.cache == ("ram=2M",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("samples = 40", "samples = 41", r"dataset.samples = 41, and this dataset has 40; plan for this dataset again"),
        ("gpus = 1", "gpus = 8", r"cluster.gpus = 8, and this node has 1 ranks; plan for this machine again"),
        ("[run]", "[other]", r"it has no table \[run\]; append the lines that `forebay plan .*` prints at its end"),
        ("reads = 5", "reads = 0", r"reads = 0; give the most concurrent reads of a node"),
        ("reads = 5", "read = 5", r"\[run\] has no key read; it may have policy"),
        ("thread_tau = 0.2", "thread_tau = 1.5", r"thread_tau=1.5: give a share of a step"),
        ('"lru"', '"best"', r"policy='best': give one of"),
        ('cache = ["ram=1000000B"]', "", r"\[run\] has no cache; write one there, or give cache="),
        ("gpus = 1", "gpus =", r"Invalid value"),
    ],
)
def test_a_plan_that_can_t_be_carried_out_is_refused_in_one_line(files: KeyedFiles, plan: Path, old: str, new: str, why: str) -> None:
    plan.write_text(RUN.replace(old, new))
    with pytest.raises(ValueError, match=rf"plan='{plan}': {why}") as refused:
        DataLoader(files, **OPTIONS, plan=plan)
    assert "\n" not in str(refused.value)


PROFILE = """
[[measured.preprocessing]]
threads = 1
samples_per_s = 100.0
cpu_s = 0.01
by_size = [{ bytes = 1000.4, seconds = 0.01 }, { bytes = 9000.0, seconds = 0.08 }]

[[measured.preprocessing]]
threads = 2
samples_per_s = 150.0
cpu_s = 0.01
by_size = [{ bytes = 1000.0, seconds = 0.013 }]
"""


def test_a_profile_is_where_the_model_of_decoding_starts(files: KeyedFiles, plan: Path) -> None:
    plan.write_text(RUN + PROFILE)
    loader = DataLoader(files, **OPTIONS, plan=plan)
    assert loader._agent is not None
    assert loader._agent.settings.profile == ((1000, 1, 0.01), (9000, 1, 0.08), (1000, 2, 0.013))
    assert same(epoch(loader, 0), epoch(DataLoader(files, **OPTIONS), 0)) == len(loader)
    assert loader._agent.lost is None, "the agent takes it"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("by_size = [{ bytes = 1000.0, seconds = 0.013 }]", "by_size = []"),
        ("by_size = [{ bytes = 1000.0, seconds = 0.013 }]", ""),
        ("seconds = 0.013", "seconds = -1.0"),
        ("seconds = 0.013", 'seconds = "1 ms"'),
        ("threads = 2", "threads = 0"),
    ],
)
def test_a_profile_without_sizes_is_refused_in_one_line(files: KeyedFiles, plan: Path, old: str, new: str) -> None:
    assert old in PROFILE
    plan.write_text(RUN + PROFILE.replace(old, new))
    with pytest.raises(ValueError, match=rf"plan='{plan}': \[\[measured.preprocessing\]\] has no valid threads and by_size") as refused:
        DataLoader(files, **OPTIONS, plan=plan)
    assert "\n" not in str(refused.value)


def test_a_plan_that_is_not_there_is_named(files: KeyedFiles) -> None:
    with pytest.raises(ValueError, match=r"plan='/none.toml': No such file or directory"):
        DataLoader(files, **OPTIONS, plan="/none.toml")
