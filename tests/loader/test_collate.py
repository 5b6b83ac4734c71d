"""Samples that are views of memory which is only to be read.

Their batches are torch's, and torch has nothing to warn of.
"""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from forebay.loader import RecordShards, TokenFile
from forebay.torch import DataLoader, Keyed
from forebay.torch._collate import collated
from tests.loader.data import write_records

WARNING = "is not writable"


@pytest.fixture(autouse=True)
def warned_each_time() -> Iterator[None]:
    """Torch says it once in a process, else."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def only_to_be_read(array: Any) -> Any:  # noqa: ANN401  (an array)
    array.flags.writeable = False
    return array


def same(ours: Any, theirs: Any) -> None:  # noqa: ANN401  (batches)
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    elif isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, str):
        assert ours == theirs
    else:
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)


SAMPLES = {
    "numbers": [only_to_be_read(np.arange(3, dtype="uint16") + start) for start in range(4)],
    "one": [only_to_be_read(np.arange(3.0))],
    "bits": [only_to_be_read(np.array([0x7FC00001, 0xFF800000], "uint32").view("float32")) for _ in range(2)],
    "no dimension": [only_to_be_read(np.array(value)) for value in (1.5, 2.5)],
    "empty": [only_to_be_read(np.empty((0, 2), "int64")) for _ in range(2)],
    "turned": [only_to_be_read(np.arange(12, dtype="uint8").reshape(3, 4).T + start) for start in range(2)],
    "every other": [only_to_be_read(np.arange(12))[::2] for _ in range(2)],
    "some": [np.arange(3), only_to_be_read(np.arange(3) + 7)],
    "of two types": [only_to_be_read(np.arange(3, dtype="int32")), only_to_be_read(np.arange(3, dtype="int64"))],
    "within": [{"pair": (only_to_be_read(np.arange(2) + start), start), "name": "a"} for start in range(3)],
}


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_a_batch_is_torchs_bit_by_bit_without_its_warning(samples: list[Any]) -> None:
    with pytest.warns(UserWarning, match=WARNING):
        theirs = default_collate(samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(collated(samples), theirs)


def test_a_batch_is_a_copy() -> None:
    memory = np.arange(6, dtype="int32")
    views = [only_to_be_read(memory[:3]), only_to_be_read(memory[3:])]
    for samples in (views, views[:1]):
        batch = collated(samples)
        batch += 1
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "samples",
    [
        [only_to_be_read(np.arange(length)) for length in (2, 3)],
        [only_to_be_read(np.arange(2, dtype=">u4")) for _ in range(2)],
        [only_to_be_read(np.array(["a", "b"])) for _ in range(2)],
        [only_to_be_read(np.arange(2)), None],
    ],
    ids=["lengths", "byte order", "text", "none"],
)
def test_what_torch_can_not_put_together_is_refused_in_its_words(samples: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((RuntimeError, TypeError, ValueError)) as theirs:
            default_collate(samples)
        with pytest.raises(theirs.type) as ours:
            collated(samples)
    assert str(ours.value) == str(theirs.value)


def test_a_function_of_the_users_in_torchs_place_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = SAMPLES["numbers"]
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert collated(samples) == 4
    monkeypatch.setitem(default_collate_fn_map, np.ndarray, lambda batch, *, collate_fn_map: [one.flags.writeable for one in batch])
    assert collated(samples) == [False] * 4


def numbers(record: memoryview, rng: object) -> Any:  # noqa: ANN401  (an array)
    del rng
    return np.frombuffer(record, "uint8")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("keyed", [True, False])
def test_what_is_read_ahead_comes_without_a_warning(workers: int, keyed: bool, tmp_path: Path) -> None:
    np.arange(41, dtype="uint16").tofile(tmp_path / "tokens")
    write_records(tmp_path / "records", [bytes([number] * 5) for number in range(10)])
    records = RecordShards([tmp_path / "records"], numbers, keyed=keyed, index=tmp_path / "kept")
    for dataset in (TokenFile(tmp_path / "tokens", 4), records):
        with warnings.catch_warnings():
            # In a worker process it would be an error, too: it is forked.
            warnings.simplefilter("error")
            ours = list(DataLoader(dataset, 4, num_workers=workers, report=False))
            theirs = list(TorchDataLoader(Keyed(dataset), 4))
        same(ours, theirs)
        assert len(ours) == 3
