"""The standard transforms: torchvision's images, pixel by pixel, from the sample's own generator."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms

from forebay.torch import DataLoader, EvalCrop, ImageFolder, Normalize, TrainCrop
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


def test_a_random_part_needs_a_generator() -> None:
    with pytest.raises(TypeError, match="a random part needs rng="):
        TrainCrop(8)(picture(8, 8))
    with pytest.raises(TypeError, match="a random part needs rng="):
        TrainCrop(8).decode(memoryview(FILES["JPEG"](8, 8)))


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
    ("values", "wrong"),
    [
        ({"size": 0}, "size=0: give a whole number, 1 or more"),
        ({"size": "x"}, "size='x': give a whole number"),
        ({"size": 8.5}, "size=8.5: give a whole number"),
        ({"scale": (0.0, 1.0)}, r"scale=\(0\.0, 1\.0\): give two numbers above 0, the least and the largest"),
        ({"scale": (1.0, 0.5)}, "scale="),
        ({"scale": 0.5}, r"scale=0\.5: give two numbers"),
        ({"scale": ("a", "b")}, "scale="),
        ({"ratio": (0.0, 1.0)}, "ratio="),
        ({"ratio": (2.0, 1.0)}, "ratio="),
        ({"flip": 1.5}, r"flip=1\.5: give a share, from 0 to 1"),
        ({"flip": "x"}, "flip='x'"),
    ],
)
def test_values_that_can_not_be_are_refused(values: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        TrainCrop(**values)


@pytest.mark.parametrize(("size", "resize"), [(0, 10), (11, 10), ("x", 10), (8, None)])
def test_middles_that_can_not_be_are_refused(size: int, resize: int) -> None:
    with pytest.raises(ValueError, match="from 1 up to resize"):
        EvalCrop(size, resize=resize)


def file_of(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


FILES: dict[str, Callable[[int, int], bytes]] = {
    "JPEG": lambda width, height: file_of(picture(width, height), quality=90),
    "progressive": lambda width, height: file_of(picture(width, height), progressive=True, subsampling="4:4:4"),
    "grey": lambda width, height: file_of(picture(width, height, "L")),
    "four colours": lambda width, height: file_of(picture(width, height, "CMYK")),
    "PNG": lambda width, height: file_of(picture(width, height), "PNG"),
    # What is missing is seen only when it is decoded: the part is drawn already, and Pillow has to take that one.
    "damaged": lambda width, height: damaged(file_of(picture(width, height), restart_marker_blocks=1)),
}


def damaged(jpeg: bytes) -> bytes:
    """Without its first restart marker, if it has one; Pillow does not mind."""
    begin = jpeg.index(b"\xff\xda")
    place = jpeg.find(b"\xff\xd0", begin)
    return jpeg if place < 0 else jpeg[:place] + jpeg[place + 2 :]


@pytest.mark.parametrize("kind", sorted(FILES))
@pytest.mark.parametrize("size", SIZES)
def test_files_become_torchvisions_images(kind: str, size: tuple[int, int]) -> None:
    data = FILES[kind](*size)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    random_part = transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
    middle = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.PILToTensor()])
    before = torch.get_rng_state()
    for key in range(8):
        torch.manual_seed(key)
        assert torch.equal(TrainCrop(32).decode(memoryview(data), torch.Generator().manual_seed(key)), random_part(image)), key
    torch.set_rng_state(before)
    assert torch.equal(EvalCrop(32, resize=40).decode(memoryview(data)), middle(image))


def test_jpeg_files_are_decoded_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError

    jpeg, png = FILES["JPEG"](64, 48), FILES["PNG"](64, 48)
    monkeypatch.setattr(Image, "open", refused)
    rng = torch.Generator()
    assert TrainCrop(8).decode(memoryview(jpeg), rng).shape == EvalCrop(8, resize=9).decode(memoryview(jpeg), rng).shape == (3, 8, 8)
    with pytest.raises(AssertionError):
        TrainCrop(8).decode(memoryview(png), rng)


def test_views_of_any_memory_are_decoded() -> None:
    jpeg = FILES["JPEG"](64, 48)
    wanted = EvalCrop(8, resize=9).decode(memoryview(jpeg))
    for view in (memoryview(b"-" + jpeg)[1:], memoryview(bytearray(jpeg)), memoryview(jpeg[::-1])[::-1]):
        assert torch.equal(EvalCrop(8, resize=9).decode(view), wanted)


@pytest.mark.parametrize("length", [0, 2, 500, -2])
def test_a_file_that_was_cut_fails_in_pillows_words(length: int) -> None:
    data = memoryview(FILES["JPEG"](64, 48)[:length])
    with pytest.raises(OSError, match=r"image file|Truncated") as theirs:
        Image.open(io.BytesIO(data)).convert("RGB")
    for crop in (TrainCrop(8), EvalCrop(8, resize=9)):
        with pytest.raises(type(theirs.value)):
            crop.decode(data, torch.Generator())


def test_image_folders_hand_files_to_them_and_images_to_what_is_derived_from_them(tmp_path: Path) -> None:
    class Darker(EvalCrop):
        def __call__(self, image: Image.Image, rng: torch.Generator | None = None) -> torch.Tensor:
            return super().__call__(image, rng) // 2

    (tmp_path / "class").mkdir()
    for number in range(6):
        (tmp_path / f"class/{number}.jpg").write_bytes(FILES["JPEG"](50 + number, 40))
    crop = EvalCrop(16, resize=20)
    images, darker = (DataLoader(ImageFolder(tmp_path, of), 6, num_workers=2, report=False) for of in (crop, Darker(16, resize=20)))
    ((found, _),), ((halves, _),) = images, darker
    wanted = torch.stack([crop(Image.open(tmp_path / f"class/{number}.jpg").convert("RGB")) for number in range(6)])
    assert torch.equal(found, wanted)
    assert torch.equal(halves, wanted // 2)


def test_bytes_become_torchvisions_numbers() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    images = [picture(20, 30 + size).resize((16, 16)) for size in range(4)]
    batch = torch.stack([EvalCrop(16, resize=16)(image) for image in images])
    wanted = torch.stack([theirs(image) for image in images])
    network = torch.nn.Sequential(Normalize(mean, std), torch.nn.Identity())
    assert torch.equal(network(batch), wanted)
    assert torch.equal(network.bfloat16()(batch), wanted), "whatever the network is made into"
    assert torch.equal(network(batch[0]), wanted[0])
    assert torch.equal(Normalize(mean, std, torch.bfloat16)(batch), wanted.bfloat16())
    assert network.state_dict() == {}
    with pytest.raises(TypeError, match=r"images of torch\.float32: Normalize takes bytes"):
        network(wanted)
    of_both: tuple[Any, ...] = (0.5, torch.tensor(0.5))
    for number in of_both:
        assert Normalize([number], [number]).std == (0.5,)


@pytest.mark.parametrize(
    "wrong",
    [
        ((), ()),
        ((0.5,), (0.5, 0.5)),
        ((0.5,), (0.0,)),
        ((0.5,), 1),
        (0.5, 0.5),
        ("5", "5"),
        ((0.5,), ("a",)),
        (torch.ones(1, 2), torch.ones(1)),
    ],
    ids=repr,
)
def test_numbers_that_can_not_be_are_refused(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="give a number for each band, and std above 0"):
        Normalize(*wrong)


@pytest.mark.parametrize("dtype", [torch.uint8, "float32", None], ids=repr)
def test_types_that_can_not_be_are_refused(dtype: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="give one of torch's floating-point types"):
        Normalize((0.5,), (0.5,), dtype)
