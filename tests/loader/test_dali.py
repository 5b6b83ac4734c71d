"""DALI, the real one, decodes what the loader has read ahead: each sample once an epoch, in the loader's order."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forebay.dali import Encoded, lists
from forebay.torch import DataLoader, ImageFolder

if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
    pytest.skip("needs nvidia.dali: uv sync --group frameworks", allow_module_level=True)


def test_dali_decodes_what_the_loader_reads(tmp_path: Path) -> None:
    from nvidia.dali import Pipeline, fn

    for number in range(11):
        folder = tmp_path / f"{number % 3}"
        folder.mkdir(exist_ok=True)
        pixels = np.full((8, 6 + number, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    images = ImageFolder(tmp_path)
    labels = images.targets
    loader = DataLoader(
        Encoded(images, labels.__getitem__), 4, shuffle=True, seed=3, num_workers=2, collate_fn=lists, drop_last=True, report=False
    )
    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None, seed=1)
    encoded, targets = fn.external_source(source=loader, num_outputs=2, cycle="raise")
    pipeline.set_outputs(fn.decoders.image(encoded, device="cpu"), targets)
    pipeline.build()
    wanted = DataLoader(images, 4, shuffle=True, seed=3, num_workers=2, collate_fn=list, drop_last=True, report=False)
    for epoch in range(2):
        wanted.set_epoch(epoch)
        for batch in wanted:
            decoded, found = pipeline.run()
            assert [int(np.array(one)) for one in found] == [label for _, label in batch]
            for one, (image, _) in zip(decoded, batch, strict=True):
                assert np.array_equal(np.array(one), np.asarray(image))
        with pytest.raises(StopIteration):
            pipeline.run()
        pipeline.reset()
