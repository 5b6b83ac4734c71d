"""Reads a directory of make_data.py with one library (or all, twice over) and prints a digest for each file.

Knows nothing of Forebay.

Words after the number of epochs are a command, run between them.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file


def digest(*parts: object) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


def by_safe_open(path: Path) -> str:
    with safe_open(path, framework="numpy") as tensors:
        return digest(tensors.get_slice("array")[10:20], tensors.get_tensor("halves"))


def by_h5py(path: Path) -> str:
    with h5py.File(path) as file:
        return digest(file["array"][:100], file["array"][:])


def by_table(table: pa.Table) -> str:
    return digest(table["number"].to_numpy(), table["square"].to_numpy(), np.array(table["text"].to_pylist(), dtype="S12"))


def by_mapped_arrow(path: Path) -> str:
    with pa.memory_map(str(path)) as mapped:
        return by_table(pa.ipc.open_file(mapped).read_all())


READS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "numpy.load": ("array.npy", lambda path: digest(np.load(path))),
    "numpy.load mapped": ("array.npy", lambda path: digest(np.load(path, mmap_mode="r"))),
    "numpy.load of a zip": ("arrays.npz", lambda path: digest(*(np.load(path)[name] for name in ("array", "halves")))),
    "numpy.fromfile": ("array.raw", lambda path: digest(np.fromfile(path, dtype=np.uint8))),
    "numpy.memmap": ("array.raw", lambda path: digest(np.memmap(path, dtype=np.uint8, mode="r"))),
    "Pillow, png": ("picture.png", lambda path: digest(Image.open(path))),
    "Pillow, jpeg": ("picture.jpg", lambda path: digest(Image.open(path).resize((64, 64)))),
    "h5py": ("array.h5", by_h5py),
    "pyarrow, parquet": ("table.parquet", lambda path: by_table(pq.read_table(path))),
    "pyarrow, parquet mapped": ("table.parquet", lambda path: by_table(pq.read_table(path, memory_map=True))),
    "pyarrow, row group": ("table.parquet", lambda path: by_table(pq.ParquetFile(path).read_row_group(2))),
    "pyarrow, dataset": ("table.parquet", lambda path: by_table(ds.dataset(path).to_table())),
    "pyarrow, ipc": ("table.arrow", lambda path: by_table(pa.ipc.open_file(pa.OSFile(str(path))).read_all())),
    "pyarrow, ipc mapped": ("table.arrow", by_mapped_arrow),
    "safetensors": ("array.safetensors", lambda path: digest(*(load_file(path)[name] for name in ("array", "halves")))),
    "safetensors, slices": ("array.safetensors", by_safe_open),
}


def main() -> None:
    root, wanted, epochs, between = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    for epoch in range(epochs):
        for name, (file, read) in READS.items():
            if wanted in ("all", name):
                print(epoch, name, read(root / file))
        if between and epoch + 1 < epochs:
            subprocess.run(between, check=True)


if __name__ == "__main__":
    main()
