"""`DataLoader(cache=...)`: the same batches as without, most of them from this node's loader agent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

from forebay import command
from forebay.loader import Extent, mixture
from forebay.loader._settings import POLICIES, SCHEDULES
from forebay.torch import DataLoader
from tests.loader.data import Indices, KeyedFiles, epoch, figures, same, served
from tests.loader.node import LoaderNode, a_node
from tests.support import LONG_S, ROOT, wait_until

LENGTH = 120
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2}


@pytest.fixture
def files(node: LoaderNode) -> KeyedFiles:
    return KeyedFiles(node.root / "samples", LENGTH)


@pytest.mark.parametrize("cache", ["ram=1M", "{node}/cache=64M"])
def test_batches_are_the_same_and_files_are_read_once(
    node: LoaderNode, files: KeyedFiles, cache: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(files, **OPTIONS, cache=cache.format(node=node.root))
    other = DataLoader(files, **OPTIONS, report=False)
    for number in range(3):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    counted = figures(loader)
    # On a slow machine some reads are made twice.
    most = LENGTH + counted["hedged"] if "ram" in cache else 2 * LENGTH
    assert LENGTH <= counted["from_source"] <= most
    assert counted["from_memory"] + counted["from_disk"] + counted["from_source"] >= 3 * LENGTH
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3
    assert "of this node's samples 0 % were cached" in said[0]
    assert "were cached, and 0.0 MB read from the source" in said[2]


def test_samples_of_a_loader_are_listed(node: LoaderNode, files: KeyedFiles) -> None:
    def listed(*words: str) -> str:
        return subprocess.run([command(), "ls", *words], check=True, capture_output=True, text=True).stdout

    loader = DataLoader(files, **OPTIONS, cache=f"{node.cache}=64M", report=False)
    epoch(loader, 0)
    on_disk = f" samples of loaders, in {node.cache}\n"
    wait_until(lambda: on_disk in listed(), "samples are written")
    assert " memory of loader process-" in listed()
    # As one that a user names, whoever runs.
    assert listed("--tier", str(node.cache)).endswith(on_disk)
    assert "memory" not in listed("--tier", str(node.cache))
    assert listed("--json") == ""
    assert "nothing is cached" in listed(str(node.files))


def test_an_epoch_that_is_left_early_is_no_hindrance(files: KeyedFiles) -> None:
    loader = DataLoader(files, **OPTIONS, cache="ram=1M", report=False)
    other = DataLoader(files, **OPTIONS, report=False)
    for _ in range(3):
        next(iter(loader))
    assert same(epoch(loader, 0), epoch(other, 0)) == len(loader)
    first, second = iter(loader), iter(loader)
    assert same(zip(first, second, strict=True), zip(other, other, strict=True)) == len(loader)


def test_a_state_goes_on_with_the_same_batches(files: KeyedFiles) -> None:
    loader = DataLoader(files, **OPTIONS, cache="ram=1M", report=False)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    left = list(batches)
    again = DataLoader(files, **OPTIONS, cache=("ram=1M",), report=False)
    again.load_state_dict(state)
    assert same(again, left) == len(loader) - 4


def test_the_agent_is_killed_and_no_batch_is_another(node: LoaderNode, files: KeyedFiles) -> None:
    loader = DataLoader(files, **OPTIONS, cache="ram=1M", report=False)
    ours = []
    for number, batch in enumerate(loader):
        ours.append(batch)
        if number == 3:
            os.kill(node.agent(), signal.SIGKILL)
    other = DataLoader(files, **OPTIONS, report=False)
    same(ours, epoch(other, 0))
    assert figures(loader) == {}
    # From the next epoch on there is another one.
    for number in (1, 2):
        same(epoch(loader, number), epoch(other, number))
    counted = figures(loader)
    assert counted["from_source"] - counted["hedged"] <= LENGTH
    assert counted["from_memory"] + counted["from_source"] >= 2 * LENGTH


class Moving(KeyedFiles):
    """Its samples lie elsewhere in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def locate(self, i: int, /) -> Extent:
        return Extent(str(self.paths[(i + self.epoch) % LENGTH]))

    def content(self, index: int) -> bytes:
        return super().content((index + self.epoch) % LENGTH)


def test_a_dataset_whose_samples_move_is_followed(node: LoaderNode) -> None:
    files = Moving(node.root / "samples", LENGTH)
    loader = DataLoader(files, **OPTIONS, cache="ram=1M", report=False)
    for number in range(3):
        # Contents are compared when samples are decoded.
        assert len(epoch(loader, number)) == len(loader)
    counted = figures(loader)
    assert counted["from_source"] - counted["hedged"] <= LENGTH


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_batches(files: KeyedFiles, policy: str) -> None:
    # Half of it fits, so that some of it has to go.
    options = OPTIONS | {"cache": f"ram={sum(map(len, map(files.content, range(LENGTH)))) // 2}B", "policy": policy}
    loader = DataLoader(files, **options, report=False)
    other = DataLoader(files, **OPTIONS, report=False)
    # Neither one after the other, nor each once.
    for number in (0, 1, 1, 7):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    left = list(batches)
    # Going on in batches of another size, it knows what comes all the same.
    again = DataLoader(files, **options | {"batch_size": 7}, report=False)
    again.load_state_dict(state)
    assert [index for batch in again for index in batch[0]] == [index for batch in left for index in batch[0]]
    assert again._agent is not None
    assert again._agent.lost is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_same_batches(files: KeyedFiles, schedule: str) -> None:
    loader = DataLoader(files, **OPTIONS, cache="ram=1M", schedule=schedule, hedge_budget=0, report=False)
    other = DataLoader(files, **OPTIONS, report=False)
    for number in range(2):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    assert figures(loader)["from_source"] == LENGTH


def test_background_fill_reads_ahead_of_the_window_and_each_file_once(files: KeyedFiles) -> None:
    # A policy that lets the window take what room there is.
    options = OPTIONS | {"batch_size": 2, "cache": "ram=1M", "policy": "lru", "hedge_budget": 0, "report": False}
    loader = DataLoader(files, **options, background_fill=True)
    other = DataLoader(files, **OPTIONS | {"batch_size": 2}, report=False)
    batches = iter(loader)
    ours = [next(batches)]
    # One batch was used, and the window is eleven.
    wait_until(lambda: figures(loader)["from_source"] > 2 * 12, "something beyond the window to be read")
    ours += batches
    assert same(ours, epoch(other, 0)) == len(loader)
    for _ in range(2):
        # One that is left early, and what goes on in the middle of it.
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        del batches
        again = DataLoader(files, **options, background_fill=True)
        again.load_state_dict(state)
        assert same(again, epoch(other, 1)[1:]) == len(loader) - 1
        assert same(epoch(loader, 1), epoch(other, 1)) == len(loader)
        loader.set_epoch(1)
    assert figures(loader)["from_source"] == LENGTH


def test_the_agent_is_told_the_order_where_it_can_be(files: KeyedFiles) -> None:
    def told(**changed: Any) -> str:
        loader = DataLoader(files, **OPTIONS | changed, cache="ram=1M", report=False)
        return served(loader).settings.order

    assert told() == "torch"
    assert told(shuffle=False) == told(shuffle=False, seed=None) == "sequential"
    assert told(seed=None) == told(shuffle=None, sampler=[1, 2, 3]) == "unknown"


def test_samplers_of_the_user_s_own_are_served(files: KeyedFiles) -> None:
    sampler = [index for index in range(LENGTH) if index % 3] * 2
    batches = [sampler[at : at + 5] for at in range(0, len(sampler), 5)]
    ours = [list(DataLoader(files, batch_sampler=batches, num_workers=2, seed=1, report=False, cache=cache)) for cache in ((), ("ram=1M",))]
    assert same(*ours) == len(batches)


@pytest.mark.parametrize(
    ("dataset", "cache", "wrong"),
    [
        (Indices(10), "ram=1M", "cache= is for datasets that say where their samples lie"),
        (None, "/nowhere=1G", "/nowhere does not exist: mount it, correct its name, or type mkdir -p /nowhere"),
        (None, "ram=plenty", r"cache=\['ram=plenty'\]: invalid size 'plenty'"),
        (None, "ram=-1G", "invalid size '-1G'"),
        (None, 5, 'cache=5: give "DIR=SIZE", "ram=SIZE", or a list of these'),
        (None, [None], r"cache=\[None\]: give "),
        (None, {"ram": "1M"}, "cache={'ram': '1M'}: give "),
        (None, ["ram=1M", "ram=2M"], "there is one memory; give ram= once"),
    ],
)
def test_what_can_not_be_is_told_when_the_loader_is_made(files: KeyedFiles, dataset: object, cache: Any, wrong: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=wrong) as refused:
        DataLoader(files if dataset is None else dataset, num_workers=2, cache=cache)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"policy": "best", "cache": "ram=1M"}, "policy='best': give one of forebay, belady, lobster"),
        ({"schedule": "best", "cache": "ram=1M"}, "schedule='best': give one of forebay, earliest_deadline"),
        ({"hedge_budget": 2, "cache": "ram=1M"}, "hedge_budget=2: give the share"),
        ({"hedge_budget": True, "cache": "ram=1M"}, "hedge_budget=True: give the share"),
        ({"background_fill": "yes", "cache": "ram=1M"}, "background_fill='yes': give True or False"),
        ({"background_fill": True}, "background_fill= is about what cache= keeps"),
        ({"policy": "lru"}, "policy= is about what cache= keeps: give cache="),
        ({"policy": "belady", "cache": "ram=1M", "shuffle": True}, "policy='belady' looks ahead, .*: give seed="),
        ({"policy": "nopfs", "cache": "ram=1M", "seed": 1, "sampler": [1, 2]}, "policy='nopfs' looks ahead"),
    ],
)
def test_a_choice_that_can_not_be_is_told(files: KeyedFiles, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        DataLoader(files, num_workers=2, **options)


class Rooted(KeyedFiles):
    """A tree of directories; `KeyedFiles` says nothing of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "class", 10)
        self.root = root


def test_a_cache_in_the_dataset_is_refused(node: LoaderNode) -> None:
    root = node.root / "train"
    inside = [root, root / "new", root / "class"]
    (root / "new").mkdir(parents=True)
    dataset = Rooted(root)
    link = node.root / "link"
    link.symlink_to(root / "new")
    given: tuple[Any, ...] = (dataset, Subset(dataset, [1, 2]), mixture([dataset, dataset], [1, 1]))  # type: ignore[arg-type]
    for made in given:
        for directory in (*inside, link):
            with pytest.raises(ValueError, match="lies in the dataset itself; name a directory of its own on a local disk"):
                DataLoader(made, num_workers=2, cache=f"{directory}=10M")
    # Where its files lie, though it has no root.
    with pytest.raises(ValueError, match="lies in the dataset itself"):
        DataLoader(KeyedFiles(root / "class", 10), num_workers=2, cache=f"{root / 'class'}=10M")
    assert list((root / "new").iterdir()) == []
    for directory in (node.root, node.cache):
        assert DataLoader(dataset, num_workers=2, cache=f"{directory}=10M")._agent is not None


@pytest.mark.parametrize("off", ["off", "0", "OFF"])
def test_off_leaves_the_cache_out(node: LoaderNode, files: KeyedFiles, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    monkeypatch.setenv("FOREBAY", off)
    loader = DataLoader(files, **OPTIONS, cache=["ram=1M", f"{node.cache}=64M"], report=False)
    assert same(loader, DataLoader(files, **OPTIONS, report=False)) == len(loader)
    assert loader._agent is None
    assert not (node.root / "run").exists()


RANK = """
import json, os, signal, sys, time
from pathlib import Path
from forebay.loader import LoaderError
from forebay.torch import DataLoader
from tests.loader import data
from tests.loader.node import agent_in

rank, folder, kind = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def together(what):
    (folder.parent / f"{what}-{rank}").touch()
    while not (folder.parent / f"{what}-{1 - rank}").exists():
        time.sleep(0.001)

def epochs(stage):
    loader = DataLoader(
        getattr(data, kind)(folder, 120), batch_size=8, shuffle=True, seed=3 + rank * (stage == "seeds differ"),
        num_workers=2, rank=rank, world_size=2, cache="ram=1M", report=False,
    )
    seen = []
    try:
        for number in range(3):
            loader.set_epoch(number)
            batches = iter(loader)
            had = [next(batches)]
            if stage == "agent killed":
                together(f"begun-{number}")
                if (rank, number) == (0, 0):
                    os.kill(agent_in(Path(os.environ["FOREBAY_RUNTIME_DIR"])), signal.SIGKILL)
                together(f"going-on-{number}")
            seen.append([int(index) for batch in [*had, *batches] for index in batch[0]])
            if (stage, rank, number) == ("rank killed", 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        found = seen, loader._agent.figures(), loader._agent.lost
    except LoaderError as error:
        found = seen, {}, str(error)
    # A loader that ends is a rank that leaves.
    if stage != "rank killed":
        together(f"{stage}, done")
    return found

for stage in sys.argv[4:]:
    together(stage)
    print(json.dumps(epochs(stage)), flush=True)
sys.stdin.read()
"""
TwoRanks = dict[str, dict[str, list[list[Any]]]]
STAGES = {"KeyedFiles": ("shared", "agent killed", "seeds differ", "rank killed"), "GlobalFiles": ("shared", "agent killed")}


def started(node: LoaderNode, rank: int, kind: str) -> "subprocess.Popen[str]":
    launched = {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}
    words = [sys.executable, "-c", RANK, f"{rank}", str(node.root / "samples"), kind, *STAGES[kind]]
    environment = os.environ | node.environment | launched | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_stage(rank: "subprocess.Popen[str]") -> list[Any]:
    """Returns the samples of each epoch, the agent's figures and why it was lost; nothing if the rank has ended."""
    assert rank.stdout is not None
    found = json.loads(rank.stdout.readline() or "[]")
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def two_ranks() -> TwoRanks:
    """Results of both ranks by dataset and stage: importing torch takes longer than all stages."""
    found: TwoRanks = {}
    for kind, stages in STAGES.items():
        with pytest.MonkeyPatch.context() as monkeypatch, a_node(monkeypatch) as node:
            KeyedFiles(node.root / "samples", LENGTH)
            ranks = [started(node, rank, kind) for rank in range(2)]
            found[kind] = {stage: [read_stage(rank) for rank in ranks] for stage in stages}
            for rank in ranks:
                rank.communicate("", timeout=LONG_S)
            assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL if "rank killed" in stages else 0]
    return found


IN_BOTH = pytest.mark.parametrize("kind", STAGES)
"""In threads, and in worker processes."""


@IN_BOTH
@pytest.mark.parametrize("stage", ["shared", "agent killed"])
def test_ranks_of_a_node_share_each_sample_though_the_agent_is_killed(two_ranks: TwoRanks, kind: str, stage: str) -> None:
    both = two_ranks[kind][stage]
    for number in range(3):
        parts = [seen[number] for seen, _, _ in both]
        assert sorted(parts[0] + parts[1]) == list(range(LENGTH))
    assert [lost for _, _, lost in both] == [None, None]
    # Of whoever was asked last, and of the last two epochs if the agent was killed in the first.
    figures = max((figures for _, figures, _ in both), key=lambda figures: figures["from_source"])
    assert LENGTH <= figures["from_source"] <= LENGTH + figures["hedged"]


def test_a_rank_is_killed_and_the_other_goes_on(two_ranks: TwoRanks) -> None:
    (seen, figures, lost), killed = two_ranks["KeyedFiles"]["rank killed"]
    assert killed == []
    assert ([len(epoch) for epoch in seen], lost) == ([LENGTH // 2] * 3, None)
    assert figures["from_source"] >= LENGTH // 2


def test_ranks_that_disagree_stop_with_the_same_line(two_ranks: TwoRanks) -> None:
    told = [said for _, _, said in two_ranks["KeyedFiles"]["seeds differ"]]
    assert told[0] == told[1]
    assert "disagree on the seed" in told[0]


LONE = """
import sys
from pathlib import Path
from forebay.torch import DataLoader
from tests.loader.data import KeyedFiles

print(len(list(DataLoader(KeyedFiles(Path(sys.argv[1]), 120), num_workers=2, cache=sys.argv[2], report=False))))
"""


def test_what_a_job_has_left_on_a_disk_is_cleaned(node: LoaderNode) -> None:
    environment = os.environ | node.environment | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", LONE, str(node.root / "samples"), f"{node.cache}=64M"]
    job = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert job.stdout == "120\n"
    assert list(node.cache.iterdir())

    def cleaned() -> bool:
        # The agent may be about to release it.
        return subprocess.run([str(command()), "clean"], env=environment, capture_output=True, check=False).returncode == 0

    wait_until(cleaned, "the agent to release the disk")
    assert list(node.cache.iterdir()) == []
