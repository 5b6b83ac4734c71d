"""Trains a model on pictures, epoch by epoch, as its framework's users do. Knows nothing of Forebay.

PyTorch reads picture files by a DataLoader, whose workers decode them; TensorFlow reads TFRecord shards by tf.data. A
file's directory is its class. The model computes on one thread, so that the machine's other core is left to those who
read. One JSON line comes before the first epoch and one after each. With --step a line on standard input begins an
epoch, or the part of one that it names; the end of the input ends the program. With the same seed, the same files give
the same weights, to the last bit.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from course import listed, machine_cpu_s, rates
from models import MODELS
from steps import options, say, steps

RATE = 0.01
MOMENTUM = 0.9
FRAMEWORKS = {"pytorch": "train_pytorch", "tensorflow": "train_tensorflow"}


class BatchResult(NamedTuple):
    """Result of training on a batch."""

    samples: int
    # Of the pictures as they lie on disk.
    bytes: int
    loss: float
    correct: int


class FrameworkTrainer(Protocol):
    """Interface of a framework's module."""

    def batches(self, paths: list[str], epoch: int) -> Iterator[Any]:
        """Yields the contents of these files, in batches."""

    def step(self, batch: Any) -> tuple[int, int, float, int]:  # noqa: ANN401 # the framework's own
        """Trains with a batch; a `BatchResult`."""

    def digest(self) -> int:
        """A number that all weights decide."""


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    parser.add_argument("--framework", choices=FRAMEWORKS, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--first", type=int, metavar="N", help="read only the first N files, in the order of names")
    args = parser.parse_args()
    framework = importlib.import_module(FRAMEWORKS[args.framework])
    trainer: FrameworkTrainer = framework.ModelTrainer(
        MODELS[args.model], args.classes, args.batch, args.threads, args.seed, RATE, MOMENTUM
    )
    files = functools.cache(functools.partial(listed, first=args.first))
    say(files=len(files(args.root)), at=time.monotonic())
    for step in steps(args):
        wanted = step.of(files(step.root), args.seed)
        say(
            epoch=step.epoch,
            files=len(wanted),
            **train(trainer, wanted, step.epoch, step.pause_s),
            digest=trainer.digest(),
            rss_mib=rss_mib(),
        )
    return 0


def train(trainer: FrameworkTrainer, wanted: list[str], epoch: int, pause_s: float) -> dict[str, Any]:
    """Goes through these files once; what there is to say of it."""
    wait_s = loss = 0.0
    size = correct = 0
    ends: list[float] = []
    samples: list[int] = []
    begun, cpu, machine = time.monotonic(), cpu_s(), machine_cpu_s()
    batches = iter(trainer.batches(wanted, epoch))
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        wait_s += time.monotonic() - asked
        if batch is None:
            break
        outcome = BatchResult(*trainer.step(batch))
        if pause_s:
            time.sleep(pause_s)
        samples.append(outcome.samples)
        ends.append(time.monotonic() - begun)
        size += outcome.bytes
        loss += outcome.loss * outcome.samples
        correct += outcome.correct
    seconds = time.monotonic() - begun
    return {
        "seconds": seconds,
        "wait_s": wait_s,
        "cpu_s": cpu_s() - cpu,
        "machine_cpu_s": machine_cpu_s() - machine,
        "bytes": size,
        "samples": sum(samples),
        "loss": loss / sum(samples),
        "top1": correct / sum(samples),
        "rates": rates(ends, samples),
    }


def cpu_s() -> float:
    """CPU seconds of this process and of its workers that have ended; a DataLoader's end with each epoch."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def rss_mib() -> float:
    """The most that this process was resident with."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
