"""The models that are trained, layer by layer, for every framework to build.

LeNet, AlexNet and ResNet-18, for small pictures.

LeNet is LeNet-5. AlexNet has its eight layers, with a quarter of the channels and less in the dense ones, for pictures
of 64 x 64. ResNet-18 is whole; it sees pictures of 64 x 64 instead of 224 x 224.
"""

from __future__ import annotations

from typing import NamedTuple


class Conv(NamedTuple):
    """A convolution whose output is as large as its input, over the stride; then batch normalisation, if asked for.

    Then ReLU.
    """

    channels: int
    kernel: int
    stride: int = 1
    norm: bool = False


class Pool(NamedTuple):
    """The largest of each square; each begins a stride after the one before."""

    size: int = 2
    stride: int = 2


class ResidualBlock(NamedTuple):
    """Two normalised convolutions of 3 x 3, and their input added to what comes of them."""

    channels: int
    stride: int = 1


class Mean(NamedTuple):
    """The mean over all places."""


class Flatten(NamedTuple):
    """Places and channels in one row."""


class Dense(NamedTuple):
    """All with all; then ReLU."""

    width: int


Layer = Conv | Pool | ResidualBlock | Mean | Flatten | Dense


class ModelSpec(NamedTuple):
    """A model's input and layers; at the end there is one linear layer with an output a class."""

    # Height and width of a picture.
    side: int
    layers: tuple[Layer, ...]


MODELS = {
    "lenet": ModelSpec(32, (Conv(6, 5), Pool(), Conv(16, 5), Pool(), Flatten(), Dense(120), Dense(84))),
    "alexnet": ModelSpec(
        64,
        (Conv(24, 11, 4), Pool(3), Conv(64, 5), Pool(3), Conv(96, 3), Conv(64, 3), Conv(64, 3), Pool(3), Flatten(), Dense(512), Dense(512)),
    ),
    "resnet": ModelSpec(
        64,
        (
            Conv(64, 7, 2, norm=True),
            Pool(3),
            *(ResidualBlock(64), ResidualBlock(64)),
            *(ResidualBlock(128, 2), ResidualBlock(128)),
            *(ResidualBlock(256, 2), ResidualBlock(256)),
            *(ResidualBlock(512, 2), ResidualBlock(512)),
            Mean(),
        ),
    ),
}
