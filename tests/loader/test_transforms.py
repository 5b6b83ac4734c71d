"""The standard transforms: torchvision's images, pixel by pixel, from the sample's own generator."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms

from forebay.torch import DataLoader, EvalCrop, ImageFolder, TrainCrop
from tests.loader.data import same

SIZES = [(500, 375), (64, 64), (1, 1), (100, 3), (3, 100), (31, 47), (224, 300)]


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    noise = random.Random(width * height).randbytes(width * height * 3)  # noqa: S311
    return Image.frombytes("RGB", (width, height), noise).convert(mode)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("scale", "ratio", "flip"), [((0.08, 1.0), (3 / 4, 4 / 3), 0.5), ((0.5, 0.5), (1.0, 1.0), 0.3), ((0.9, 1.0), (2.0, 3.0), 1.0)]
)
def test_random_parts_are_torchvisions(size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], flip: float) -> None:
    image = picture(*size)
    theirs = transforms.Compose(
        [transforms.RandomResizedCrop(32, scale, ratio), transforms.RandomHorizontalFlip(flip), transforms.PILToTensor()]
    )
    ours = TrainCrop(32, scale=scale, ratio=ratio, flip=flip)
    before = torch.get_rng_state()
    for key in range(12):
        torch.manual_seed(key)
        found = ours(image, torch.Generator().manual_seed(key))
        assert found.dtype == torch.uint8
        assert torch.equal(found, theirs(image)), key
    torch.set_rng_state(before)


def test_without_mirroring_nothing_is_drawn_for_it() -> None:
    rng, other = (torch.Generator().manual_seed(3) for _ in range(2))
    TrainCrop(8, flip=0)(picture(64, 64), rng)
    TrainCrop(8, flip=1)(picture(64, 64), other)
    torch.rand(1, generator=rng)
    assert torch.equal(rng.get_state(), other.get_state())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("resize", "crop"), [(40, 32), (33, 32), (32, 32)])
def test_middles_are_torchvisions(size: tuple[int, int], resize: int, crop: int) -> None:
    theirs = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(crop), transforms.PILToTensor()])
    for mode in ("RGB", "L"):
        image = picture(*size, mode)
        assert torch.equal(EvalCrop(crop, resize=resize)(image), theirs(image))


def test_they_run_in_threads_and_give_what_torchvisions_give_in_processes(tmp_path: Path) -> None:
    for number in range(12):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        picture(40 + 3 * number, 50).save(folder / f"{number}.png")
    pairs: list[Any] = [
        (
            TrainCrop(16),
            transforms.Compose([transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]),
        ),
        (EvalCrop(16, resize=20), transforms.Compose([transforms.Resize(20), transforms.CenterCrop(16), transforms.PILToTensor()])),
    ]
    for ours, theirs in pairs:
        threads, processes = ImageFolder(tmp_path, ours), ImageFolder(tmp_path, theirs)
        assert (threads.keyed, processes.keyed) == (True, False)
        batches = [DataLoader(images, 4, shuffle=True, seed=1, num_workers=2, report=False) for images in (threads, processes)]
        assert same(*batches) == 3


@pytest.mark.parametrize(
    "values", [{"size": 0}, {"scale": (0.0, 1.0)}, {"scale": (1.0, 0.5)}, {"ratio": (0.0, 1.0)}, {"ratio": (2.0, 1.0)}, {"flip": 1.5}]
)
def test_values_that_can_not_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))}="):
        TrainCrop(**values)


@pytest.mark.parametrize(("size", "resize"), [(0, 10), (11, 10)])
def test_middles_that_can_not_be_are_refused(size: int, resize: int) -> None:
    with pytest.raises(ValueError, match="from 1 up to resize"):
        EvalCrop(size, resize=resize)
