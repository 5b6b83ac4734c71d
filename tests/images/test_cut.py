"""Cuts by the native decoder are Pillow's, pixel by pixel; what it does not decode it leaves alone."""

import io
import math
import platform
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay import _core

Rectangle = tuple[int, int, int, int]


@cache
def picture(width: int, height: int) -> Image.Image:
    """Waves, edges and noise."""
    noise = random.Random(width * height)  # noqa: S311
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            edge = 90 if (x // 9 + y // 6) % 2 else 0
            wave = 80 + 70 * math.sin(x * y / 50)
            pixels += bytes((edge + noise.randrange(20), int(wave) + noise.randrange(30), (x * 5 + y) % 256))
    return Image.frombytes("RGB", (width, height), bytes(pixels))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def is_down_first(part: Rectangle, resized: tuple[int, int]) -> bool:
    """Returns True if the installed Pillow resizes columns before rows."""
    shorter, narrower = part[3] - resized[1], part[2] - resized[0]
    return int(PIL.__version__.split(".")[0]) >= 13 and shorter > max(0, 2 * narrower)


def native(data: bytes, part: Rectangle, resized: tuple[int, int], window: Rectangle, is_mirrored: bool = False) -> bytes | None:
    """Planes of red, green and blue; None if it leaves the image alone."""
    pixels = bytearray(3 * window[2] * window[3])
    done = _core.cut_image(data, part, resized, window, pixels, is_down_first=is_down_first(part, resized), is_mirrored=is_mirrored)
    return bytes(pixels) if done else None


def pillows(data: bytes, part: Rectangle, resized: tuple[int, int], window: Rectangle, is_mirrored: bool = False) -> bytes:
    """The same, by Pillow."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    left, top, width, height = part
    image = image.crop((left, top, left + width, top + height)).resize(resized, Image.Resampling.BILINEAR)
    left, top, width, height = window
    image = image.crop((left, top, left + width, top + height))
    if is_mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return b"".join(band.tobytes() for band in image.split())


def all_of(image: Image.Image) -> tuple[Rectangle, tuple[int, int], Rectangle]:
    area = (0, 0, *image.size)
    return area, image.size, area


@st.composite
def within(draw: st.DrawFn, size: tuple[int, int]) -> Rectangle:
    width, height = (draw(st.integers(1, end)) for end in size)
    return draw(st.integers(0, size[0] - width)), draw(st.integers(0, size[1] - height)), width, height


CODINGS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4", "quality": 100},
    "coarse": {"quality": 5},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3, "optimize": True},
}


@settings(max_examples=150, deadline=None)
@given(data=st.data(), coding=st.sampled_from(sorted(CODINGS)), mode=st.sampled_from(["RGB", "RGB", "L"]), is_mirrored=st.booleans())
def test_pixels_are_pillows(data: st.DataObject, coding: str, mode: str, is_mirrored: bool) -> None:
    size = data.draw(st.sampled_from([(160, 117), (64, 200), (97, 33), (8, 8), (1, 1), (1, 70), (70, 1)]))
    image = encoded(picture(*size).convert(mode), **CODINGS[coding])
    part = data.draw(within(size))
    resized = data.draw(st.tuples(st.integers(1, 80), st.integers(1, 80)))
    window = data.draw(within(resized))
    assert native(image, part, resized, window, is_mirrored) == pillows(image, part, resized, window, is_mirrored)


def test_a_sample_of_training_is_pillows() -> None:
    image = encoded(picture(500, 375), quality=92)
    for part in [(0, 0, 500, 375), (37, 21, 401, 300), (250, 100, 130, 110), (499, 374, 1, 1)]:
        window = (0, 0, 224, 224)
        assert native(image, part, (224, 224), window, True) == pillows(image, part, (224, 224), window, True), part


def test_how_a_camera_was_held_does_not_matter() -> None:
    """As torchvision's: neither turns an image."""
    image = picture(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(image, exif=exif)
    assert _core.image_size(data) == (40, 30)
    assert native(data, *all_of(image)) == pillows(data, *all_of(image))


def left_alone() -> Iterator[Any]:
    image = picture(40, 30)
    jpeg = encoded(image)
    yield pytest.param(encoded(image.convert("CMYK")), id="four colours")
    yield pytest.param(encoded(image, "PNG"), id="PNG")
    yield pytest.param(encoded(image, "WEBP"), id="WebP")
    yield pytest.param(encoded(image, "GIF"), id="GIF")
    yield pytest.param(b"", id="nothing")
    yield pytest.param(b"\xff\xd8\xff", id="three bytes")
    yield pytest.param(jpeg[: len(jpeg) // 2], id="half")
    yield pytest.param(jpeg[:-2], id="without its end")
    yield pytest.param(jpeg[:300] + b"\xff\xd9", id="an end too early")
    size = jpeg.index(b"\xff\xc0") + 5
    yield pytest.param(jpeg[:size] + b"\xff\xdc\xff\xdc" + jpeg[size + 4 :], id="huge")


@pytest.mark.parametrize("data", list(left_alone()))
def test_the_rest_is_left_alone(data: bytes) -> None:
    area = (0, 0, 4, 4)
    assert native(data, area, (4, 4), area) is None


def test_damage_above_the_cut_is_seen() -> None:
    """Pillow takes such a file with a guess at what is missing: its pixels, not others."""
    data = bytearray(encoded(picture(160, 117)))
    begin = data.index(b"\xff\xda") + 200
    data[begin : begin + 40] = bytes(40)
    part = (0, 80, 160, 37)
    found = native(bytes(data), part, (20, 20), (0, 0, 20, 20))
    assert found in (None, pillows(bytes(data), part, (20, 20), (0, 0, 20, 20)))


@pytest.mark.parametrize(
    ("part", "resized", "window", "length"),
    [
        ((0, 0, 41, 30), (8, 8), (0, 0, 8, 8), 192),
        ((0, 0, 0, 30), (8, 8), (0, 0, 8, 8), 192),
        ((0, 0, 40, 30), (8, 8), (1, 0, 8, 8), 192),
        ((0, 0, 40, 30), (8, 8), (0, 0, 8, 8), 191),
    ],
)
def test_what_can_not_be_is_an_error(part: Rectangle, resized: tuple[int, int], window: Rectangle, length: int) -> None:
    pixels = bytearray(length)
    with pytest.raises(ValueError, match=r"impossible cut|the result takes 192 writable bytes in one piece, and the buffer has 191"):
        _core.cut_image(encoded(picture(40, 30)), part, resized, window, pixels, is_down_first=False, is_mirrored=False)


def test_it_decodes_with_vectors() -> None:
    if platform.machine() == "x86_64" and shutil.which("nasm") is None:
        pytest.skip("no nasm: libjpeg-turbo is built without its vector code")
    code = Path(_core.__file__).read_bytes()
    assert (b"jsimd_idct_islow_avx2" if platform.machine() == "x86_64" else b"jsimd_idct_islow_neon") in code
