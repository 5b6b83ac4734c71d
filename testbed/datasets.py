"""Real images to train on and to measure with, from Debian's packages, unpacked without root.

    python -m testbed.datasets fashion-mnist OUT --train 600
    python -m testbed.datasets photos OUT --count 3000
    python -m testbed.datasets shards OUT --count 8
    python -m testbed.datasets digits OUT

Packages are fetched once into `$XDG_CACHE_HOME/forebay-testbed` (`~/.cache/forebay-testbed`). What is made depends on
the arguments alone: the same seed gives the same crops.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from testbed.testbed import TestbedError

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

MIB = 1024 * 1024
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")

# Photographs only: the packages hold drawings too, which compress to nothing.
PHOTOGRAPHS = {
    "mate-backgrounds": ["usr/share/backgrounds/mate/nature/*.jpg"],
    "plasma-workspace-wallpapers": [
        f"usr/share/wallpapers/{name}/contents/images/2560x1600.jpg"
        for name in ("Autumn", "ColdRipple", "ColorfulCups", "EveningGlow", "FallenLeaf", "OneStandsOut")
    ],
}

_QUALITY = 88
_PILOT_SIDE = 320
_PILOT_CROPS = 12
# Shards are filled from one pool of this many crops, each shard in its own order.
_POOL_CROPS = 2000
_FETCH_S = 600


def cache_directory() -> Path:
    """Where packages are kept; made if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "forebay-testbed"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def photos(out: str | Path, count: int, *, size_kb: float = 30, per_dir: int | None = 1000, seed: int = 0) -> None:
    """JPEG files, random crops of real photographs, of `size_kb` (1000 bytes) on average.

    They lie in directories of `per_dir`; if that is None, in one for each photograph, which then is their class.
    """
    cropper = Cropper(size_kb, seed)
    for number, jpeg in enumerate(progress(cropper.crops(count), "photos", count)):
        directory = Path(out) / f"{number // per_dir if per_dir else cropper.photograph(number):04d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:06d}.jpg").write_bytes(jpeg)


def shards(out: str | Path, count: int, *, mib: int = 64, size_kb: float = 30, seed: int = 0) -> None:
    """Tar files of exactly `mib` MiB, filled with JPEG files as `photos` makes them."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    pool_size = min(_POOL_CROPS, int(mib * MIB / (size_kb * 1000)) + 1)
    pool = list(progress(Cropper(size_kb, seed).crops(pool_size), "crops", pool_size))
    for number in progress(range(count), "shards", count):
        order = random.Random(f"{seed}/shard/{number}")  # noqa: S311
        _write_shard(out / f"shard-{number:04d}.tar", mib * MIB, pool, order)


def _write_shard(path: Path, size: int, pool: list[bytes], order: random.Random) -> None:
    room = size - 2 * tarfile.BLOCKSIZE
    with path.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for member in range(size // tarfile.BLOCKSIZE):
                jpeg = order.choice(pool)
                room -= tarfile.BLOCKSIZE * (1 + -(-len(jpeg) // tarfile.BLOCKSIZE))
                if room < 0:
                    break
                info = tarfile.TarInfo(f"{member:06d}.jpg")
                info.size = len(jpeg)
                tar.addfile(info, io.BytesIO(jpeg))
        # The blocks of zeros that end a tar file may be as many as one likes.
        file.truncate(size)


class Cropper:
    """Cuts JPEG files of a wanted average size out of photographs."""

    def __init__(self, size_kb: float, seed: int) -> None:
        self._seed = seed
        self._photographs = _photographs()
        # For each photograph the side at which its crops have the wanted size, found by trying: bytes grow with the
        # area.
        self._sides = [self._side(index, size_kb * 1000) for index in range(len(self._photographs))]

    def _side(self, index: int, size: float) -> int:
        trial = random.Random(f"{self._seed}/side/{index}")  # noqa: S311
        side = _PILOT_SIDE
        for _ in range(2):
            mean = sum(len(self._crop(index, side, trial)) for _ in range(_PILOT_CROPS)) / _PILOT_CROPS
            side = min(round(side * (size / mean) ** 0.5), *self._photographs[index].size)
        return side

    def _crop(self, index: int, side: int, choice: random.Random) -> bytes:
        photograph = self._photographs[index]
        left = choice.randrange(photograph.width - side + 1)
        top = choice.randrange(photograph.height - side + 1)
        out = io.BytesIO()
        photograph.crop((left, top, left + side, top + side)).save(out, "JPEG", quality=_QUALITY)
        return out.getvalue()

    def photograph(self, number: int) -> int:
        """Which photograph a crop is cut out of."""
        return self._drawn(number)[0]

    def _drawn(self, number: int) -> tuple[int, random.Random]:
        choice = random.Random(f"{self._seed}/{number}")  # noqa: S311
        return choice.randrange(len(self._photographs)), choice

    def crops(self, count: int) -> Iterator[bytes]:
        """The first `count` crops. Several are encoded at once; each depends on the seed and its number alone."""

        def numbered(number: int) -> bytes:
            index, choice = self._drawn(number)
            return self._crop(index, self._sides[index], choice)

        numbers = iter(range(count))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # A window, so that crops which nobody has written yet do not pile up in memory.
            while window := list(islice(numbers, 256)):
                yield from pool.map(numbered, window)


def _photographs() -> list[Image]:
    try:
        from PIL import Image
    except ImportError:
        raise TestbedError("photographs need Pillow (pip install pillow)") from None
    paths = [path for package, globs in PHOTOGRAPHS.items() for glob in globs for path in sorted(unpacked(package).glob(glob))]
    if not paths:
        raise TestbedError("the packages hold none of the photographs that are known of")
    found = []
    for path in progress(paths, "photographs", len(paths)):
        with Image.open(path) as image:
            found.append(image.convert("RGB"))
    return found


def fashion_mnist(out: str | Path, *, train_per_class: int | None = None, limit: int | None = None, split: str = "train") -> int:
    """Fashion-MNIST as PNG files, one directory a class (torchvision's ImageFolder).

    Args:
        out: where to put the directories.
        train_per_class: how many of each class.
        limit: how many in all, in the order of the data set.
        split: "train" (60,000 images) or "test" (10,000).

    Returns:
        How many images were written.
    """
    prefix = {"train": "train", "test": "t10k"}[split]
    where = Path("/usr/share/datasets/fashion-mnist")
    if not where.is_dir():
        where = unpacked("dataset-fashion-mnist") / "usr/share/datasets/fashion-mnist"
    images = gzip.decompress((where / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((where / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    magic, count, height, width = struct.unpack_from(">4I", images)
    if magic != 0x803 or struct.unpack_from(">2I", labels) != (0x801, count):
        raise TestbedError(f"{where}: not the files of Fashion-MNIST")
    taken = [0] * len(FASHION_CLASSES)

    def wanted() -> Iterator[tuple[int, int]]:
        for number, label in enumerate(labels[8:]):
            if train_per_class is None or taken[label] < train_per_class:
                taken[label] += 1
                yield number, label

    total = min(count, limit or count, (train_per_class or count) * len(FASHION_CLASSES))
    for name in FASHION_CLASSES:
        (Path(out) / name).mkdir(parents=True, exist_ok=True)
    written = 0
    for number, label in progress(islice(wanted(), limit), "images", total):
        start = 16 + number * height * width
        png = grey_png(images[start : start + height * width], width, height)
        (Path(out) / FASHION_CLASSES[label] / f"{number:05d}.png").write_bytes(png)
        written += 1
    return written


def digits(out: str | Path, *, scale: int = 4, limit: int | None = None) -> int:
    """scikit-learn's 1,797 handwritten digits, or the first of them, as PNG files, one directory a class.

    Each pixel is drawn `scale` times as wide and high.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise TestbedError("the digits need scikit-learn (pip install scikit-learn)") from None
    bunch = load_digits()
    images, labels = bunch.images[:limit], bunch.target[:limit]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        rows = [bytes(min(255, int(level) * 16) for level in row for _ in range(scale)) for row in image]
        pixels = b"".join(row * scale for row in rows)
        directory = Path(out) / str(label)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:04d}.png").write_bytes(grey_png(pixels, len(rows[0]), len(rows) * scale))
    return len(labels)


def grey_png(pixels: bytes, width: int, height: int) -> bytes:
    """A PNG file of 8-bit grey levels, written without any library."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    # Each row says first how it was filtered: not at all.
    rows = b"".join(b"\0" + pixels[row * width : (row + 1) * width] for row in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def unpacked(package: str) -> Path:
    """A Debian package's files, fetched and unpacked once, without root and without installing anything."""
    place = cache_directory() / package
    if place.is_dir():
        return place
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise TestbedError(f"{package} comes from Debian's archive, and there is no {tool} here")
    print(f"fetching {package} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix=f".{package}-", dir=cache_directory()) as scratch:
        archive = _download(package, Path(scratch))
        files = Path(scratch) / "files"
        _run(["dpkg", "-x", archive, files], Path(scratch))
        try:
            files.rename(place)
        except OSError:
            # Somebody else was faster: theirs is as good.
            if not place.is_dir():
                raise
    return place


def _download(package: str, into: Path) -> Path:
    # apt would warn that its sandbox user can't write here.
    get = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        _run([*get, "download", package], into)
    except TestbedError:
        # This machine may have no package lists, and only root may fetch them: fetch our own, beside the packages.
        lists = cache_directory() / "apt"
        (lists / "lists/partial").mkdir(parents=True, exist_ok=True)
        own = ["-o", f"Dir::State::lists={lists / 'lists'}", "-o", f"Dir::Cache={lists}", "-o", "Debug::NoLocking=1"]
        _run([*get, *own, "update"], into)
        _run([*get, *own, "download", package], into)
    return next(into.glob("*.deb"))


def _run(command: list[str | Path], directory: Path) -> None:
    try:
        ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"{command[0]} took more than {_FETCH_S} s") from None
    if ended.returncode != 0:
        raise TestbedError(f"{command[0]}: {ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else 'failed'}")


def progress(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Passes items on; after two seconds says on standard error how far it has come, now and then."""
    terminal = sys.stderr.isatty()
    start = time.monotonic()
    said_at, said = start, False
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - said_at >= (0.5 if said and terminal else 2 if not said else 5):
            said_at, said = now, True
            print(f"{what}: {done:,} of {total:,}", end="\r" if terminal else "\n", file=sys.stderr, flush=True)
        yield item
    if said:
        print(f"{what}: {total:,} in {time.monotonic() - start:.0f} s", file=sys.stderr)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.datasets", description="Makes data sets of real images.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_photos = kinds.add_parser("photos", help="JPEG crops of photographs")
    of_shards = kinds.add_parser("shards", help="tar files of such crops")
    of_fashion = kinds.add_parser("fashion-mnist", help="Fashion-MNIST as PNG files, a directory a class")
    of_digits = kinds.add_parser("digits", help="scikit-learn's digits as PNG files, a directory a class")
    for kind in (of_photos, of_shards, of_fashion, of_digits):
        kind.add_argument("out", type=Path, help="directory to fill")
    for kind in (of_photos, of_shards):
        kind.add_argument("--count", type=int, required=True, help="how many files")
        kind.add_argument("--size-kb", type=float, default=30, help="average size of a crop (default: %(default)s)")
        kind.add_argument("--seed", type=int, default=0)
    of_photos.add_argument("--per-dir", type=int, default=1000, help="files in a directory (default: %(default)s)")
    of_shards.add_argument("--mib", type=int, default=64, help="exact size of a shard (default: %(default)s)")
    of_fashion.add_argument("--train", type=int, metavar="N", help="images of each class (default: all)")
    of_fashion.add_argument("--limit", type=int, metavar="N", help="images in all (default: all)")
    of_fashion.add_argument("--split", choices=["train", "test"], default="train")
    args = parser.parse_args()
    try:
        if args.kind == "photos":
            photos(args.out, args.count, size_kb=args.size_kb, per_dir=args.per_dir, seed=args.seed)
        elif args.kind == "shards":
            shards(args.out, args.count, mib=args.mib, size_kb=args.size_kb, seed=args.seed)
        elif args.kind == "fashion-mnist":
            fashion_mnist(args.out, train_per_class=args.train, limit=args.limit, split=args.split)
        else:
            digits(args.out)
    except (TestbedError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
