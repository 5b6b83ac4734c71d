"""Makes batches of bytes out of JPEG files by one of several loaders, each as its users would write it.

Random-resized crop to 224, flip.

Each epoch goes through all files once, in random order. One JSON line comes before the first, and one after each, with
the processor time of this process and all that it has started. The first epoch has in it whatever is done but once.
With --step a line on standard input begins an epoch.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from loader_cost import cpu_s
from loader_crops import SIDE, by_opencv, setup
from steps import options, say, steps


class PipelineImages:
    """Files; each gives pixels: height, width, bands."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        pixels: np.ndarray[Any, np.dtype[np.uint8]] = by_opencv(Path(self.paths[i]).read_bytes())
        return pixels


Loader = Callable[[str, list[str], int, int], Callable[[int], Iterable[Any]]]


def kernels(_root: str, paths: list[str], batch: int, _threads: int) -> Callable[[int], Iterable[Any]]:
    """No loader: what is left if handing over costs nothing."""
    setup()
    images = PipelineImages(paths)

    def epoch(_number: int) -> Iterator[Any]:
        order = shuffled(len(images))
        for begin in range(0, len(order), batch):
            yield np.stack([images[i] for i in order[begin : begin + batch]])

    return epoch


def forebay(root: str, _paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Ours."""
    import torch

    from forebay.torch import DataLoader, ImageFolder, TrainCrop

    torch.set_num_threads(1)
    loader = DataLoader(ImageFolder(root, transform=TrainCrop(SIDE)), batch, shuffle=True, seed=0, num_workers=threads, report=False)

    def epoch(number: int) -> Iterator[Any]:
        loader.set_epoch(number)
        return (images for images, _ in loader)

    return epoch


def by_torch(dataset: Any, batch: int, threads: int) -> Callable[[int], Iterable[Any]]:  # noqa: ANN401
    """PyTorch's loader over any dataset."""
    import torch

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True, num_workers=threads, persistent_workers=True)
    return lambda _number: loader


def torch_pil(root: str, _paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Torchvision's image folder and first transforms, on Pillow."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    inner = by_torch(datasets.ImageFolder(root, transforms.Compose(steps)), batch, threads)
    return lambda number: (images for images, _ in inner(number))


class Decoded:
    """Files, decoded by torchvision and cut by its second transforms."""

    def __init__(self, paths: list[str]) -> None:
        from torchvision.transforms import v2

        self.paths = paths
        self.transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        return self.transform(decode_jpeg(read_file(self.paths[i]), mode=ImageReadMode.RGB))


def torch_v2(_root: str, paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Torchvision's own codec and second transforms."""
    return by_torch(Decoded(paths), batch, threads)


def torch_cv2(_root: str, paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Simplejpeg and OpenCV in PyTorch's workers."""
    setup()
    return by_torch(PipelineImages(paths), batch, threads)


def spdl(_root: str, paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """SPDL's pipeline, in threads. Its own codec wants FFmpeg's libraries, and is slower than simplejpeg."""
    from spdl.pipeline import PipelineBuilder

    setup()
    images = PipelineImages(paths)

    def epoch(_number: int) -> Iterator[Any]:
        decoded = PipelineBuilder().add_source(shuffled(len(images))).pipe(images.__getitem__, concurrency=threads)
        pipeline = decoded.aggregate(batch).pipe(np.stack).add_sink(2).build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def grain(_root: str, paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Grain's dataset, whose decoding runs in threads."""
    import grain as library

    setup()
    options = library.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * batch)

    def epoch(number: int) -> Iterator[Any]:
        whole = library.MapDataset.source(PipelineImages(paths)).shuffle(seed=number)
        return iter(whole.to_iter_dataset(read_options=options).batch(batch))

    return epoch


def nodes(_root: str, paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """torchdata.nodes, in threads."""
    import torch
    from torch.utils.data import RandomSampler, default_collate
    from torchdata.nodes import Batcher, Loader, ParallelMapper, SamplerWrapper

    torch.set_num_threads(1)
    setup()
    images = PipelineImages(paths)

    def made(numbers: list[int]) -> Any:  # noqa: ANN401
        return default_collate([images[i] for i in numbers])

    batches = Batcher(SamplerWrapper(RandomSampler(range(len(paths)))), batch, drop_last=False)
    loader = Loader(ParallelMapper(batches, made, num_workers=threads, method="thread"))
    return lambda _number: loader


def dali_image(data: Any) -> Any:  # noqa: ANN401 # nodes of a graph
    """DALI's operators, on the processor: from encoded bytes to the sample."""
    from nvidia.dali import fn, types

    cut = fn.decoders.image_random_crop(
        data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    resized = fn.resize(cut, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_LINEAR)
    return fn.flip(resized, horizontal=fn.random.coin_flip())


def forebay_dali(root: str, _paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """Our loader with DALI's operators as `decode`."""
    import torch

    from forebay.dali import Decoded as DecodedByDali
    from forebay.torch import DataLoader, ImageFolder

    torch.set_num_threads(1)
    dataset = DecodedByDali(ImageFolder(root), dali_image)
    loader = DataLoader(dataset, batch, shuffle=True, seed=0, num_workers=threads, report=False)

    def epoch(number: int) -> Iterator[Any]:
        loader.set_epoch(number)
        return (images for images, _ in loader)

    return epoch


def dali(root: str, _paths: list[str], batch: int, threads: int) -> Callable[[int], Iterable[Any]]:
    """DALI's own reader and operators, on the processor."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)  # type: ignore[untyped-decorator]
    def images() -> Any:  # noqa: ANN401
        data, _ = fn.readers.file(file_root=root, random_shuffle=True, name="files")
        return dali_image(data)

    pipeline = images()
    pipeline.build()
    files = pipeline.epoch_size("files")

    def epoch(_number: int) -> Iterator[Any]:
        # The last batch is filled up from the next epoch: what is counted is what came.
        for _ in range(-(-files // batch)):
            (found,) = pipeline.run()
            yield found.as_array()

    return epoch


LOADERS: dict[str, Loader] = {
    "kernels": kernels,
    "forebay": forebay,
    "forebay-dali": forebay_dali,
    "torch-pil": torch_pil,
    "torch-v2": torch_v2,
    "torch-cv2": torch_cv2,
    "spdl": spdl,
    "grain": grain,
    "nodes": nodes,
    "dali": dali,
}


def shuffled(count: int) -> list[int]:
    """All numbers below it, by chance."""
    return random.sample(range(count), count)


def main() -> int:
    """Exit code 0; 1 if batches are not what they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--loader", choices=LOADERS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    args = parser.parse_args()
    paths = sorted(str(path) for path in Path(args.root).rglob("*.jpg"))
    batches = LOADERS[args.loader](args.root, paths, args.batch, args.threads)
    say(images=len(paths))
    for step in steps(args):
        images = 0
        mean = 0.0
        begun, cpu = time.monotonic(), cpu_s()
        for batch in batches(step.epoch):
            if not batch_is_right(batch):
                print(f"{args.loader} gave a batch of {batch.dtype}, {tuple(batch.shape)}", file=sys.stderr)
                return 1
            images += len(batch)
            mean = float(np.asarray(batch[0]).mean())
        say(epoch=step.epoch, images=images, seconds=time.monotonic() - begun, cpu_s=cpu_s() - cpu, mean=mean)
        if images < len(paths):
            print(f"{args.loader} gave {images} images of {len(paths)}", file=sys.stderr)
            return 1
    return 0


def batch_is_right(batch: Any) -> bool:  # noqa: ANN401
    """Returns the number of bytes of `pixels` pixels, whatever comes first."""
    return str(batch.dtype).endswith("uint8") and sorted(batch.shape[1:]) == [3, SIDE, SIDE]


if __name__ == "__main__":
    sys.exit(main())
