"""`DataLoader(cache=...)` whose samples are made in worker processes.

These read through this node's loader agent, too.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from forebay import _core
from forebay.loader import DirectSource
from forebay.loader._agent import AgentRank
from forebay.loader._batches import SampleBatch
from forebay.loader._joining import AgentJoining
from forebay.loader._place import RankPlace
from forebay.loader._settings import AgentSettings
from forebay.loader._workers import WorkerSeat, WorkerServing
from forebay.torch import DataLoader, Keyed
from tests.loader.data import FileViews, GlobalFiles, epoch, figures, same, served
from tests.loader.node import SAMPLES, LoaderNode
from tests.support import LONG_S, wait_until

LENGTH = 120
# Nothing is read twice because the machine is slow.
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "report": False}
CACHED: dict[str, Any] = OPTIONS | {"cache": "ram=1M", "hedge_budget": 0}


@pytest.fixture
def files(node: LoaderNode) -> GlobalFiles:
    return GlobalFiles(node.root / "samples", LENGTH)


def read(loader: DataLoader) -> tuple[int, int]:
    """Samples that were read from the source, and those that the agent has left to workers."""
    counted = figures(loader)
    return counted["from_source"], sum(count for name, count in counted.items() if name.startswith("refused"))


def is_nothing_held(loader: DataLoader) -> bool:
    return served(loader).references == 0


@pytest.mark.parametrize(("method", "persistent"), [("fork", False), ("fork", True), ("spawn", True), ("forkserver", True)])
def test_batches_are_torch_s_and_files_are_read_once(
    files: GlobalFiles, method: str, persistent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    options = CACHED | {"multiprocessing_context": method, "persistent_workers": persistent, "report": True}
    loader = DataLoader(files, **options)
    keyed = Keyed(files, seed=3)
    sampler: DistributedSampler[Any] = DistributedSampler(keyed, 1, 0, shuffle=True, seed=3)
    theirs = torch.utils.data.DataLoader(keyed, 8, sampler=sampler)
    for number in range(3):
        keyed.set_epoch(number)
        sampler.set_epoch(number)
        assert same(loader, theirs) == len(loader)
        assert read(loader) == (LENGTH, 0)
    assert figures(loader)["from_memory"] == 2 * LENGTH
    assert is_nothing_held(loader)
    said = capfd.readouterr().err.splitlines()
    assert "of this node's samples 0 % were cached" in said[0]
    assert all("of this node's samples 100 % were cached, and 0.0 MB read from the source" in line for line in said[1:]), said


def test_samples_on_a_disk_serve_workers_too(node: LoaderNode, files: GlobalFiles) -> None:
    loader = DataLoader(files, **CACHED | {"cache": f"{node.cache}=64M"})
    other = DataLoader(files, **OPTIONS)
    for number in range(3):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    # What had to be dropped while the disk was behind is read once more.
    assert LENGTH <= read(loader)[0] <= 2 * LENGTH
    assert figures(loader)["from_disk"] > 0


def test_reading_ahead_of_the_window_is_for_workers_too(files: GlobalFiles) -> None:
    loader = DataLoader(files, **CACHED | {"batch_size": 2, "policy": "lru"}, background_fill=True)
    other = DataLoader(files, **OPTIONS | {"batch_size": 2})
    for number in range(2):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    assert read(loader) == (LENGTH, 0)


def test_samplers_of_the_user_s_own_are_served(files: GlobalFiles) -> None:
    sampler = [index for index in range(LENGTH) if index % 3] * 2
    batches = [sampler[at : at + 5] for at in range(0, len(sampler), 5)]
    options: dict[str, Any] = {"batch_sampler": batches, "num_workers": 2, "seed": 1, "report": False}
    loader = DataLoader(files, **options, cache="ram=1M", hedge_budget=0)
    assert same(loader, DataLoader(files, **options)) == len(batches)
    assert read(loader) == (len(set(sampler)), 0)


def test_a_state_goes_on_with_the_same_batches(files: GlobalFiles) -> None:
    loader = DataLoader(files, **CACHED)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    left = list(batches)
    again = DataLoader(files, **CACHED)
    again.load_state_dict(state)
    assert same(again, left) == len(loader) - 4


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_left_early_is_no_hindrance(files: GlobalFiles, persistent: bool) -> None:
    loader = DataLoader(files, **CACHED, persistent_workers=persistent)
    other = DataLoader(files, **OPTIONS)
    for _ in range(3):
        next(iter(loader))
    assert same(epoch(loader, 0), epoch(other, 0)) == len(loader)
    assert is_nothing_held(loader)


def test_one_that_is_left_and_kept_is_none_either(files: GlobalFiles) -> None:
    loader = DataLoader(files, **CACHED)
    other = DataLoader(files, **OPTIONS)
    # Its workers have made more batches than were asked for, and are there still.
    kept = iter(loader)
    next(kept)
    for number in range(2):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)
    assert read(loader) == (LENGTH, 0)
    for one in (loader, other):
        one.set_epoch(0)
    first, second = iter(loader), iter(loader)
    assert same(zip(first, second, strict=True), zip(other, other, strict=True)) == len(loader)
    del kept, first, second
    assert is_nothing_held(loader)


class RememberingCollate:
    """Keeps the samples of the batch before, as one that mixes pictures might."""

    def __init__(self) -> None:
        self.before: list[np.ndarray[Any, Any]] = []

    def __call__(self, samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        mixed = [*samples, *self.before]
        self.before = samples
        return torch.stack([torch.tensor(one) for one in mixed])


class UnkeyedViews(FileViews):
    keyed = False


def test_what_a_collate_function_keeps_stays_as_it_is(node: LoaderNode) -> None:
    views = UnkeyedViews(node.root / "views", LENGTH)
    # So little memory that all of it is used again and again.
    loader = DataLoader(views, **CACHED | {"policy": "none", "collate_fn": RememberingCollate(), "num_workers": 1})
    other = DataLoader(views, **OPTIONS | {"collate_fn": RememberingCollate(), "num_workers": 1})
    for number in range(3):
        assert same(epoch(loader, number), epoch(other, number)) == len(loader)


def test_a_sample_that_fails_is_told_or_left_out(files: GlobalFiles) -> None:
    files.paths[7].unlink()
    loader = DataLoader(files, **CACHED, on_error="skip")
    assert sum(len(batch[0]) for batch in loader) == LENGTH - 1
    assert loader.skipped == 1
    assert loader.last_report is not None
    assert "FileNotFoundError" in str(loader.last_report.first_skipped)
    with pytest.raises(FileNotFoundError, match=r"sample 7 .*: FileNotFoundError"):
        list(DataLoader(files, **CACHED))


class Dying(GlobalFiles):
    """One of its workers is killed, once, in the middle of a sample."""

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        if i == 50 and (flag := self.paths[0].with_name("die")).exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(data, i, rng)


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's handler of SIGCHLD would raise wherever the test is just then.

    Without, torch looks after its workers every five seconds.
    """
    monkeypatch.setattr(torch.utils.data._utils.signal_handling, "_SIGCHLD_handler_set", True)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("no_signals")
def test_a_worker_that_is_killed_leaves_nothing(node: LoaderNode) -> None:
    files = Dying(node.root / "samples", LENGTH)
    loader = DataLoader(files, **CACHED | {"policy": "none"})
    other = DataLoader(files, **OPTIONS)
    expected = epoch(other, 0)
    for _ in range(2):
        (node.root / "samples/die").touch()
        loader.set_epoch(0)
        batches = iter(loader)
        # Some batch of that worker may be on its way just then.
        with pytest.raises((RuntimeError, OSError, EOFError)):
            list(batches)
        del batches
        # Torch's iterator is in frames that its error refers to.
        gc.collect()
        assert is_nothing_held(loader)
    before = figures(loader)["from_source"]
    assert same(epoch(loader, 0), expected) == len(loader)
    # All of it came by the agent.
    assert figures(loader)["from_source"] == before + LENGTH
    assert served(loader).lost is None


@pytest.mark.parametrize("persistent", [False, True])
def test_the_agent_is_killed_and_no_batch_is_another(
    node: LoaderNode, files: GlobalFiles, persistent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(files, **CACHED, persistent_workers=persistent)
    ours = []
    for number, batch in enumerate(loader):
        ours.append(batch)
        if number == 0:
            os.kill(node.agent(), signal.SIGKILL)
    other = DataLoader(files, **OPTIONS)
    same(ours, epoch(other, 0))
    assert figures(loader) == {}
    # From the next epoch on there is another one, for workers that have seen the first, too.
    for number in (1, 2):
        same(epoch(loader, number), epoch(other, number))
    assert read(loader) == (LENGTH, 0)
    assert figures(loader)["from_memory"] == LENGTH
    said = capfd.readouterr().err
    assert said.count("the loader agent does not serve rank 0, which reads for itself: the loader agent is gone") == 1
    assert said.count("the loader agent serves rank 0 again") == 1


def test_a_worker_finds_by_itself_that_the_agent_is_gone(node: LoaderNode) -> None:
    settings = AgentSettings(SAMPLES, 5, seed=0, window=6, window_bytes=1 << 20)
    agent = AgentRank(AgentJoining("0", SAMPLES, settings, RankPlace("job", 0, 1, 0, 1), ("ram=1M",)))
    serving = WorkerServing(agent, None, node.locate)
    pid = node.agent()
    os.kill(pid, signal.SIGSTOP)
    batch = SampleBatch(0, [5, 7], seed=0, epoch=0)
    share, loan = serving.lend(serving.request(batch))
    assert share is not None
    seated, fallback = WorkerSeat(), DirectSource()
    fallback.register(None, node.locate)
    request = seated.request(batch, share, fallback)
    assert request is not None
    assert request.at_hand(range(2)) == [None, None]
    os.kill(pid, signal.SIGKILL)
    for place, sample in enumerate(batch.samples):
        assert bytes(request.read(place)) == node.content(sample)
    assert seated.lost == "the loader agent is gone: its process has ended"
    assert seated.request(batch, share, fallback) is None
    request.release()
    serving.back(loan, seated.lost)
    assert agent.lost is not None
    assert agent.references == 0
    for one in (serving, fallback, agent):
        one.close()


def test_an_agent_that_stands_still_is_not_waited_for(node: LoaderNode, files: GlobalFiles, capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(files, **CACHED)
    batches = iter(loader)
    ours = [next(batches)]
    pid = node.agent()
    os.kill(pid, signal.SIGSTOP)
    ours += batches
    os.kill(pid, signal.SIGCONT)
    assert same(ours, epoch(DataLoader(files, **OPTIONS), 0)) == len(loader)
    assert capfd.readouterr().err.count("reads for itself: the loader agent stands still since 10 s") == 1


class _Elsewhere:
    """A rank before the agent, but its workers are shown files that are no more what they were."""

    def __init__(self, rank: _core.LoaderRank) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._rank, name)

    def seat(self) -> tuple[int, int, tuple[int, int], tuple[int, int]]:
        rank, agent, (board, number), arena = self._rank.seat()
        return rank, agent, (board, number + 1), arena


def test_workers_that_can_not_reach_the_memory_read_by_themselves(
    files: GlobalFiles, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(files, **CACHED)
    agent = served(loader)
    assert agent is not None
    join = agent.joining.join

    def joined(*given: Any) -> Any:  # noqa: ANN401
        rank, why = join(*given)
        assert rank is not None
        return _Elsewhere(rank), why

    monkeypatch.setattr(agent.joining, "join", joined)
    assert same(loader, DataLoader(files, **OPTIONS)) == len(loader)
    assert "is another file by now" in capfd.readouterr().err
    assert is_nothing_held(loader)


def test_without_workers_there_is_no_cache(files: GlobalFiles) -> None:
    with pytest.raises(ValueError, match=r"cache= is for datasets that say where their samples lie, .* and for num_workers above 0"):
        DataLoader(files, **CACHED | {"num_workers": 0})


def test_nothing_grows_from_one_epoch_to_the_next(node: LoaderNode, files: GlobalFiles) -> None:
    loader = DataLoader(files, **CACHED, persistent_workers=True)

    def open_files() -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    epoch(loader, 0)
    # To be told which it is takes a connection, which is closed by the time that the next epoch has ended.
    pid = node.agent()
    epoch(loader, 1)
    ours, before = len(list(Path("/proc/self/fd").iterdir())), open_files()
    for number in range(2, 12):
        epoch(loader, number)
    wait_until(lambda: open_files() <= before, "files to be closed", LONG_S)
    assert len(list(Path("/proc/self/fd").iterdir())) <= ours
    assert is_nothing_held(loader)
