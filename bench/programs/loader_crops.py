"""The standard image pipeline by several codecs.

A random part of a JPEG, resized to a square, mirrored by chance, as bytes.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

SIDE = 224
SCALE = (0.08, 1.0)
LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10


def part(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part, drawn as torchvision's `RandomResizedCrop` draws it."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)  # noqa: S311 # no secrets here
        ratio = math.exp(random.uniform(*LOG_RATIO))  # noqa: S311
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, width - wide), random.randint(0, height - high), wide, high  # noqa: S311
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def by_opencv(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decoded by simplejpeg, cut and resized by OpenCV: height, width, bands."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
    left, top, wide, high = part(pixels.shape[1], pixels.shape[0])
    resized = cv2.resize(pixels[top : top + high, left : left + wide], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(resized, 1) if random.random() < 0.5 else resized  # type: ignore[no-any-return]  # noqa: S311


def setup() -> None:
    """For whoever uses `by_opencv` in threads or processes of its own: OpenCV starts none."""
    import cv2

    cv2.setNumThreads(0)
