"""P12: batches are bit-equal to torch's where decoding is keyed, whatever workers, threads and sources do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, Subset, default_collate

from forebay.loader import DirectSource, Request, mixture
from forebay.torch import DataLoader, Keyed
from tests.loader.data import DrawingFiles, FileViews, GlobalFiles, Indices, KeyedFiles, same

SAMPLES = 22
SEED = 5


def wanted(dataset: object, epoch: int, **options: Any) -> list[Any]:
    """The batches of torch's own loader, over the keyed wrapper."""
    keyed = Keyed(dataset, SEED)
    keyed.set_epoch(epoch)
    sampler: DistributedSampler[Any] = DistributedSampler(keyed, 2, 1, seed=SEED)
    sampler.set_epoch(epoch)
    return list(TorchLoader(keyed, 4, sampler=sampler, **options))


def ours(dataset: object, epoch: int = 0, **options: Any) -> list[Any]:
    loader = DataLoader(dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, report=False, **options)
    loader.set_epoch(epoch)
    return list(loader)


def dataset_of(kind: str, folder: Path) -> object:
    if kind == "plain":
        return DrawingFiles(SAMPLES)
    return (KeyedFiles if kind == "threads" else GlobalFiles)(folder, SAMPLES)


@pytest.mark.parametrize("kind", ["plain", "threads", "processes"])
def test_p12_batches_are_bit_equal_to_torchs(kind: str, tmp_path: Path) -> None:
    dataset = dataset_of(kind, tmp_path)
    before = torch.get_rng_state()
    for epoch in range(2):
        expected = wanted(dataset, epoch)
        assert same(wanted(dataset, epoch, num_workers=2), expected) == 3
        for workers in (0, 1, 2):
            same(ours(dataset, epoch, num_workers=workers), expected)
    different = ours(dataset, 0)
    with pytest.raises(AssertionError):
        same(different, ours(dataset, 1))
    torch.set_rng_state(before)


def test_p12_workers_that_are_started_anew_have_all_they_need(tmp_path: Path) -> None:
    """Not forked: everything is sent to them."""
    dataset = mixture([GlobalFiles(tmp_path / "a", 9), GlobalFiles(tmp_path / "b", 13)], [1, 1])
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, report=False, **options)
    for epoch in range(2):
        same(loader, wanted(dataset, epoch))


def test_p12_workers_that_stay_see_the_next_epoch(tmp_path: Path) -> None:
    for dataset in (DrawingFiles(SAMPLES), GlobalFiles(tmp_path, SAMPLES)):
        loader = DataLoader(dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, num_workers=2, persistent_workers=True, report=False)
        for epoch in range(3):
            same(loader, wanted(dataset, epoch))


def test_p12_an_epoch_that_was_left_halfway_does_not_show_in_the_next(tmp_path: Path) -> None:
    for dataset, persistent in (
        (KeyedFiles(tmp_path, SAMPLES), False),
        (GlobalFiles(tmp_path, SAMPLES), True),
        (DrawingFiles(SAMPLES), False),
    ):
        loader = DataLoader(
            dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, num_workers=2, persistent_workers=persistent, report=False
        )
        next(iter(loader))
        same(loader, wanted(dataset, 0))
        one, other = iter(loader), iter(loader)
        if not persistent:
            # Persistent workers serve one epoch at a time, torch's too.
            same([next(one), next(other), next(one)], [*(both := wanted(dataset, 1))[:1], both[0], both[1]])


@pytest.mark.parametrize("prefetch", [1, 5])
@pytest.mark.parametrize(("threads", "window_bytes"), [(1, 1), (2, 20), (16, 1 << 20)])
def test_p12_the_source_changes_nothing(
    prefetch: int, threads: int, window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("_maker", "_processes"):
        monkeypatch.setattr(f"forebay.torch.{place}.connect", lambda *_: DirectSource(threads=threads, window_bytes=window_bytes))
    keyed, processes = KeyedFiles(tmp_path, SAMPLES), GlobalFiles(tmp_path, SAMPLES)
    same(ours(keyed, num_workers=3, prefetch_factor=prefetch), wanted(keyed, 0))
    if prefetch == 1:
        same(ours(processes, num_workers=2, prefetch_factor=prefetch), wanted(processes, 0))


class Volatile(DirectSource):
    """Its memory is used again as soon as it may be."""

    is_lasting = False

    def request(self, samples: list[int], iteration: int) -> Request:
        return Reused(super().request(samples, iteration))


class Reused(Request):
    """A batch's request of such a source."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._given: list[bytearray] = []

    def at_hand(self, places: range) -> list[memoryview | None]:
        return [None if data is None else self._copied(data) for data in self._request.at_hand(places)]

    def read(self, place: int) -> memoryview:
        return self._copied(self._request.read(place))

    def release(self) -> None:
        self._request.release()
        for given in self._given:
            given[:] = bytes(len(given))

    def _copied(self, data: memoryview) -> memoryview:
        self._given.append(bytearray(data))
        return memoryview(self._given[-1]).toreadonly()


@pytest.mark.parametrize("kind", [DirectSource, Volatile])
def test_p12_samples_may_be_views_of_what_was_read(kind: type[DirectSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("_maker", "_processes"):
        monkeypatch.setattr(f"forebay.torch.{place}.connect", lambda *_: kind())
    dataset = FileViews(tmp_path, SAMPLES)
    expected = wanted(dataset, 0)
    for workers in (0, 3):
        same(ours(dataset, num_workers=workers), expected)
        # Also past the batch, where nothing is copied.
        kept = ours(dataset, num_workers=workers, collate_fn=list)
        same([default_collate(batch) for batch in kept], expected)


def mixed(samples: list[object]) -> tuple[object, torch.Tensor]:
    """As those that mix a batch's images do, it draws."""
    return default_collate(samples), torch.rand(1)


def test_p12_what_puts_batches_together_may_draw(tmp_path: Path) -> None:
    for dataset in (Indices(SAMPLES), KeyedFiles(tmp_path, SAMPLES), GlobalFiles(tmp_path, SAMPLES)):
        torch.manual_seed(1)
        ways = [ours(dataset, num_workers=workers, collate_fn=mixed) for workers in (0, 1, 2)]
        assert same(ways[1], ways[0]) == same(ways[2], ways[0]) == 3
        assert len({float(draw) for _, draw in ways[0]}) == 3, "each batch otherwise"
        drawn = torch.rand(1)
        torch.manual_seed(1)
        for _ in range(3):
            # What torch's loader draws in each epoch, and no more.
            torch.empty((), dtype=torch.int64).random_()
        assert torch.equal(torch.rand(1), drawn)


@pytest.mark.parametrize("persistent", [False, True])
def test_p12_threads_draw_as_torchs_workers_do(persistent: bool, tmp_path: Path) -> None:
    files = KeyedFiles(tmp_path, SAMPLES)
    drawn = []
    kinds: list[Any] = [(TorchLoader, Keyed(files)), (DataLoader, files)]
    for kind, dataset in kinds:
        torch.manual_seed(3)
        loader = kind(dataset, 4, shuffle=True, num_workers=1, persistent_workers=persistent)
        # Training draws between batches, too; the samples' own chance is torch's draw here, and a seed there.
        drawn.append([(batch[0].tolist(), torch.rand(1)) for _ in range(2) for batch in loader])
    assert drawn[0] == drawn[1]


class ThreadCounts(Indices):
    """Each sample is the number of threads among which torch would divide its sums."""

    def __getitem__(self, index: int) -> object:
        return torch.get_num_threads()


class SplitFiles(KeyedFiles):
    def __init__(self, folder: Path, *, keyed: bool) -> None:
        super().__init__(folder, 4)
        self.keyed = keyed

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> Any:  # noqa: ANN401
        return torch.get_num_threads()


def split(samples: list[object]) -> torch.Tensor:
    return torch.tensor([*samples, torch.get_num_threads()])


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_p12_sums_are_divided_among_no_threads(tmp_path: Path) -> None:
    """How they are shows in their last bits, and torch's worker processes have one thread each."""
    for dataset in (ThreadCounts(4), SplitFiles(tmp_path, keyed=True), SplitFiles(tmp_path, keyed=False)):
        assert [Keyed(dataset)[index] for index in range(4)] == [1] * 4
        for workers in (0, 2):
            (batch,) = DataLoader(dataset, 4, num_workers=workers, collate_fn=split, report=False)
            assert batch.tolist() == [1] * 5
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == 3, "a thread of the program's"


def test_p12_a_subset_is_read_ahead_as_the_whole_is(tmp_path: Path) -> None:
    whole = KeyedFiles(tmp_path, SAMPLES)
    dataset: Any = Subset(Subset(whole, list(range(2, SAMPLES))), list(range(9, -1, -1)))  # type: ignore[arg-type]
    loader = DataLoader(dataset, 4, seed=SEED, report=False)
    assert loader.num_workers > 0
    assert [batch[0].tolist() for batch in loader] == [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2]]
    same(ours(dataset), wanted(dataset, 0))


def test_p12_resuming_changes_no_bytes(tmp_path: Path) -> None:
    for kind in ("plain", "threads", "processes"):
        dataset = dataset_of(kind, tmp_path)
        loader = DataLoader(dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, num_workers=2, report=False)
        next(iter(loader))
        other = DataLoader(dataset, 4, shuffle=True, seed=SEED, rank=1, world_size=2, num_workers=1, report=False)
        other.load_state_dict(loader.state_dict())
        assert same(other, wanted(dataset, 0)[1:]) == 2
