"""The loader's manners: what it refuses, how samples fail, and what it leaves behind."""

import errno
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, get_worker_info

from forebay.loader import Extent, LoaderError, RecordShards, SampleError
from forebay.torch import DataLoader, Keyed
from tests.loader.data import GlobalFiles, Indices, KeyedFiles, write_records
from tests.support import LONG_S, PROGRAM_S, wait_until


class EndlessLoader(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_an_iterable_dataset_has_no_keyed_samples() -> None:
    with pytest.raises(TypeError, match=r"EndlessLoader is an IterableDataset, whose order is not known beforehand: .*") as refused:
        Keyed(EndlessLoader())
    assert "\n" not in str(refused.value)


def test_a_loader_may_be_named_with_the_type_of_its_batches() -> None:
    loader = DataLoader[torch.Tensor](Indices(4), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_what_torch_makes_read_only_is_read_only(name: str) -> None:
    loader = DataLoader(Indices(4))
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=f"{name} of a DataLoader can't be set after it was made: make another one"):
        setattr(loader, name, None)
    assert getattr(loader, name) is before


@pytest.mark.parametrize("dataset", [5, iter([1]), {1, 2}])
def test_what_is_no_dataset_is_refused(dataset: object) -> None:
    with pytest.raises(TypeError, match="is not a map-style dataset: it needs __len__ and __getitem__, or locate and decode"):
        DataLoader(dataset)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"batch_size": 0}, "batch_size=0: a batch has a whole number of samples, at least 1"),
        ({"in_order": False}, "in_order=False: batches come in their order"),
        ({"pin_memory_device": "cuda:1"}, "pin_memory_device='cuda:1': memory is pinned for the current GPU"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"num_workers": -1}, "num_workers=-1: give a whole number, 0 or more"),
        ({"num_workers": "4"}, "num_workers='4': give a whole number, 0 or more"),
        ({"num_workers": 2.5}, "num_workers=2.5: give a whole number"),
        ({"drop_last": "yes"}, "drop_last='yes': give True or False"),
        ({"pin_memory": "no"}, "pin_memory='no': give True or False"),
        ({"report": None}, "report=None: give True or False"),
        ({"rank": True, "world_size": 2}, "rank=True, world_size=2: ranks are numbered from 0 to world_size - 1; give whole numbers"),
        ({"timeout": "x"}, "timeout='x': give seconds"),
        ({"seed": "a"}, "seed='a': give a whole number"),
        ({"seed": 1.5}, "seed=1.5: give a whole number"),
        ({"rank": "0", "world_size": "2"}, "rank='0', world_size='2': ranks are numbered"),
        ({"timeout": -1}, "timeout=-1: give seconds"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor=0: give a whole number, 1 or more"),
        ({"seed": 2**64}, "seed=18446744073709551616: give a whole number; torch's seeds have 64 bits"),
        ({"on_error": "ignore"}, 'on_error=\'ignore\': give "raise" or "skip"'),
        ({"rank": 1}, "rank= and world_size= go together"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2: ranks are numbered from 0"),
        ({"sampler": 5}, "sampler=5: give what can be iterated over"),
        ({"batch_sampler": 5}, "batch_sampler=5: give what can be iterated over"),
        ({"collate_fn": "x"}, "collate_fn='x': give a function"),
        ({"worker_init_fn": 5, "num_workers": 1}, "worker_init_fn=5: give a function"),
        ({"shuffle": True, "generator": 5}, "generator=5: give a torch.Generator"),
        ({"sampler": [1], "shuffle": True}, "sampler= makes the order: leave out shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler= makes the batches"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler= makes the batches"),
        ({"shuffle": True, "generator": torch.Generator(), "rank": 0, "world_size": 2}, "give seed= instead"),
        ({"sampler": DistributedSampler(Indices(9), 1, 0)}, "sampler= is of a dataset of another length"),
        ({"sampler": DistributedSampler(Indices(10), 1, 0), "seed": 4}, "seed=4, and the sampler's is 0: leave one out"),
        ({"shuffle": "blocks"}, r'shuffle="blocks": Indices has no blocks\(\), which says where'),
        ({"shuffle": "block"}, "shuffle='block': give True, False or \"blocks\""),
        ({"shuffle": True, "blocks_at_once": 2}, "blocks_at_once= is of a block shuffle"),
        ({"batch_size": 11, "drop_last": True}, "10 samples give 1 ranks no full batch of 11"),
    ],
)
def test_arguments_that_can_not_be_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        DataLoader(Indices(10), **options)


class RunsOfSamples(Indices):
    def __init__(self, ends: list[int]) -> None:
        super().__init__(10)
        self.ends = ends

    def blocks(self) -> list[int]:
        return self.ends


@pytest.mark.parametrize(
    ("ends", "at_once", "wrong"),
    [
        ([3, 9], 2, "make up the dataset: they don't at block 2"),
        ([3, 3, 10], 2, "at block 1"),
        ([10], 0, "blocks_at_once=0: give a whole number, 1 or more"),
    ],
)
def test_blocks_that_can_not_be_are_refused(ends: list[int], at_once: int, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        DataLoader(RunsOfSamples(ends), shuffle="blocks", blocks_at_once=at_once)


def test_shards_are_read_ahead_in_whatever_order(tmp_path: Path) -> None:
    paths = [write_records(tmp_path / f"{shard}", [b"%d" % (10 * shard + record) for record in range(6)]) for shard in range(4)]
    for keyed in (True, False):
        dataset = RecordShards(paths, number, keyed=keyed, index=tmp_path / "kept")
        loader = DataLoader(dataset, 5, "blocks", seed=0, blocks_at_once=2, num_workers=2, report=False)
        found = [batch.tolist() for batch in loader]
        assert [len(batch) for batch in found] == [5, 5, 5, 5, 4]
        order = [sample for batch in found for sample in batch]
        assert len({sample // 10 for sample in order[:12]}) == len({sample // 10 for sample in order[12:]}) == 2
        assert sorted(order) == [10 * shard + record for shard in range(4) for record in range(6)]


def number(record: memoryview, rng: object) -> int:
    return int(bytes(record))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="the dataset is empty"):
        DataLoader(Indices(0))


@pytest.mark.parametrize("name", ["worker_init_fn", "multiprocessing_context"])
def test_what_is_for_processes_is_refused_where_there_are_none(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: print if name == "worker_init_fn" else "fork"}
    with pytest.raises(ValueError, match=f"{name} is for worker processes, and this dataset is decoded in threads"):
        DataLoader(KeyedFiles(tmp_path, 3), num_workers=1, **options)


@pytest.mark.parametrize("epoch", [-1, 2**32 - 1, "x", 1.5, True])
def test_no_epoch_has_such_a_number(epoch: Any) -> None:  # noqa: ANN401
    for one in (DataLoader(Indices(3)), Keyed(Indices(3))):
        with pytest.raises(ValueError, match=f"epoch {epoch!r}: epochs are numbered from 0"):
            one.set_epoch(epoch)


def test_indices_are_whole_numbers() -> None:
    with pytest.raises(TypeError):
        list(DataLoader(Indices(3), sampler=["a"], report=False))


def test_ranks_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = DataLoader(Indices(6), 2, report=False)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert [batch.tolist() for batch in loader] == [[1, 3], [5]]
    assert len(DataLoader(Indices(6), 2, rank=0, world_size=1)) == 3


def test_ranks_come_from_torch_distributed_which_has_to_be_initialised_before(monkeypatch: pytest.MonkeyPatch) -> None:
    early = DataLoader(Indices(6), 2, report=False)
    own = DataLoader(Indices(6), 2, rank=1, world_size=2, report=False)
    custom = DataLoader(Indices(6), 2, sampler=[0, 1], report=False)
    for name, answer in (("is_initialized", True), ("get_rank", 2), ("get_world_size", 3)):
        monkeypatch.setattr(f"torch.distributed.{name}", partial(int, answer))
    late = DataLoader(Indices(6), 2, report=False)
    assert (late.rank, late.world_size) == (2, 3)
    assert [[batch.tolist() for batch in loader] for loader in (late, own, custom)] == [[[2, 5]], [[1, 3], [5]], [[0, 1]]]
    with pytest.raises(LoaderError, match=r"made as rank 0 of 1, and torch\.distributed says rank 2 of 3 now: make it once"):
        iter(early)


class Broken(KeyedFiles):
    """Some samples can't be decoded, some files are not there, and one ends early."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 12)
        self.paths[9].unlink()

    def locate(self, i: int, /) -> Extent:
        return Extent(str(self.paths[i]), 0, 100) if i == 10 else super().locate(i)

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        if i in (4, 5, 6, 7):
            raise ArithmeticError(f"odd\nbytes in {i}")
        return super().decode(data, i, rng)


class BrokenGlobally(Broken):
    keyed = False


class PlainSquares(Indices):
    def __getitem__(self, index: int) -> object:
        if index in (4, 5, 6, 7):
            raise ArithmeticError(f"odd\nbytes in {index}")
        if index == 9:
            Path("gone/0009").read_bytes()
        if index == 10:
            raise EOFError("0010 ends at byte 4")
        return index


def broken(kind: str, folder: Path) -> object:
    return PlainSquares(12) if kind == "plain" else (Broken if kind == "threads" else BrokenGlobally)(folder)


KINDS = [("plain", 0), ("plain", 2), ("threads", 2), ("processes", 0), ("processes", 2)]


@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_a_sample_that_fails_is_named(kind: str, workers: int, tmp_path: Path) -> None:
    dataset = broken(kind, tmp_path)
    path = "" if kind == "plain" else f" ({tmp_path}/0005)"
    loader = DataLoader(dataset, 3, num_workers=workers, sampler=[0, 1, 2, 3, 5, 4, 9, 10, 11], report=False)
    batches = iter(loader)
    assert len(next(batches)) == 3, "what comes before is handed out"
    with pytest.raises(ArithmeticError) as failed:
        next(batches)
    assert type(failed.value) is ArithmeticError, "the dataset's own type, as torch's loader gives it"
    assert str(failed.value).startswith(f"sample 5{path}: ")
    told = failed.value.__cause__
    assert isinstance(told, SampleError)
    assert str(told) == f"sample 5{path}: ArithmeticError: odd bytes in 5"
    assert (told.index, told.path) == (5, path.strip(" ()") or None)
    assert "Traceback" in str(told.__cause__)
    assert "in decode" in str(told.__cause__) or kind == "plain"
    assert ("Traceback" in str(failed.value)) == (workers > 0 and kind != "threads"), "of the process that raised it"
    with pytest.raises(StopIteration):
        next(batches)
    assert loader.state_dict()["batches"] == 1


@pytest.mark.parametrize(("kind", "workers"), KINDS)
@pytest.mark.parametrize(
    ("sample", "raised", "said"),
    [
        (9, FileNotFoundError, r"sample 9.*0009"),
        (10, EOFError, r"sample 10( \(.*0010\))?: .*0010 ends at byte 4"),
    ],
)
def test_files_that_are_gone_or_cut_are_named(
    kind: str, workers: int, sample: int, raised: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(raised, match=said) as failed:
        list(DataLoader(broken(kind, tmp_path), 3, num_workers=workers, sampler=[0, sample, 1], report=False))
    assert getattr(failed.value, "errno", errno.ENOENT) == errno.ENOENT
    assert isinstance(failed.value.__cause__, SampleError)


@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_samples_that_fail_may_be_skipped_and_are_counted(
    kind: str, workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(broken(kind, tmp_path), 6, num_workers=workers, seed=0, on_error="skip")
    batches = [batch if kind == "plain" else batch[0] for batch in loader]
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [8, 11]]
    assert loader.skipped == 6
    assert loader.last_report is not None
    assert (loader.last_report.samples, loader.last_report.skipped) == (6, 6)
    assert "; 6 skipped, the first: sample 4" in capfd.readouterr().err
    whole = DataLoader(broken(kind, tmp_path), 4, num_workers=workers, seed=0, on_error="skip", report=False)
    with pytest.raises(SampleError, match="none of the batch's 4 samples could be had; the first: sample 4"):
        list(whole)


class Greedy(KeyedFiles):
    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        raise MemoryError


@pytest.mark.parametrize("workers", [0, 2])
def test_no_memory_is_no_samples_fault(workers: int, tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        list(DataLoader(Greedy(tmp_path, 4), 2, num_workers=workers, on_error="skip", report=False))


def failing(samples: list[Any]) -> Any:  # noqa: ANN401
    return 1 // 0


def test_what_puts_batches_together_may_fail(tmp_path: Path) -> None:
    for dataset in (Indices(4), KeyedFiles(tmp_path, 4)):
        with pytest.raises(ZeroDivisionError):
            list(DataLoader(dataset, 2, num_workers=1, collate_fn=failing, report=False))


class Stuck(KeyedFiles):
    """Decoding waits for a gate."""

    gate = threading.Event()

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        if i > 1:
            self.gate.wait()
        return (i,)


def test_a_batch_that_takes_too_long_is_an_error_if_that_was_asked_for(tmp_path: Path) -> None:
    Stuck.gate.clear()
    batches = iter(DataLoader(Stuck(tmp_path, 4), 2, num_workers=2, timeout=0.5, report=False))
    # On a busy machine the first may take too long, too.
    with pytest.raises(LoaderError, match=r"a batch took longer than timeout=0\.5 seconds(: decoding sample \d \(.*\) goes on)?"):
        list(batches)
    Stuck.gate.set()


class SlowSamples(KeyedFiles):
    """Decoding of sample 2 waits for a gate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 8)
        self.gate = threading.Event()
        self.is_waiting = threading.Event()
        self.decoded: list[int] = []

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        self.decoded.append(i)
        if i == 2:
            self.is_waiting.set()
            assert self.gate.wait(LONG_S)
        return (i,)


def test_a_sample_that_takes_long_to_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SlowSamples(tmp_path)

    def say(line: str) -> None:
        if f": decoding sample 2 ({dataset.paths[2]}) goes on" in line:
            dataset.gate.set()

    monkeypatch.setattr("forebay.loader._threads.say", say)
    monkeypatch.setattr("forebay.loader._threads.STALL_S", 0.05)
    assert len(list(DataLoader(dataset, 8, num_workers=1, report=False))) == 1


def test_an_epoch_that_is_left_while_a_sample_is_decoded_decodes_no_other(tmp_path: Path) -> None:
    dataset = SlowSamples(tmp_path)
    before = set(threading.enumerate())
    epoch = iter(DataLoader(dataset, 8, num_workers=1, report=False))
    assert dataset.is_waiting.wait(LONG_S)
    # Does not wait for it.
    del epoch
    assert not dataset.gate.is_set()
    assert set(threading.enumerate()) - before
    dataset.gate.set()
    wait_until(lambda: set(threading.enumerate()) <= before, "the thread that decodes to end")
    assert dataset.decoded == [0, 1, 2]


class Hung(KeyedFiles):
    """The last sample is in a pipe that nobody writes to: its file system hangs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 4)
        os.mkfifo(folder / "pipe")

    def locate(self, i: int, /) -> Extent:
        return Extent(str(self.paths[i].with_name("pipe"))) if i == 3 else super().locate(i)


def test_a_stall_says_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    released: list[int] = []

    def say(line: str) -> None:
        said.append(line)
        if f"the source does not give sample 3 ({tmp_path}/pipe)" in line and not released:
            # The file system comes back: the pipe is empty, and the sample is not what it should be.
            released.append(os.open(tmp_path / "pipe", os.O_WRONLY))
            os.close(released[0])

    monkeypatch.setattr("forebay.loader._threads.say", say)
    monkeypatch.setattr("forebay.loader._threads.STALL_S", 0.05)
    with pytest.raises(OSError, match=r"sample 3.*pipe"):
        list(DataLoader(Hung(tmp_path), 2, num_workers=2, report=False))
    assert released


@pytest.mark.parametrize("kind", [KeyedFiles, GlobalFiles])
def test_an_epoch_leaves_nothing_behind_however_it_ends(kind: type[KeyedFiles], tmp_path: Path) -> None:
    dataset = kind(tmp_path, 12)

    def running() -> set[object]:
        return {*threading.enumerate(), *multiprocessing.active_children()}

    # Another test may just be ending.
    before = running()

    def nothing_is_left() -> bool:
        return running() <= before

    loader = DataLoader(dataset, 2, num_workers=2, report=False)
    list(loader)
    wait_until(nothing_is_left, "an epoch's threads and processes to end")
    for _ in loader:
        break
    wait_until(nothing_is_left, "those of an epoch that was left to end")
    forgotten = iter(loader)
    assert not nothing_is_left()
    del forgotten
    wait_until(nothing_is_left, "those of an epoch that never began to end")
    with pytest.raises(ArithmeticError):
        list(DataLoader(Broken(tmp_path), 2, num_workers=2, report=False))
    wait_until(nothing_is_left, "those of an epoch that failed to end")


class Collecting(KeyedFiles):
    """Decoding collects garbage, once the gate is open."""

    gate = threading.Event()

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        assert self.gate.wait(LONG_S)
        gc.collect()
        return (i,)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_epoch_may_be_forgotten_in_a_cycle(tmp_path: Path) -> None:
    """Then a thread that decodes finds it, and can't wait for its own end."""
    before = set(threading.enumerate())
    Collecting.gate.clear()
    gc.disable()
    try:
        cycle: list[object] = [iter(DataLoader(Collecting(tmp_path, 8), 2, num_workers=2, report=False))]
        cycle.append(cycle)
        del cycle
        assert set(threading.enumerate()) - before
        Collecting.gate.set()
        wait_until(lambda: set(threading.enumerate()) <= before, "its threads to end")
    finally:
        gc.enable()


def mark(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    info.dataset.length = 50  # type: ignore[attr-defined]


class Marked(Indices):
    def __getitem__(self, index: int) -> object:
        info = get_worker_info()
        assert info is not None
        return self.length, info.dataset is self


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_are_begun_as_torchs_are(context: str) -> None:
    """`get_worker_info` describes the user's dataset, not a wrapper of ours."""
    loader = DataLoader(Marked(2), 2, num_workers=1, worker_init_fn=mark, multiprocessing_context=context, report=False)
    (batch,) = loader
    assert [values.tolist() for values in batch] == [[50, 50], [True, True]]


def test_a_worker_that_can_not_begin_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        list(DataLoader(Indices(2), 2, num_workers=1, worker_init_fn=divide, report=False))


def divide(worker: int) -> None:
    print(1 // worker)


WITHOUT = """
import sys

sys.modules["torch"] = None
import forebay.clone, forebay.loader

try:
    import forebay.torch
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_it_is_told_that_torch_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=PROGRAM_S)
    assert (done.stdout, done.stderr) == ("forebay.torch is for PyTorch, which is not installed: pip install torch\n", "")


def test_it_says_a_line_at_an_epochs_end_and_only_rank_0_does(capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        loader = DataLoader(Indices(12), 2, rank=rank, world_size=2)
        list(loader)
        assert loader.last_report is not None
        assert loader.last_report.samples == 6
        said = capfd.readouterr().err.splitlines()
        assert said == ([f"forebay: {loader.last_report}"] if rank == 0 else [])
    next(iter(loader))
    list(DataLoader(Indices(12), 2, report=False))
    assert capfd.readouterr().err == ""


def test_pinned_memory_without_a_gpu_is_ordinary_memory(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for dataset in (KeyedFiles(tmp_path, 3), GlobalFiles(tmp_path, 3)):
            assert not next(iter(DataLoader(dataset, 3, num_workers=1, pin_memory=True, report=False)))[0].is_pinned()
    assert len([1 for one in warned if "pin" in str(one.message)]) >= 2


def test_batches_that_repeat_samples_say_so() -> None:
    loader = DataLoader(Indices(7), 2, rank=2, world_size=3, report=False)
    assert [(batch.tolist(), loader.padding) for batch in loader] == [([2, 5], 0), ([1], 1)]
