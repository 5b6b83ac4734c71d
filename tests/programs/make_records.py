"""Writes a small data set in the form of each framework that frameworks.py runs, into a directory."""

import os
import sys
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import datasets
import numpy as np
import tensorflow as tf

SAMPLES = 96
SHARDS = 4
SIDE = 24

out = Path(sys.argv[1])
choice = np.random.default_rng(7)
images = choice.integers(0, 255, (SAMPLES, SIDE, SIDE, 3), dtype=np.uint8)
labels = choice.integers(0, 4, SAMPLES)


def jpeg(image: np.ndarray) -> bytes:
    encoded: bytes = tf.io.encode_jpeg(image).numpy()
    return encoded


def example(image: np.ndarray, label: int) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg(image)])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    record: bytes = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    return record


(out / "records").mkdir()
for shard in range(SHARDS):
    path = out / "records" / f"train-{shard}.tfrecord"
    offset, index = 0, ""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(shard, SAMPLES, SHARDS):
            record = example(images[number], int(labels[number]))
            writer.write(record)
            # Around a record stand its length and two checksums.
            index += f"{offset} {len(record) + 16}\n"
            offset += len(record) + 16
    # As DALI's tfrecord2idx would write, which imports TensorFlow each time.
    path.with_suffix(".idx").write_text(index)
for number in range(SAMPLES):
    path = out / "images" / str(labels[number]) / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(images[number]))
datasets.disable_progress_bars()
rows = datasets.Dataset.from_dict({"tokens": choice.integers(0, 50_000, (512, 64)).tolist(), "label": list(range(512))})
rows.save_to_disk(str(out / "rows"), num_shards=2)
choice.integers(0, 50_000, 1 << 18, dtype=np.uint16).tofile(out / "tokens.bin")
