"""Batches for a GPU: in pinned memory, and normalised there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

import forebay.accelerate
from forebay.loader import FixedRows
from forebay.torch import DataLoader, Keyed, Normalize
from tests.loader.data import DrawingFiles, GlobalFiles, KeyedFiles
from tests.loader.node import LoaderNode

pytestmark = pytest.mark.gpu

ROWS, ROW_BYTES = 24, 64


def stacked(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"index": torch.tensor([sample[0] for sample in samples]), "drawn": torch.stack([sample[1] for sample in samples])}


def rows(folder: Path) -> FixedRows:
    path = folder / "rows"
    path.write_bytes(np.random.default_rng(0).integers(256, size=ROWS * ROW_BYTES, dtype=np.uint8).tobytes())
    return FixedRows(path, ROW_BYTES)


def tensors(batch: Any) -> list[torch.Tensor]:  # noqa: ANN401  (whatever a batch is)
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return [part for part in parts if isinstance(part, torch.Tensor)]


MAKERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "threads": (lambda folder: KeyedFiles(folder, ROWS), {}),
    "threads-own-collate": (lambda folder: KeyedFiles(folder, ROWS), {"collate_fn": stacked}),
    "threads-agent": (lambda folder: KeyedFiles(folder, ROWS), {"cache": "ram=1M"}),
    "workers": (lambda folder: GlobalFiles(folder, ROWS), {}),
    "workers-agent": (lambda folder: GlobalFiles(folder, ROWS), {"cache": "ram=1M"}),
    "getitem": (lambda folder: DrawingFiles(ROWS), {}),
    "rows": (rows, {}),
    "rows-agent": (rows, {"cache": "ram=1M"}),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", MAKERS)
def test_batches_are_pinned_and_the_same(node: LoaderNode, kind: str, workers: int) -> None:
    make, options = MAKERS[kind]
    # An agent serves those who read beside training.
    options = options if workers else {name: value for name, value in options.items() if name != "cache"}
    given = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": workers, "report": False, "pin_memory": True} | options
    dataset = make(node.files)
    pinned, plain = (DataLoader(dataset, **given | {"pin_memory": one}) for one in (True, False))
    for epoch in range(2):
        for loader in (pinned, plain):
            loader.set_epoch(epoch)
        for ours, theirs in zip(pinned, plain, strict=True):
            found = tensors(ours)
            assert found
            assert all(one.is_pinned() for one in found)
            there = [one.to("cuda", non_blocking=True) for one in found]
            assert all(torch.equal(one.cpu(), two) for one, two in zip(there, tensors(theirs), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_are_normalised_on_the_gpu_as_on_the_processor(dtype: torch.dtype) -> None:
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    model = nn.Sequential(Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype)).to("cuda")
    assert torch.equal(model(images.to("cuda")).cpu(), model(images))


def test_accelerate_has_batches_on_its_gpu(tmp_path: Path) -> None:
    accelerator = Accelerator()
    loader = forebay.accelerate.prepare(accelerator, DataLoader(KeyedFiles(tmp_path, ROWS), 5, pin_memory=True, report=False))
    seen = []
    for batch in loader:
        assert batch[0].device.type == accelerator.device.type == "cuda"
        seen += batch[0].tolist()
    assert seen == list(range(ROWS))


def test_a_network_learns_the_same_as_with_torchs_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "pin_memory": True}
        ours, keyed = DataLoader(DrawingFiles(ROWS), **options, seed=3, report=False), Keyed(DrawingFiles(ROWS), seed=3)
        assert losses(ours, ours.set_epoch) == losses(torch.utils.data.DataLoader(keyed, **options), keyed.set_epoch)
    finally:
        torch.use_deterministic_algorithms(False)


def losses(loader: Any, set_epoch: Callable[[int], None]) -> list[float]:  # noqa: ANN401  (torch's or ours)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    found = []
    for epoch in range(2):
        set_epoch(epoch)
        for index, _, _, drawn in loader:
            optimizer.zero_grad()
            wanted = index.to("cuda", non_blocking=True).float().unsqueeze(1)
            loss = nn.functional.mse_loss(model(drawn.to("cuda", non_blocking=True)), wanted)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found
