"""TensorFlow's part of train.py: TFRecord shards, read and decoded by tf.data, and a Keras model."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}

import keras
import tensorflow as tf
from keras import layers as of_keras
from models import Conv, Dense, Flatten, Layer, Mean, ModelSpec, Pool, ResidualBlock

FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
# Shards that are read at the same time, and pictures of which one is drawn.
CYCLE = 4
SHUFFLED = 512
# Each read of a shard keeps a thread until it is answered.
THREADS = 8


class ModelTrainer:
    """A model and its optimizer."""

    def __init__(self, model: ModelSpec, classes: int, batch: int, workers: int, seed: int, rate: float, momentum: float) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(seed)
        self._side, self._batch, self._workers = model.side, batch, workers
        self._model = build(model, classes)
        self._optimizer = keras.optimizers.SGD(rate, momentum)
        self._optimizer.build(self._model.trainable_variables)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        shapes = (
            tf.TensorSpec([None, self._side, self._side, 3], tf.uint8),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
        )
        self._train = tf.function(self._one, input_signature=[shapes])
        # What is done only once belongs to no epoch.
        pixels = tf.zeros([batch, self._side, self._side, 3], tf.uint8)
        self.step((pixels, tf.zeros([batch], tf.int64), tf.zeros([batch], tf.int32)))

    def batches(self, paths: list[str], epoch: int) -> Iterator[Any]:
        """Several shards at once, in an order that the seed decides."""

        def parse(record: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 # a tf.Tensor
            row = tf.io.parse_single_example(record, FEATURES)
            # Decoded to a quarter of the size, which is large enough.
            image = tf.image.resize(tf.io.decode_jpeg(row["image"], channels=3, ratio=4), (self._side, self._side))
            return tf.cast(image, tf.uint8), row["label"], tf.strings.length(row["image"])

        shards = tf.data.Dataset.from_tensor_slices(paths)
        records = shards.interleave(tf.data.TFRecordDataset, cycle_length=CYCLE, num_parallel_calls=CYCLE, deterministic=True)
        samples = records.map(parse, num_parallel_calls=self._workers, deterministic=True).shuffle(SHUFFLED, seed=epoch)
        how = tf.data.Options()
        how.threading.private_threadpool_size = THREADS
        return iter(samples.batch(self._batch).prefetch(2).with_options(how))

    def step(self, batch: Any) -> tuple[int, int, float, int]:  # noqa: ANN401
        """Forward, backward, update."""
        loss, correct = self._train(batch)
        _, labels, sizes = batch
        return len(labels), int(tf.reduce_sum(sizes)), float(loss), int(correct)

    def _one(self, batch: Any) -> tuple[Any, Any]:  # noqa: ANN401
        pixels, labels, _ = batch
        with tf.GradientTape() as tape:
            outputs = self._model(tf.cast(pixels, tf.float32) / 255.0 - 0.5, training=True)
            loss = self._loss(labels, outputs)
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        correct = tf.math.equal(tf.argmax(outputs, 1), labels)
        return loss, tf.reduce_sum(tf.cast(correct, tf.int32))

    def digest(self) -> int:
        """Returns a digest of weights and running statistics."""
        digest = hashlib.sha256()
        for weights in self._model.get_weights():
            digest.update(weights.tobytes())
        return int.from_bytes(digest.digest()[:8], "little")


def normalised(inputs: Any, channels: int, kernel: int, stride: int) -> Any:  # noqa: ANN401
    """A convolution, then batch normalisation."""
    convolved = of_keras.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(inputs)
    return of_keras.BatchNormalization(momentum=0.9)(convolved)


@functools.singledispatch
def follow(layer: Layer, _inputs: Any) -> Any:  # noqa: ANN401
    """Returns the output of a layer."""
    raise TypeError(f"{layer} is not known here")


@follow.register
def _(layer: Conv, inputs: Any) -> Any:  # noqa: ANN401
    if layer.norm:
        return of_keras.ReLU()(normalised(inputs, layer.channels, layer.kernel, layer.stride))
    return of_keras.Conv2D(layer.channels, layer.kernel, layer.stride, padding="same", activation="relu")(inputs)


@follow.register
def _(layer: Pool, inputs: Any) -> Any:  # noqa: ANN401
    return of_keras.MaxPooling2D(layer.size, layer.stride, padding="same")(inputs)


@follow.register
def _(layer: ResidualBlock, inputs: Any) -> Any:  # noqa: ANN401
    alike = inputs.shape[-1] == layer.channels and layer.stride == 1
    around = inputs if alike else normalised(inputs, layer.channels, 1, layer.stride)
    through = of_keras.ReLU()(normalised(inputs, layer.channels, 3, layer.stride))
    return of_keras.ReLU()(of_keras.Add()([normalised(through, layer.channels, 3, 1), around]))


@follow.register
def _(_layer: Mean, inputs: Any) -> Any:  # noqa: ANN401
    return of_keras.GlobalAveragePooling2D()(inputs)


@follow.register
def _(_layer: Flatten, inputs: Any) -> Any:  # noqa: ANN401
    return of_keras.Flatten()(inputs)


@follow.register
def _(layer: Dense, inputs: Any) -> Any:  # noqa: ANN401
    return of_keras.Dense(layer.width, activation="relu")(inputs)


def build(model: ModelSpec, classes: int) -> Any:  # noqa: ANN401
    """Layer by layer."""
    inputs = outputs = keras.Input((model.side, model.side, 3))
    for layer in model.layers:
        outputs = follow(layer, outputs)
    return keras.Model(inputs, of_keras.Dense(classes)(outputs))
