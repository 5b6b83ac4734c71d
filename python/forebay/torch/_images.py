"""Folders of images."""

import importlib.util
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from forebay.loader._folders import ClassFiles, listed
from forebay.loader._given import check_function
from forebay.loader._paths import read_whole
from forebay.loader.dataset import Extent
from forebay.torch._keyed import generators
from forebay.torch._transforms import EvalCrop, TrainCrop, opened

__all__ = ["ImageFolder"]


class ImageFolder(Dataset[Any]):
    """Images in one directory a class: samples, classes and order as `torchvision.datasets.ImageFolder` has them.

    It locates each image, so that `DataLoader` fetches it ahead. A transform with a parameter `rng` is given
    the sample's own `torch.Generator` by that name, and runs in threads; it must draw from nothing else. Any other runs
    in worker processes, where the global generators are seeded for each sample.

    Args:
        root: a directory with one directory a class; or an address such as `s3://BUCKET/PREFIX` with the same below it.
        transform: function from a PIL image (RGB), and `rng` if it has such a parameter, to a sample.
            `TrainCrop` and `EvalCrop` are given the file itself: they decode JPEG files only in part.
        target_transform: function of the class's number.

    Attributes:
        root: as given.
        classes: names of the classes, sorted.
        class_to_idx: number of each class, by its name.
        target_transform: as given.

    Raises:
        FileNotFoundError: there is no class, or one has no image.
        OSError: a directory can't be read, or a store does not list its objects.
        LoaderError: an object can't be read by its key.
        ValueError: a transform is not a function, or the address none of a prefix.
        ModuleNotFoundError: Pillow is not installed.
    """

    def __init__(
        self, root: str | Path, transform: Callable[..., Any] | None = None, target_transform: Callable[[int], Any] | None = None
    ) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise ModuleNotFoundError("ImageFolder decodes with Pillow, which is not installed: pip install pillow", name="PIL")
        if target_transform is not None:
            check_function("target_transform", target_transform)
        self.root = root
        self.transform = transform
        self.target_transform = target_transform
        self.classes, self._listing = listed(root)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    @property
    def transform(self) -> Callable[..., Any] | None:
        """The transform as given."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[..., Any] | None) -> None:
        if transform is not None:
            check_function("transform", transform)
        self._transform = transform
        # To ask takes longer than many a transform.
        self._takes_rng = _takes_rng(transform)
        # A class that is derived from one of them may do more with images, and would not be asked.
        self._crop: Any = transform if type(transform) in (TrainCrop, EvalCrop) else None

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, class's number) of each image: a list that is made when it is asked for. It may be set."""
        return [(self._listing.path(i), self._listing.number(i)) for i in range(len(self))]

    @samples.setter
    def samples(self, samples: Iterable[tuple[str, int]]) -> None:
        self._listing = ClassFiles(samples)

    @property
    def targets(self) -> list[int]:
        """The class's number of each image."""
        return self._listing.numbers()

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """(path, class's number) of each image: another name of `samples`, as torchvision has it."""
        return self.samples

    @property
    def keyed(self) -> bool:
        """See `Located`."""
        return self.target_transform is None and (self.transform is None or self._takes_rng)

    def __len__(self) -> int:
        return len(self._listing)

    def locate(self, i: int, /) -> Extent:
        return Extent(self._listing.path(i), mark=self._listing.mark(i))

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> Any:  # noqa: ANN401  (what the transform gives)
        """See `Located.decode`: the image and its class."""
        image: Any
        if self._crop is not None:
            image = self._crop.decode(data, rng)
        else:
            image = opened(data)
            if self.transform is not None:
                image = self.transform(image, rng=rng) if self._takes_rng else self.transform(image)
        target = self._listing.number(i)
        return image, target if self.target_transform is None else self.target_transform(target)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  (what the transform gives)
        """Returns an image and its class, without a loader.

        A transform that takes `rng` is given one seeded from torch's global generator.
        """
        rng = generators()(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())) if self._takes_rng else torch.Generator()
        return self.decode(memoryview(read_whole(self._listing.path(index), self._listing.mark(index))), index, rng)


def _takes_rng(transform: Callable[..., Any] | None) -> bool:
    if transform is None:
        return False
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):
        # Some functions of native code tell nothing of their parameters.
        return False
