"""Mixtures: shares by weight, datasets read across epochs, and a position that follows from the epoch."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, Subset

from forebay.loader import FixedRows, Mixture, StateError, mixture
from forebay.loader.dataset import is_located
from forebay.torch import DataLoader, Keyed
from tests.loader.data import GlobalFiles, Indices, KeyedFiles, same


class NamedDataset(Indices):
    """Each sample is its dataset's name and its index."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(length)
        self.name = name

    def __getitem__(self, index: int) -> object:
        return self.name, index


def drawn(dataset: Mixture, epochs: int) -> list[list[tuple[str, int]]]:
    found = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        found.append([dataset[i] for i in range(len(dataset))])
    return found


@pytest.mark.parametrize(
    ("weights", "samples", "counts"),
    [((1, 1), None, [8, 7]), ((3, 1), 12, [9, 3]), ((0.5, 0.25), 10, [7, 3]), ((1, 1e-3), 1001, [1000, 1]), ((2, 2), 7, [4, 3])],
)
def test_shares_are_by_weight(weights: tuple[float, float], samples: int | None, counts: list[int]) -> None:
    made = mixture([NamedDataset("a", 5), NamedDataset("b", 10)], weights, samples)
    assert (made.counts, len(made)) == (counts, sum(counts))
    for epoch in drawn(made, 3):
        assert Counter(name for name, _ in epoch) == dict(zip("ab", counts, strict=True))


def test_each_dataset_is_gone_through_before_any_of_it_comes_again() -> None:
    made = mixture([NamedDataset("a", 5), NamedDataset("b", 10)], [2, 1], 9, seed=4)
    epochs = drawn(made, 10)
    for name, length in (("a", 5), ("b", 10)):
        indices = [index for epoch in epochs for its, index in epoch if its == name]
        assert len(indices) == {"a": 60, "b": 30}[name]
        rounds = [indices[start : start + length] for start in range(0, len(indices), length)]
        assert all(sorted(one) == list(range(length)) for one in rounds)
        assert len({tuple(one) for one in rounds}) > 1, "each time in another order"
    assert drawn(made, 10) == epochs
    assert drawn(mixture([NamedDataset("a", 5), NamedDataset("b", 10)], [2, 1], 9, seed=5), 10) != epochs


@pytest.mark.parametrize("kind", [Indices, KeyedFiles, GlobalFiles])
def test_it_is_loaded_as_what_it_is_made_of(kind: type[Indices] | type[KeyedFiles], tmp_path: Path) -> None:
    parts: list[object] = [
        kind(length) if issubclass(kind, Indices) else kind(tmp_path / name, length) for name, length in (("a", 6), ("b", 9))
    ]
    made = mixture(parts, [1, 1], 10, seed=2)
    assert is_located(made) == (kind is not Indices)
    assert made.keyed == (kind is not GlobalFiles)
    loaders = [DataLoader(made, 4, shuffle=True, seed=1, num_workers=workers, report=False) for workers in (0, 2)]
    stays = DataLoader(made, 4, shuffle=True, seed=1, num_workers=2, persistent_workers=True, report=False)
    keyed = Keyed(made, 1)
    sampler: DistributedSampler[Any] = DistributedSampler(keyed, 1, 0, seed=1)
    epochs = []
    for epoch in range(3):
        keyed.set_epoch(epoch)
        sampler.set_epoch(epoch)
        wanted = list(TorchLoader(keyed, 4, sampler=sampler))
        for loader in (*loaders, stays):
            same(loader, wanted)
        epochs.append([batch.tolist() if kind is Indices else batch[0].tolist() for batch in wanted])
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_part_of_a_mixture_is_told_its_epoch() -> None:
    made = mixture([NamedDataset("a", 50)], [1], 10)
    loader = DataLoader(Subset(made, [0, 1, 2]), 3, report=False)  # type: ignore[arg-type]
    found = [[index.tolist() for _, index in loader] for _ in range(2)]
    assert found[0] != found[1]


def test_a_state_is_of_one_mixture_only() -> None:
    def loader(weights: list[float], **options: Any) -> DataLoader:
        return DataLoader(
            mixture([NamedDataset("a", 50), NamedDataset("b", 50)], weights, 20, **options), 4, shuffle=True, seed=1, report=False
        )

    whole, stopped, resumed = loader([1, 1]), loader([1, 1]), loader([1, 1])
    for one in (whole, stopped):
        one.set_epoch(3)
    batches = iter(stopped)
    next(batches)
    state = stopped.state_dict()
    resumed.load_state_dict(state)
    same(resumed, list(whole)[1:])
    for other in (loader([1, 2]), loader([1, 1], seed=1), DataLoader(Indices(20), 4, shuffle=True, seed=1, report=False)):
        with pytest.raises(StateError, match="of another dataset than this one"):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("lengths", "weights", "samples", "wrong"),
    [
        ([], [], None, "0 datasets and 0 weights"),
        ([5], [1, 2], None, "1 datasets and 2 weights"),
        ([5, 0], [1, 1], None, "dataset 1 is empty"),
        ([5, 5], 1, None, "weights=1: give a list with a number for each dataset"),
        ([5, 5], (weight for weight in (1, 2)), None, "weights=<generator .*>: give a list with a number for each dataset"),
        ([5, 5], ["1", 2], None, r"weights=\['1', 2\]: give a list with a number for each dataset"),
        ([5, 5], [1, 1], 0, "samples=0: give a whole number, 1 or more"),
        ([5, 5], [1, 1], "10", "samples='10': give a whole number, 1 or more"),
        ([5, 5], [1, 0], None, r"weights=\[1, 0\]: each is a positive number"),
        ([5, 5], [1, float("nan")], None, "each is a positive number"),
        ([5, 5], [1, float("inf")], None, "each is a positive number"),
        ([5, 5], [1, 1e-6], 10, "of 10 samples none is left for dataset 1, by its weight: give it more weight, or the epoch more samples"),
    ],
)
def test_mixtures_that_can_not_be_are_refused(
    lengths: list[int],
    weights: Any,  # noqa: ANN401  (also none)
    samples: Any,  # noqa: ANN401
    wrong: str,
) -> None:
    with pytest.raises(ValueError, match=wrong):
        mixture([Indices(length) for length in lengths], weights, samples)


def test_one_dataset_is_no_list_of_datasets(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(20))
    for given in (FixedRows(tmp_path / "rows", 2), Indices(5)):
        with pytest.raises(ValueError, match=r"datasets=<.*>: give a list of datasets"):
            mixture(given, [1])  # type: ignore[arg-type]


def test_there_are_no_more_samples_than_it_has() -> None:
    for wrong in (-6, 5):
        with pytest.raises(IndexError, match=rf"Mixture\[{wrong}\]: there are 5 samples"):
            mixture([Indices(5)], [1])[wrong]


@pytest.mark.parametrize("seed", ["a", None, 2**64])
def test_a_seed_that_can_not_be_is_refused(seed: Any) -> None:  # noqa: ANN401
    wrong = f"seed={seed!r}: give a whole number"
    with pytest.raises(ValueError, match=wrong):
        mixture([Indices(5)], [1], seed=seed)
    with pytest.raises(ValueError, match=wrong):
        Keyed(Indices(5), seed=seed)


def test_what_is_no_dataset_is_refused() -> None:
    wrong = "int is not a map-style dataset: it needs __len__ and __getitem__"
    with pytest.raises(TypeError, match=wrong):
        mixture([Indices(5), 5], [1, 1])
    with pytest.raises(TypeError, match=wrong):
        Keyed(5)
