"""Reads a data set as users of a framework do, for two epochs, and prints what came of each. Knows nothing of Forebay.

Usage: frameworks.py DIRECTORY FRAMEWORK...
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}

import numpy as np

Epoch = Iterator[np.ndarray]
BATCH = 16
EPOCHS = 2


def records(root: Path, epoch: int) -> Any:  # noqa: ANN401 # a tf.data.Dataset, which is imported only where it is used
    """Shards, interleaved as tf.data reads them from many files at once."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(row["image"], channels=3)
        return tf.cast(tf.reshape(image, (24, 24, 3)), tf.float32) / 255.0, row["label"]

    files = tf.data.Dataset.list_files(str(root / "records/*.tfrecord"), shuffle=False)
    shards = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4, deterministic=True)
    return shards.map(parse, num_parallel_calls=2, deterministic=True).shuffle(32, seed=epoch).batch(BATCH).prefetch(2)


def tensorflow_records(root: Path, epoch: int) -> Epoch:
    """TFRecord shards through tf.data."""
    for images, labels in records(root, epoch):
        yield images.numpy()
        yield labels.numpy()


def tensorflow_files(root: Path, epoch: int) -> Epoch:
    """An image folder through tf.data."""
    import tensorflow as tf

    found = tf.data.Dataset.list_files(str(root / "images/*/*.jpg"), shuffle=True, seed=epoch)
    for image in found.map(lambda path: tf.io.decode_jpeg(tf.io.read_file(path)), num_parallel_calls=2, deterministic=True):
        yield image.numpy()


def keras_fit(root: Path, epoch: int) -> Epoch:
    """A Keras `fit` over TFRecord shards; what comes out are the weights."""
    import keras
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(epoch)
    layers = [keras.layers.Flatten(), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(records(root, epoch), verbose=0)
    yield from model.get_weights()


def dali_files(root: Path, epoch: int) -> Epoch:
    """DALI's file reader, on the CPU."""
    from nvidia.dali import fn

    encoded, labels = fn.readers.file(file_root=str(root / "images"), random_shuffle=True, seed=epoch, name="reader")
    yield from dali(fn.decoders.image(encoded, device="cpu"), labels)


def dali_records(root: Path, epoch: int) -> Epoch:
    """DALI's TFRecord reader, on the CPU."""
    from nvidia.dali import fn, tfrecord

    shards = sorted(map(str, (root / "records").glob("*.tfrecord")))
    indices = [shard.replace(".tfrecord", ".idx") for shard in shards]
    features = {"image": tfrecord.FixedLenFeature((), tfrecord.string, ""), "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1)}
    row = fn.readers.tfrecord(path=shards, index_path=indices, features=features, random_shuffle=True, seed=epoch, name="reader")
    yield from dali(fn.decoders.image(row["image"], device="cpu"), row["label"])


def dali(images: object, labels: object) -> Epoch:
    """Runs one epoch of a pipeline."""
    from nvidia.dali import Pipeline

    pipeline = Pipeline(batch_size=BATCH, num_threads=2, device_id=None, seed=1)
    pipeline.set_outputs(images, labels)
    pipeline.build()
    for _ in range(-(-pipeline.epoch_size("reader") // BATCH)):
        for output in pipeline.run():
            for sample in output:
                yield np.array(sample)


def hf_datasets(root: Path, epoch: int) -> Epoch:
    """HF datasets over Arrow files, which are mapped, shuffled."""
    import datasets

    rows = datasets.load_from_disk(str(root / "rows")).shuffle(seed=epoch, keep_in_memory=True).with_format("numpy")
    for batch in rows.iter(BATCH):
        yield batch["tokens"]


def memmap_tokens(root: Path, epoch: int) -> Epoch:
    """Random windows of a mapped array of tokens, as language models are trained on."""
    choice = np.random.default_rng(epoch)
    for _ in range(64):
        # Mapped again for each batch, as nanoGPT does against a leak.
        tokens = np.memmap(root / "tokens.bin", dtype=np.uint16, mode="r")
        starts = choice.integers(0, len(tokens) - 129, BATCH)
        yield np.stack([tokens[start : start + 129].astype(np.int64) for start in starts])


FRAMEWORKS: dict[str, Callable[[Path, int], Epoch]] = {
    "tf.data-tfrecord": tensorflow_records,
    "tf.data-files": tensorflow_files,
    "keras-fit": keras_fit,
    "dali-files": dali_files,
    "dali-tfrecord": dali_records,
    "datasets-arrow": hf_datasets,
    "numpy-memmap": memmap_tokens,
}


def main() -> None:
    """Runs the frameworks that were named."""
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        for epoch in range(EPOCHS):
            digest, arrays = hashlib.sha256(), 0
            for array in FRAMEWORKS[name](root, epoch):
                digest.update(np.ascontiguousarray(array).tobytes())
                arrays += 1
            print(name, epoch, arrays, digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
