"""Datasets without a loader: by index, by torch's own wrappers and loader, and these wrappers read ahead."""

import itertools
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, random_split
from torch.utils.data import DataLoader as TorchLoader

from forebay.loader import ArrowRows, FixedRows, ParquetRows, RecordShards, TarShards, TokenFile, mixture
from forebay.torch import DataLoader, Keyed
from forebay.torch._keyed import located
from tests.loader.data import Indices, same, write_records
from tests.loader.node import LoaderNode
from tests.loader.test_shards import write_tar

SAMPLES = 12


def drawing(values: Any, rng: torch.Generator) -> tuple[Any, torch.Tensor]:  # noqa: ANN401  (a row, fields or a record)
    plain = (
        {name: bytes(one) if isinstance(one, memoryview) else one for name, one in values.items()}
        if isinstance(values, Mapping)
        else values
    )
    return bytes(plain) if isinstance(plain, memoryview) else plain, torch.rand(2, generator=rng)


def table() -> pyarrow.Table:
    return pyarrow.table({"id": range(SAMPLES)})


def tar(folder: Path) -> TarShards:
    members = [(f"{number}.txt", b"%d" % number) for number in range(SAMPLES)]
    paths = [write_tar(folder / "a.tar", members[:5]), write_tar(folder / "b.tar", members[5:])]
    return TarShards(paths, drawing, index=folder / "kept")


def records(folder: Path) -> RecordShards:
    return RecordShards(write_records(folder / "a.tfrecord", [b"%d" % i for i in range(SAMPLES)]), drawing, index=folder / "kept")


def parquet(folder: Path) -> ParquetRows:
    pyarrow.parquet.write_table(table(), folder / "a.parquet", row_group_size=5)
    return ParquetRows(folder / "a.parquet", drawing)


def arrow(folder: Path) -> ArrowRows:
    with pyarrow.ipc.new_file(folder / "a.arrow", table().schema) as writer:
        writer.write_table(table(), max_chunksize=5)
    return ArrowRows(folder / "a.arrow", drawing)


def fixed(folder: Path) -> FixedRows:
    (folder / "rows").write_bytes(bytes(range(4 * SAMPLES)))
    return FixedRows(folder / "rows", 4)


def tokens(folder: Path) -> TokenFile:
    np.arange(3 * SAMPLES + 1, dtype="int32").tofile(folder / "tokens")
    return TokenFile(folder / "tokens", 3, "int32")


def mixed_of(folder: Path) -> Any:  # noqa: ANN401
    return mixture([tar(folder), records(folder)], [1, 1], SAMPLES)


KINDS = [tar, records, parquet, arrow, fixed, tokens, mixed_of]
Made = Callable[[Path], Any]


def plain(sample: Any) -> Any:  # noqa: ANN401
    """A sample as plain values."""
    if isinstance(sample, torch.Tensor | np.ndarray):
        return sample.tolist()
    return [plain(one) for one in sample] if isinstance(sample, list | tuple) else sample


@pytest.mark.parametrize("made", KINDS)
def test_a_sample_by_index_is_the_loaders_of_seed_0(made: Made, tmp_path: Path) -> None:
    dataset = made(tmp_path)
    loader = DataLoader(dataset, 1, seed=0, num_workers=2, collate_fn=lambda samples: plain(samples[0]), report=False)
    wanted = list(loader)
    assert [plain(dataset[i]) for i in range(SAMPLES)] == wanted
    assert [plain(Keyed(dataset, 0)[i]) for i in range(SAMPLES)] == wanted
    # As any sequence: to its end, from its end, by whatever is a whole number.
    assert [plain(sample) for sample in dataset] == wanted
    assert [plain(dataset[i]) for i in range(-SAMPLES, 0)] == wanted
    assert plain(dataset[np.int64(3)]) == plain(dataset[torch.tensor(3)]) == wanted[3]
    assert plain(pickle.loads(pickle.dumps(dataset))[7]) == wanted[7]  # noqa: S301  (its own)
    for wrong in (SAMPLES, -SAMPLES - 1, 2**70):
        with pytest.raises(IndexError, match=rf"\[{wrong}\]: there are {SAMPLES} samples"):
            dataset[wrong]
    for kind in (slice(0, 2), "0", 1.0, None, [0]):
        with pytest.raises(TypeError, match=r"\[.*\]: give the index of one sample; torch.utils.data.Subset"):
            dataset[kind]


@pytest.mark.parametrize("made", KINDS)
def test_torchs_wrappers_and_loader_take_it(made: Made, tmp_path: Path) -> None:
    dataset = made(tmp_path)
    wanted = [plain(sample) for sample in dataset]
    both: Any = ConcatDataset([dataset, Indices(2), dataset])
    assert [plain(both[i]) for i in (0, SAMPLES + 1, SAMPLES + 2, -1)] == [wanted[0], 1, wanted[0], wanted[-1]]
    assert plain(Subset(dataset, [5, 2])[1]) == wanted[2]
    first, second = random_split(dataset, [4, SAMPLES - 4], torch.Generator().manual_seed(1))
    assert sorted([*first.indices, *second.indices]) == list(range(SAMPLES))
    assert plain(StackDataset(dataset, dataset)[3]) == [wanted[3]] * 2
    loader = TorchLoader(dataset, 3, num_workers=0, collate_fn=list)
    assert [plain(sample) for batch in loader for sample in batch] == wanted
    assert len(list(TorchLoader(dataset, 3))) == SAMPLES // 3


def test_in_workers_of_torchs_each_epoch_draws_anew(tmp_path: Path) -> None:
    torch.manual_seed(7)
    dataset: Any = tar(tmp_path)
    loader = TorchLoader(dataset, 3, num_workers=1, persistent_workers=True, collate_fn=list)
    epochs = [[plain(sample) for batch in loader for sample in batch] for _ in range(2)]
    assert [one[0] for one in epochs[0]] == [one[0] for one in epochs[1]]
    assert all(one[1] != other[1] for one, other in zip(*epochs, strict=True))


class Wrapped:
    """A dataset of the user's own around one of ours."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401
        return self.dataset[i], self.dataset[(i + 1) % len(self)]


def test_what_a_users_own_dataset_draws_follows_from_seed_epoch_and_index(tmp_path: Path) -> None:
    dataset = Wrapped(tar(tmp_path))
    before = torch.get_rng_state()
    alone = plain(dataset[0])
    assert torch.equal(torch.get_rng_state(), before)
    for seed in (0, 1):
        keyed = Keyed(dataset, seed)
        loaders = [DataLoader(dataset, 3, seed=seed, num_workers=n, collate_fn=plain, report=False) for n in (0, 2)]
        epochs = [[[sample for batch in loader for sample in batch] for _ in range(2)] for loader in loaders]
        assert epochs[0] == epochs[1]
        for epoch, found in enumerate(epochs[0]):
            keyed.set_epoch(epoch)
            assert found == [plain(keyed[i]) for i in range(SAMPLES)]
        drawn = {tuple(one[1]) for epoch in epochs[0] for pair in epoch for one in pair}
        assert len(drawn) == 4 * SAMPLES, "nothing is drawn twice"
    assert plain(dataset[0]) == alone


@pytest.mark.parametrize("made", KINDS)
def test_a_concatenation_is_read_ahead(made: Made, tmp_path: Path) -> None:
    dataset = made(tmp_path)
    both: Any = ConcatDataset([dataset, Subset(dataset, [3, 1])])
    assert located(both) is not None
    assert located(ConcatDataset([dataset, Indices(2)])) is None
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "report": False, "collate_fn": plain}
    keyed = Keyed(both, 3)
    order = torch.randperm(SAMPLES + 2, generator=torch.Generator().manual_seed(3)).tolist()
    for workers in (0, 2):
        found = [sample for batch in DataLoader(both, 4, num_workers=workers, **options) for sample in batch]
        assert found == [plain(keyed[i]) for i in order]


def test_a_cache_keeps_what_a_concatenation_reads(node: LoaderNode) -> None:
    dataset: Any = tar(node.root)
    mixed: Any = mixture([dataset, dataset], [1, 1], SAMPLES)
    both: Any = ConcatDataset([dataset, Subset(dataset, [3, 1]), mixed])
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": 2, "collate_fn": plain, "report": False}
    plainly, cached = DataLoader(both, 4, **options), DataLoader(both, 4, cache="ram=1M", hedge_budget=0, **options)
    assert [list(plainly) for _ in range(2)] == [list(cached) for _ in range(2)]
    assert cached._agent is not None
    assert cached._agent.figures()["from_source"] == SAMPLES


def test_a_concatenation_has_the_blocks_of_its_parts(tmp_path: Path) -> None:
    dataset: Any = parquet(tmp_path)
    others: Any = [records(tmp_path), fixed(tmp_path)]
    both: Any = ConcatDataset([dataset, dataset])
    loader = DataLoader(both, 1, "blocks", blocks_at_once=1, seed=1, num_workers=2, collate_fn=lambda one: one[0][0]["id"], report=False)
    found = list(loader)
    assert sorted(found) == sorted(2 * list(range(SAMPLES)))
    # Each group's rows come one after another.
    assert [len(list(run)) for _, run in itertools.groupby(one // 5 for one in found)].count(1) == 0
    with pytest.raises(ValueError, match="ConcatDataset has no blocks"):
        DataLoader(ConcatDataset([dataset, *others]), 1, "blocks")


def test_a_concatenated_mixture_is_told_its_epoch(tmp_path: Path) -> None:
    dataset: Any = mixture([records(tmp_path)], [1], 5)
    loader = DataLoader(ConcatDataset([dataset, dataset]), 5, num_workers=2, collate_fn=plain, report=False)
    epochs = [[one[0] for batch in loader for one in batch] for _ in range(2)]
    assert epochs[0] != epochs[1]


def test_a_process_that_is_forked_while_a_group_is_decoded_decodes_it_itself(tmp_path: Path) -> None:
    dataset = arrow(tmp_path)
    kept = dataset._kept
    # As it is while another thread decodes the group.
    kept._lock.acquire()
    kept._groups[0] = type("Never", (), {"result": lambda self: kept._lock.acquire()})()
    child = multiprocessing.get_context("fork").Process(target=dataset.__getitem__, args=(0,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_where_there_is_no_torch_decode_is_given_no_generator(tmp_path: Path) -> None:
    write_records(tmp_path / "a", [b"one"])
    program = """
import sys
sys.modules["torch"] = None
from forebay.loader import RecordShards
print(RecordShards(sys.argv[1], lambda record, rng: (bytes(record), rng), index=sys.argv[2])[0])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a"), str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "(b'one', None)\n"


def test_the_same_bytes_by_torchs_loader_and_ours(tmp_path: Path) -> None:
    dataset: Any = fixed(tmp_path)
    assert same(DataLoader(dataset, 5, num_workers=2, report=False), TorchLoader(dataset, 5)) == 3
