"""DALI, the real one, decodes what the loader has read ahead, or is the loader's `decode`; on the processor."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from forebay.dali import Decoded, Encoded, external_source, lists
from forebay.torch import DataLoader, ImageFolder
from tests.loader.node import LoaderNode

if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
    pytest.skip("needs nvidia.dali: uv sync --group frameworks", allow_module_level=True)

OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": 2, "drop_last": True, "report": False}


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    for number in range(11):
        folder = tmp_path / f"images/{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 6 + number, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return ImageFolder(tmp_path / "images")


@pytest.mark.parametrize("cache", [{}, {"cache": "ram=1M"}], ids=["alone", "cache"])
def test_dali_decodes_what_the_loader_reads(images: ImageFolder, node: LoaderNode, cache: dict[str, Any]) -> None:
    from nvidia.dali import Pipeline, fn

    loader = DataLoader(Encoded(images, images.targets.__getitem__), 4, collate_fn=lists, **cache, **OPTIONS)
    are_of_the_agent: list[bool] = []

    def seen(data: np.ndarray) -> np.ndarray:
        are_of_the_agent.append(is_of_the_agent(data.ctypes.data))
        return data

    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None, seed=1)
    with pipeline:
        encoded, targets = external_source(loader)
        pipeline.set_outputs(fn.decoders.image(encoded, device="cpu"), targets, fn.python_function(encoded, function=seen))
    pipeline.build()
    wanted = DataLoader(images, 4, collate_fn=list, **OPTIONS)
    for epoch in range(2):
        wanted.set_epoch(epoch)
        for batch in wanted:
            decoded, found, _ = pipeline.run()
            assert [int(np.array(one)) for one in found] == [label for _, label in batch]
            for one, (image, _) in zip(decoded, batch, strict=True):
                assert np.array_equal(np.array(one), np.asarray(image))
        with pytest.raises(StopIteration):
            pipeline.run()
        pipeline.reset()
    assert set(are_of_the_agent) == {bool(cache)}, "DALI's operators read the agent's memory"


def is_of_the_agent(address: int) -> bool:
    """Returns true if an address lies in the memory that the agent shares with this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, end = line.partition(" ")[0].partition("-")
        if int(first, 16) <= address < int(end, 16):
            return "forebay-arena" in line
    return False


def test_dali_is_the_loader_s_decode(images: ImageFolder, node: LoaderNode) -> None:
    from nvidia.dali import fn

    def graph(encoded: Any, numbers: Any) -> Any:  # noqa: ANN401  (nodes of DALI's)
        return fn.crop(fn.decoders.image(encoded, device="cpu"), crop=(4, 4), crop_pos_x=numbers[0], crop_pos_y=0.0)

    dataset = Decoded(images, graph, images.targets.__getitem__, draws=1)
    plain = DataLoader(dataset, 4, **OPTIONS | {"num_workers": 0})
    for loader in (DataLoader(dataset, 4, **OPTIONS), DataLoader(dataset, 4, cache="ram=1M", **OPTIONS)):
        for epoch in range(2):
            plain.set_epoch(epoch)
            loader.set_epoch(epoch)
            pairs = list(zip(plain, loader, strict=True))
            assert len(pairs) == 2
            for (crops, labels), (found, of) in pairs:
                assert torch.equal(labels, of)
                assert torch.equal(crops, found)
                assert crops.shape == (4, 4, 4, 3)
    wanted = DataLoader(images, 4, collate_fn=list, **OPTIONS)
    for batch, (crops, _) in zip(wanted, DataLoader(dataset, 4, **OPTIONS), strict=True):
        assert [int(crop[0, 0, 0]) for crop in crops] == [int(np.asarray(image)[0, 0, 0]) for image, _ in batch]
