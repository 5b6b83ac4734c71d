"""Writes one file of each kind that reads.py reads, into a directory."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import save_file

out = Path(sys.argv[1])
choice = np.random.default_rng(7)
array = choice.integers(0, 255, (400, 300), dtype=np.uint8)
np.save(out / "array.npy", array)
np.savez_compressed(out / "arrays.npz", array=array, halves=array / 2)
array.tofile(out / "array.raw")
Image.fromarray(array).save(out / "picture.png")
Image.fromarray(np.stack([array] * 3, axis=-1)).save(out / "picture.jpg")
with h5py.File(out / "array.h5", "w") as file:
    file.create_dataset("array", data=array, chunks=(50, 50), compression="gzip")
table = pa.table({"number": np.arange(20_000), "square": np.arange(20_000) ** 2, "text": [f"row {n}" for n in range(20_000)]})
pq.write_table(table, out / "table.parquet", row_group_size=5_000)
with pa.OSFile(str(out / "table.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table)
save_file({"array": array, "halves": (array / 2).astype(np.float32)}, out / "array.safetensors")
(out / "images").mkdir()
for number in range(40):
    kind = out / "images" / str(number % 4)
    kind.mkdir(exist_ok=True)
    Image.fromarray(choice.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(kind / f"{number}.png")
