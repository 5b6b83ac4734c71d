"""Folders of images: the same samples by the same numbers as torchvision's."""

import io
import operator
import os
import random
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import datasets

from forebay.loader import Extent
from forebay.torch import DataLoader, ImageFolder


def picture(path: Path, colour: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = io.BytesIO()
    Image.new("RGB", (3, 2), (colour, 0, 255 - colour)).convert(mode).save(held, "PNG")
    path.write_bytes(held.getvalue())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Depths, links, endings and modes of many kinds."""
    root = tmp_path / "data"
    names = ["b/2.png", "b/10.PNG", "b/deep/er/1.png", "a/x.jpeg", "a/y.png", "a/Y.png", "c d/1.webp", "c d/.hidden.png"]
    for number, name in enumerate(names):
        picture(root / name, number * 20, ["RGB", "L", "RGBA"][number % 3])
    for name in ("b/notes.txt", "a/image.png.bak", "loose.png"):
        (root / name).write_text("no image")
    picture(tmp_path / "elsewhere/1.png", 200)
    (root / "b/linked").symlink_to(tmp_path / "elsewhere")
    (root / "linked class").symlink_to(tmp_path / "elsewhere")
    return root


def test_it_is_torchvisions(folder: Path) -> None:
    for root in (folder, str(folder), f"{folder}/"):
        ours, theirs = ImageFolder(root), datasets.ImageFolder(root)
        assert (ours.samples, ours.imgs, ours.targets) == (theirs.samples, theirs.imgs, theirs.targets)
        assert (ours.classes, ours.class_to_idx, len(ours)) == (theirs.classes, theirs.class_to_idx, len(theirs))
        for (image, number), (their_image, their_number) in zip((ours[i] for i in range(len(ours))), theirs, strict=True):
            assert (image.mode, image.tobytes(), number) == (their_image.mode, their_image.tobytes(), their_number)


def test_it_is_torchvisions_where_it_was_told_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for root in ("data", "./data"):
        assert ImageFolder(root).samples == datasets.ImageFolder(root).samples


def test_it_says_where_images_lie(folder: Path) -> None:
    dataset = ImageFolder(folder)
    assert [dataset.locate(i) for i in range(len(dataset))] == [Extent(path) for path, _ in dataset.samples]


def test_samples_may_be_set(folder: Path) -> None:
    dataset = ImageFolder(folder)
    some = [(str(folder / "b/2.png"), 7), ("loose", 0), ("/top", -1)]
    dataset.samples = some
    assert (dataset.samples, dataset.targets, len(dataset)) == (some, [7, 0, -1], 3)
    assert dataset[0][1] == 7
    assert [dataset.locate(i).path for i in (-1, 2)] == ["/top", "/top"]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"file {wrong}: there are 3"):
            dataset.locate(wrong)


def test_names_need_not_be_text(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    name = os.fsencode(tmp_path / "a") + b"/\xff\xc3\xa9.png"
    picture(Path(os.fsdecode(name)), 1)
    dataset = ImageFolder(tmp_path)
    assert os.fsencode(dataset.locate(0).path) == name
    assert dataset[0][0].size == (3, 2)


def with_rng(image: Image.Image, rng: torch.Generator) -> tuple[tuple[int, int], torch.Tensor]:
    return image.size, torch.rand(1, generator=rng)


def test_a_transform_that_takes_rng_is_given_the_samples(folder: Path) -> None:
    dataset = ImageFolder(folder, with_rng)
    assert dataset.keyed
    (size, drawn), _ = dataset.decode(memoryview((folder / "a/y.png").read_bytes()), 0, torch.Generator().manual_seed(3))
    assert size == (3, 2)
    assert drawn == torch.rand(1, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(1)
    first = dataset[0][0][1]
    assert dataset[0][0][1] != first
    torch.manual_seed(1)
    assert dataset[0][0][1] == first


def without_rng(image: Image.Image) -> tuple[tuple[int, int], float]:
    return image.size, random.random()  # noqa: S311


def test_any_other_transform_runs_in_processes(folder: Path) -> None:
    plain = ImageFolder(folder, without_rng, operator.neg)
    assert not plain.keyed
    assert plain[-1][0][0] == (3, 2)
    assert plain[-1][1] == -3
    assert ImageFolder(folder).keyed
    assert not ImageFolder(folder, target_transform=operator.neg).keyed
    # Of which nothing can be told.
    assert not ImageFolder(folder, dict.fromkeys).keyed
    batches = list(DataLoader(plain, 4, num_workers=2, report=False))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]


def test_transforms_may_be_set_later(folder: Path) -> None:
    dataset = ImageFolder(folder)
    dataset.transform = with_rng
    assert dataset.transform is with_rng
    assert dataset[0][0][0] == (3, 2)
    with pytest.raises(ValueError, match="transform='crop': give a function"):
        dataset.transform = "crop"  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["transform", "target_transform"])
def test_transforms_that_are_no_functions_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}=5: give a function"):
        ImageFolder(folder, **{name: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "wrong"), [([], "no class is here"), (["a/x.png", "b/x.txt", "c/"], r"no file ends in \.jpg, .* in b, c")]
)
def test_folders_without_images_are_refused(make: list[str], wrong: str, tmp_path: Path) -> None:
    for name in make:
        path = tmp_path / name
        if name.endswith("/"):
            path.mkdir()
        else:
            picture(path, 1)
    with pytest.raises(FileNotFoundError, match=wrong):
        ImageFolder(tmp_path)


def test_without_pillow_it_is_told_that_pillow_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="ImageFolder decodes with Pillow, which is not installed: pip install pillow"):
        ImageFolder(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageFolder(tmp_path / "nowhere")
