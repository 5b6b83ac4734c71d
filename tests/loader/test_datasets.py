"""Hugging Face datasets, the real ones.

The rows that they give, also of those that were selected from, and what is refused.
"""

import importlib.util
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.loader.source import read_sample
from forebay.torch import DataLoader

if importlib.util.find_spec("datasets") is None:
    pytest.skip("needs datasets: uv sync --group frameworks", allow_module_level=True)

import datasets
from PIL import Image

from forebay.datasets import DatasetRows

if TYPE_CHECKING:
    from collections.abc import Callable


def labelled(i: int) -> dict[str, Any]:
    pixels = np.full((4, 5, 3), i, dtype=np.uint8)
    return {"id": i, "text": f"row {i}", "label": i % 2, "image": Image.fromarray(pixels)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> datasets.Dataset:
    """23 rows in two files, in record batches of 5."""
    root = tmp_path_factory.mktemp("datasets")
    kinds = {"id": datasets.Value("int32"), "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["even", "odd"])}
    features = datasets.Features({**kinds, "image": datasets.Image()})
    parts = []
    for first, last in ((0, 12), (12, 23)):
        rows = datasets.Dataset.from_dict({"id": list(range(first, last))})
        parts.append(
            rows.map(
                lambda one: labelled(one["id"]),
                features=features,
                writer_batch_size=5,
                cache_file_name=str(root / f"{first}.arrow"),
            )
        )
    return datasets.concatenate_datasets(parts)


def plain(example: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() if name == "image" else value for name, value in example.items()}


WAYS: "dict[str, Callable[[datasets.Dataset], datasets.Dataset]]" = {
    "whole": lambda dataset: dataset,
    "slice": lambda dataset: dataset.select(range(4, 20)).select(range(3, 13)),
    "shuffled": lambda dataset: dataset.shuffle(seed=1),
    "chosen": lambda dataset: dataset.select([20, 3, 3, 11]),
    "columns": lambda dataset: dataset.remove_columns(["image"]).select_columns(["text", "id"]),
    "split": lambda dataset: dataset.train_test_split(0.3, seed=2)["test"],
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_that_the_dataset_gives(way: str, whole: datasets.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    dataset = WAYS[way](whole)
    rows = pickle.loads(pickle.dumps(DatasetRows(dataset)))  # noqa: S301  (its own)
    assert len(rows) == len(dataset)
    for i in range(len(rows)):
        assert plain(rows.decode(read_sample(rows.locate, i), i, None)) == plain(dataset[i])
    with pytest.raises(IndexError, match=f"row {len(rows)}: there are {len(rows)}"):
        rows.locate(len(rows))


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_had_by_index_without_a_loader(way: str, whole: datasets.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    dataset = WAYS[way](whole)
    rows: Any = DatasetRows(dataset)
    assert [plain(row) for row in rows] == [plain(row) for row in dataset]
    assert plain(rows[-1]) == plain(dataset[-1])
    with pytest.raises(TypeError, match="give the index of one sample"):
        rows["id"]


def test_columns_may_have_dots(tmp_path: Path) -> None:
    rows = {"observation.state": [[0.5], [1.5, 2.5]], "observation": [{"state": 1}, {"state": 2}], "action.x": [3, 4]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path)
    dataset = datasets.load_from_disk(tmp_path)
    for one in (dataset, dataset.select_columns(["action.x", "observation.state"])):
        ours = DatasetRows(one)
        assert [ours.decode(read_sample(ours.locate, i), i, None) for i in range(2)] == list(one)


def identity(row: Mapping[str, Any], rng: object) -> int:
    return int(row["id"])


def test_a_loader_goes_through_it_by_record_batches(whole: datasets.Dataset) -> None:
    rows = DatasetRows(whole, identity)
    assert (rows.blocks(), rows.extents) == ([5, 10, 12, 17, 22, 23], 6)
    assert DatasetRows(whole.select(range(4, 20))).blocks() == [1, 6, 8, 13, 16]
    loader = DataLoader(rows, 4, "blocks", seed=1, num_workers=2, report=False)
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(23))
    assert loader.state_dict()["dataset"] == whole._fingerprint
    with pytest.raises(ValueError, match="was shuffled or selected from, so its rows lie apart"):
        DataLoader(DatasetRows(whole.select([1, 5])), 1, "blocks")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda dataset: dataset.with_format("numpy"), 'has the format "numpy", which decode= makes here: give dataset.with_format'),
        (lambda dataset: datasets.Dataset.from_dict({"id": [1, 2]}), "is in memory, not in files: keep it with save_to_disk"),
        (lambda dataset: dataset.rename_columns({"id": "text", "text": "id"}), "is not what its files hold"),
        (lambda dataset: dataset.add_column("more", list(range(23))), "is not what its files hold|is in memory"),
    ],
)
def test_what_does_not_lie_in_files_as_it_is_is_refused(change: Any, wrong: str, whole: datasets.Dataset) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=wrong):
        DatasetRows(change(whole))


def test_what_is_no_dataset_of_theirs_is_refused(whole: datasets.Dataset) -> None:
    given: Any
    for given, wrong in (
        (datasets.DatasetDict(train=whole), r'DatasetDict has several datasets: take one of its splits, such as dataset\["train"\]'),
        (whole.to_iterable_dataset(), "IterableDataset is not a datasets.Dataset"),
        ([{"id": 1}], "list is not a datasets.Dataset"),
    ):
        with pytest.raises(TypeError, match=wrong):
            DatasetRows(given)
    with pytest.raises(ValueError, match="decode=5: give a function"):
        DatasetRows(whole, 5)  # type: ignore[arg-type]
