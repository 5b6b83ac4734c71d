"""Reads large files for the first time, as programs do, and prints how long that took in seconds and a checksum.

`tensors`: all tensors of safetensors files by `safe_open`, one after the other. `torch`: all tensors of checkpoints by
`torch.load(mmap=True)`. `pretrained`: a model of `transformers` from its directory. `quarter`: a quarter of each file
through a mapping. `stream`: files by `read`, 128 KiB at a time. `parallel`: all files, by 16 threads;
`--first-parallel` does so before anything else, as commands do that fill the page cache ahead of a job. With `--ranks`
as many processes do it at the same time: all files each, or of `stream` its part of them, of `quarter` its quarter.
Imports do not count.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE_BYTES = 128 << 10
PAGE_BYTES = 4096
READERS = 16


def tensors(path: str) -> int:
    """Sum of a byte of each page of all tensors."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return sum(int(file.get_tensor(key).reshape(-1)[::PAGE_BYTES].sum()) for key in file.keys())  # noqa: SIM118


def torch_load(path: str) -> int:
    """Reads all tensors of a checkpoint of torch."""
    import torch

    return sum(int(tensor[::PAGE_BYTES].to(torch.int64).sum()) for tensor in torch.load(path, mmap=True).values())


def stream(path: str) -> int:
    """Sum of the first byte of each piece."""
    total = 0
    with Path(path).open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            total += piece[0]
    return total


def pretrained(directory: str) -> int:
    """Sum of a value of each page of all parameters of a model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype="auto")
    return int(sum(int(tensor.detach().reshape(-1)[:: PAGE_BYTES // 4].double().sum()) for tensor in model.parameters()))


def part(path: str, number: int, count: int) -> int:
    """Sum of a byte of each page of a rank's part of a file, through a mapping."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        size = len(mapped)
        return sum(mapped[at] for at in range(size * number // count, size * (number + 1) // count, PAGE_BYTES))


def parallel(paths: list[str]) -> int:
    """Reads all files by 16 threads, several to a file; returns the number of bytes."""

    def read(path: str, at: int, end: int) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        begin = at
        while at < end and (piece := os.pread(descriptor, min(1 << 20, end - at), at)):
            at += len(piece)
        os.close(descriptor)
        return at - begin

    each = max(1, READERS // len(paths))
    spans = []
    for path in paths:
        size = Path(path).stat().st_size
        spans += [(path, size * number // each, size * (number + 1) // each) for number in range(each)]
    with ThreadPoolExecutor(READERS) as pool:
        return sum(pool.map(lambda span: read(*span), spans))


WAYS: dict[str, Callable[[str], int]] = {"tensors": tensors, "torch": torch_load, "stream": stream}


def import_all(how: str) -> None:
    """Imports what a way needs, which does not come from the files that are measured."""
    if how == "tensors":
        import safetensors.numpy  # noqa: F401
    elif how == "torch":
        import torch  # noqa: F401
    elif how == "pretrained":
        from transformers import LlamaForCausalLM  # noqa: F401


def rank(how: str, paths: list[str], number: int, count: int) -> int:
    """One process's part."""
    if how == "parallel":
        return parallel(paths)
    if how == "pretrained":
        return pretrained(str(Path(paths[0]).parent))
    if how == "quarter":
        return sum(part(path, number, count) for path in paths)
    return sum(WAYS[how](path) for path in (paths[number::count] if how == "stream" else paths))


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--how", choices=[*WAYS, "pretrained", "quarter", "parallel"], required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--first-parallel", action="store_true")
    args = parser.parse_args()
    paths = sorted(os.path.join(args.root, name) for name in os.listdir(args.root))  # noqa: PTH118, PTH208
    import_all(args.how)
    begun = time.monotonic()
    if args.first_parallel:
        parallel(paths)
    if args.ranks == 1 or args.rank is not None:
        total = rank(args.how, paths, args.rank or 0, args.ranks)
    else:
        words = [sys.executable, __file__, args.root, "--how", args.how, "--ranks", str(args.ranks)]
        started = [subprocess.Popen([*words, "--rank", str(number)], stdout=subprocess.PIPE, text=True) for number in range(args.ranks)]
        said = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            return 1
        total = sum(json.loads(line)["total"] for line in said)
    print(json.dumps({"seconds": time.monotonic() - begun, "total": total}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
