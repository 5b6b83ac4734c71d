"""The standard transforms of image training, drawing from a sample's own generator, so that they run in threads."""

import math
from typing import Any

import torch

__all__ = ["EvalCrop", "TrainCrop"]

TRIES = 10
"""To find a part within the image; then the largest one in its middle is taken."""


class TrainCrop:
    """A random part of an image, resized to a square and mirrored by chance; as bytes, which a device normalises faster than a processor.

    From one seed it is the very image of torchvision's `RandomResizedCrop(size, scale, ratio)`, `RandomHorizontalFlip(flip)` and
    `PILToTensor()`: it draws the same numbers, and cuts and resizes by Pillow as they do.

    Args:
        size: pixels of a side.
        scale: least and largest share of the image's area.
        ratio: least and largest ratio of the part's width to its height.
        flip: how likely it is mirrored; 0 draws nothing.

    Raises:
        ValueError: values that can't be.
    """

    def __init__(
        self, size: int = 224, *, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3), flip: float = 0.5
    ) -> None:
        if size < 1 or not 0 < scale[0] <= scale[1] or not 0 < ratio[0] <= ratio[1] or not 0 <= flip <= 1:
            raise ValueError(f"size={size}, scale={scale}, ratio={ratio}, flip={flip}: give a size from 1, ranges above 0, and a share")
        self.size, self.scale, self.ratio, self.flip = size, scale, ratio, flip
        # In the precision in which torchvision has them.
        self._log_ratio: list[float] = torch.log(torch.tensor(ratio)).tolist()

    def __call__(self, image: Any, rng: torch.Generator) -> torch.Tensor:  # noqa: ANN401  (a PIL image)
        """Bytes of shape (bands, size, size)."""
        left, top, width, height = self._part(image.width, image.height, rng)
        return _bytes(_resized(image.crop((left, top, left + width, top + height)), self.size, self.size), self._is_mirrored(rng))

    def _part(self, width: int, height: int, rng: torch.Generator) -> tuple[int, int, int, int]:
        """Left, top, width and height of a part of an image."""
        for _ in range(TRIES):
            area = width * height * torch.empty(1).uniform_(*self.scale, generator=rng).item()
            ratio = torch.exp(torch.empty(1).uniform_(*self._log_ratio, generator=rng)).item()
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = int(torch.randint(0, height - high + 1, (1,), generator=rng).item())
                left = int(torch.randint(0, width - wide + 1, (1,), generator=rng).item())
                return left, top, wide, high
        least, most = min(self.ratio), max(self.ratio)
        wide, high = width, height
        if width / height < least:
            high = round(width / least)
        elif width / height > most:
            wide = round(height * most)
        return (width - wide) // 2, (height - high) // 2, wide, high

    def _is_mirrored(self, rng: torch.Generator) -> bool:
        return self.flip > 0 and bool(torch.rand(1, generator=rng) < self.flip)


class EvalCrop:
    """The middle of an image, as bytes: the very image of torchvision's `Resize(resize)`, `CenterCrop(size)` and `PILToTensor()`.

    Args:
        size: pixels of a side.
        resize: pixels of the image's shorter side before.

    Raises:
        ValueError: the middle would be larger than the image.
    """

    def __init__(self, size: int = 224, *, resize: int = 256) -> None:
        if not 1 <= size <= resize:
            raise ValueError(f"size={size}, resize={resize}: give a size from 1 up to resize")
        self.size, self.resize = size, resize

    def __call__(self, image: Any, rng: torch.Generator | None = None) -> torch.Tensor:  # noqa: ANN401  (a PIL image)
        """Bytes of shape (bands, size, size)."""
        del rng
        shorter, longer = sorted(image.size)
        other = int(self.resize * longer / shorter)
        width, height = (self.resize, other) if image.width <= image.height else (other, self.resize)
        image = _resized(image, width, height)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return _bytes(image.crop((left, top, left + self.size, top + self.size)))


def _resized(image: Any, width: int, height: int) -> Any:  # noqa: ANN401  (PIL images)
    from PIL import Image

    return image.resize((width, height), Image.Resampling.BILINEAR)


def _bytes(image: Any, is_mirrored: bool = False) -> torch.Tensor:  # noqa: ANN401  (a PIL image)
    from PIL import Image

    if is_mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1)
