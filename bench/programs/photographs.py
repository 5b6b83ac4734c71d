"""Photographs that are decoded by Pillow, or by a timed wait in place of it."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import torch
from loader_data import ChecksumFiles
from PIL import Image
from torch.utils.data import Dataset

from forebay.loader import Extent
from forebay.loader.dataset import Located

SIDE = 64
"""Pixels of each side of a picture that training gets."""


class Photographs(Dataset[torch.Tensor]):
    """JPEG files that are decoded to small pictures; or by a wait of some seconds a byte, to checksum and size."""

    def __init__(self, root: str, wait_s_a_byte: float | None) -> None:
        self.files: Located = ChecksumFiles([root])
        self.wait_s_a_byte = wait_s_a_byte
        self.identity = f"{len(self)} photographs"

    def __len__(self) -> int:
        return len(self.files)

    def locate(self, i: int, /) -> Extent:
        """Returns the place of a sample: its file."""
        return self.files.locate(i)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401 # whatever the loader's generator is
        """Returns pixels, or checksum and size."""
        if self.wait_s_a_byte is None:
            return picture(data)
        time.sleep(self.wait_s_a_byte * len(data))
        return self.files.decode(data, i, rng)

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401
        with open(self.locate(i).path, "rb") as file:  # noqa: PTH123 # as most training programs do
            return self.decode(memoryview(file.read()), i, None)


def picture(data: memoryview) -> torch.Tensor:
    """Decodes a JPEG file, and makes it small."""
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
