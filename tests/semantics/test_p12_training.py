"""P12: a training has bit-identical losses through torch's loader and ours, over the same keyed samples."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler
from torchvision import transforms
from torchvision.models import resnet18
from torchvision.transforms.functional import pil_to_tensor

from forebay.loader import Located
from forebay.torch import DataLoader, ImageFolder, Keyed
from testbed.datasets import digits

SEED = 5
# The machine is busy, and sums must be split alike.
torch.set_num_threads(1)


def augmented(image: Image.Image, rng: torch.Generator) -> torch.Tensor:
    """Shifts and mirrors an image by chance."""
    pixels: torch.Tensor = pil_to_tensor(image).float() / 255
    down, right = torch.randint(-2, 3, (2,), generator=rng).tolist()
    pixels = pixels.roll((down, right), (1, 2))
    return pixels.flip(2) if torch.rand((), generator=rng) < 0.5 else pixels


STOCK = transforms.Compose([transforms.RandomCrop(32, padding=2), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    digits(folder, limit=60)
    return folder


def losses(loader: Iterable[Any]) -> list[float]:
    """Returns the losses of a ResNet-18 from the same start, over an epoch."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for pixels, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("transform", [augmented, STOCK], ids=["keyed", "stock"])
def test_p12_a_training_has_bit_identical_losses(transform: Callable[..., object], images: Path) -> None:
    dataset = ImageFolder(images, transform)
    assert isinstance(dataset, Located)
    assert dataset.keyed == (transform is augmented)
    keyed = Keyed(dataset, SEED)
    torchs = losses(TorchLoader(keyed, 16, sampler=DistributedSampler(keyed, 1, 0, seed=SEED)))
    assert len(torchs) == len(set(torchs)) == 4
    for workers in (0, 2):
        assert losses(DataLoader(dataset, 16, shuffle=True, seed=SEED, num_workers=workers, report=False)) == torchs
