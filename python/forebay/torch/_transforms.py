"""The standard transforms of image training, drawing from a sample's own generator, so that they run in threads."""

import io
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from forebay import _core
from forebay.loader._given import check_whole, is_number, is_whole

__all__ = ["EvalCrop", "Normalize", "TrainCrop"]

TRIES = 10
"""Tries to find a part within the image; after them the largest part in its middle is taken."""


@dataclass(frozen=True)
class _ImageCut:
    """The cut of an image. Rectangles are left, top, width, height.

    Attributes:
        part: the part of the image that is resized.
        resized: width and height to which the part is resized.
        window: the part of the resized image that is kept.
        is_mirrored: whether the window is mirrored.
    """

    part: tuple[int, int, int, int]
    resized: tuple[int, int]
    window: tuple[int, int, int, int]
    is_mirrored: bool = False

    def of_image(self, image: Any) -> torch.Tensor:  # noqa: ANN401  (a PIL image)
        """Cuts an image by Pillow; returns bytes of shape (bands, height, width)."""
        from PIL import Image

        image = _part(image, self.part).resize(self.resized, Image.Resampling.BILINEAR)
        image = _part(image, self.window)
        if self.is_mirrored:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(image.height, image.width, -1).permute(2, 0, 1)

    def of_jpeg(self, data: memoryview) -> torch.Tensor | None:
        """Returns the pixels that `of_image` would, cut natively, of shape (3, height, width).

        None for a file that is left to Pillow.
        """
        _, _, width, height = self.window
        pixels = torch.empty((3, height, width), dtype=torch.uint8, device="cpu")
        shorter, narrower = self.part[3] - self.resized[1], self.part[2] - self.resized[0]
        done = _core.cut_image(
            data,
            self.part,
            self.resized,
            self.window,
            memoryview(cast(Any, pixels.view(-1).numpy())),
            # Of two passes the order shows in single levels.
            is_down_first=_pillow() >= 13 and shorter > max(0, 2 * narrower),
            is_mirrored=self.is_mirrored,
        )
        return pixels if done else None


class _Crop:
    """Cuts images."""

    def _cut(self, width: int, height: int, rng: torch.Generator | None) -> _ImageCut:
        raise NotImplementedError

    def __call__(self, image: Any, rng: torch.Generator | None = None) -> torch.Tensor:  # noqa: ANN401  (a PIL image)
        """Cuts an image that is decoded already.

        Args:
            image: an image of Pillow's.
            rng: the sample's generator; only a random part needs it.

        Returns:
            Bytes of shape (bands, size, size).

        Raises:
            TypeError: a random part is to be drawn, and there is no rng.
        """
        return self._cut(image.width, image.height, rng).of_image(image)

    def decode(self, data: memoryview, rng: torch.Generator | None = None) -> torch.Tensor:
        """Decodes and cuts an image file, as after `PIL.Image.open(data).convert("RGB")`.

        JPEG files are decoded only in part.

        Args:
            data: an image file, of any kind that Pillow reads.
            rng: the sample's generator; only a random part needs it.

        Returns:
            Bytes of shape (3, size, size).

        Raises:
            OSError: Pillow can't read it, or says that it is damaged.
            TypeError: a random part is to be drawn, and there is no rng.
        """
        whole = _whole(data)
        size = _core.image_size(whole)
        if size is None:
            image = opened(data)
            return self._cut(image.width, image.height, rng).of_image(image)
        cut = self._cut(*size, rng)
        pixels = cut.of_jpeg(whole)
        return cut.of_image(opened(data)) if pixels is None else pixels


class TrainCrop(_Crop):
    """A random part of an image, resized to a square and mirrored by chance, as bytes.

    From one seed it is the very image of torchvision's `RandomResizedCrop(size, scale, ratio)`,
    `RandomHorizontalFlip(flip)` and `PILToTensor()`: it draws the same numbers, and cuts and resizes by Pillow as they
    do.

    Args:
        size: pixels of a side.
        scale: least and largest share of the image's area.
        ratio: least and largest ratio of the part's width to its height.
        flip: probability that it is mirrored; 0 draws nothing.

    Raises:
        ValueError: values that can't be.
    """

    def __init__(
        self, size: int = 224, *, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3), flip: float = 0.5
    ) -> None:
        for name, least_and_most in (("scale", scale), ("ratio", ratio)):
            if not _is_range(least_and_most):
                raise ValueError(f"{name}={least_and_most!r}: give two numbers above 0, the least and the largest")
        if not is_number(flip) or not 0 <= flip <= 1:
            raise ValueError(f"flip={flip!r}: give a share, from 0 to 1")
        self.size, self.scale, self.ratio, self.flip = check_whole("size", size, 1), scale, ratio, flip
        # In torchvision's precision.
        self._log_ratio: list[float] = torch.log(torch.tensor(ratio, device="cpu")).tolist()

    def _cut(self, width: int, height: int, rng: torch.Generator | None) -> _ImageCut:
        if rng is None:
            raise TypeError("a random part needs rng=, a torch.Generator")
        part = self._part(width, height, rng)
        return _ImageCut(part, (self.size, self.size), (0, 0, self.size, self.size), self._is_mirrored(rng))

    def _part(self, width: int, height: int, rng: torch.Generator) -> tuple[int, int, int, int]:
        """Draws left, top, width and height of a part of an image."""
        for _ in range(TRIES):
            area = width * height * torch.empty(1, device="cpu").uniform_(*self.scale, generator=rng).item()
            ratio = torch.exp(torch.empty(1, device="cpu").uniform_(*self._log_ratio, generator=rng)).item()
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = int(torch.randint(0, height - high + 1, (1,), generator=rng, device="cpu").item())
                left = int(torch.randint(0, width - wide + 1, (1,), generator=rng, device="cpu").item())
                return left, top, wide, high
        least, most = min(self.ratio), max(self.ratio)
        wide, high = width, height
        if width / height < least:
            high = round(width / least)
        elif width / height > most:
            wide = round(height * most)
        return (width - wide) // 2, (height - high) // 2, wide, high

    def _is_mirrored(self, rng: torch.Generator) -> bool:
        return self.flip > 0 and bool(torch.rand(1, generator=rng, device="cpu") < self.flip)


class EvalCrop(_Crop):
    """The middle of an image, as bytes: that of torchvision's `Resize(resize)`, `CenterCrop(size)` and `PILToTensor()`.

    Args:
        size: pixels of a side.
        resize: pixels of the image's shorter side before.

    Raises:
        ValueError: the middle would be larger than the image.
    """

    def __init__(self, size: int = 224, *, resize: int = 256) -> None:
        if not is_whole(size) or not is_whole(resize) or not 1 <= size <= resize:
            raise ValueError(f"size={size!r}, resize={resize!r}: give whole numbers, size from 1 up to resize")
        self.size, self.resize = operator.index(size), operator.index(resize)

    def _cut(self, width: int, height: int, rng: torch.Generator | None) -> _ImageCut:
        del rng
        shorter, longer = sorted((width, height))
        other = int(self.resize * longer / shorter)
        resized = (self.resize, other) if width <= height else (other, self.resize)
        left, top = round((resized[0] - self.size) / 2), round((resized[1] - self.size) / 2)
        return _ImageCut((0, 0, width, height), resized, (left, top, self.size, self.size))


class Normalize(nn.Module):
    """Normalises images of bytes on the device where they are, so that a quarter of the bytes of float32 goes there.

    Put it before a network: `nn.Sequential(Normalize(mean, std), network)`. It adds nothing to the network's state. The
    numbers are bit by bit those of torchvision's `ToTensor` and `Normalize(mean, std)`.

    Args:
        mean: mean of each band, for numbers from 0 to 1.
        std: standard deviation of each band, for numbers from 0 to 1.
        dtype: type of the result; it is computed in float32.

    Raises:
        ValueError: `mean` and `std` differ in length, some std is not positive, or dtype is not a floating-point type.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        means, stds = _numbers(mean), _numbers(std)
        if not means or not stds or len(means) != len(stds) or not all(one > 0 for one in stds):
            raise ValueError(f"mean={mean!r}, std={std!r}: give a number for each band, and std above 0, such as std=[0.2, 0.2, 0.2]")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype={dtype!r}: give one of torch's floating-point types, such as torch.bfloat16")
        self.mean, self.std, self.dtype = means, stds, dtype
        # No buffers: these would lose digits in a network that is made into one of bfloat16.
        self._on: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalises images of shape (..., bands, height, width).

        Raises:
            TypeError: they are not of bytes: perhaps they were normalised before.
        """
        if images.dtype != torch.uint8:
            raise TypeError(f"images of {images.dtype}: Normalize takes bytes (torch.uint8), as TrainCrop and EvalCrop give them")
        device = images.device
        if device not in self._on:
            # A GPU multiplies by 1/255 where that is not a tensor of its own, and the last bit is another.
            numbers = ((255.0,), self.mean, self.std)
            self._on[device] = tuple(torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1) for values in numbers)
        whole, mean, std = self._on[device]
        return images.float().div_(whole).sub_(mean).div_(std).to(self.dtype)


def _is_range(value: object) -> bool:
    """Returns true for two numbers above 0, the least one first."""
    if not isinstance(value, Sequence) or len(value) != 2 or not all(is_number(one) for one in value):
        return False
    return bool(0 < value[0] <= value[1])


def _numbers(values: object) -> tuple[float, ...]:
    """Returns the numbers of a list, an array or a tensor; empty for anything else."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return ()
    try:
        return tuple(float(one) for one in values)
    except (TypeError, ValueError, RuntimeError):  # the last one is torch's, of a tensor in a tensor
        return ()


def _part(image: Any, rectangle: tuple[int, int, int, int]) -> Any:  # noqa: ANN401  (PIL images)
    left, top, width, height = rectangle
    return image.crop((left, top, left + width, top + height))


def opened(data: memoryview) -> Any:  # noqa: ANN401  (a PIL image)
    """Returns an image file's pixels, red, green and blue, by Pillow."""
    # Imported here: a program that does not decode need not have it.
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def _whole(data: memoryview) -> memoryview:
    """Returns the bytes in one piece, without a copy if they lie so."""
    return data if data.c_contiguous and data.format == "B" else memoryview(bytes(data))


@cache
def _pillow() -> int:
    """Returns the first number of Pillow's version."""
    import PIL

    return int(PIL.__version__.partition(".")[0])
