"""Packs picture files into TFRecord shards: the same pictures, with the number of their directory as label.

usage: pack_records.py PICTURES SHARDS COUNT

Writes COUNT shards of about equal size into SHARDS, with the pictures in an order of their own.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from course import listed

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import tensorflow as tf


def example(path: Path) -> bytes:
    """A picture and its class, as TensorFlow's users write them."""
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(path.parent.name)])),
    }
    record: bytes = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    return record


def main() -> int:
    """Exit code 0."""
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    out, count = Path(sys.argv[2]), int(sys.argv[3])
    out.mkdir(parents=True)
    pictures = listed(sys.argv[1])
    random.Random(0).shuffle(pictures)  # noqa: S311
    for shard in range(count):
        with tf.io.TFRecordWriter(str(out / f"pictures-{shard:04d}-of-{count:04d}.tfrecord")) as writer:
            for picture in pictures[shard::count]:
                writer.write(example(Path(picture)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
