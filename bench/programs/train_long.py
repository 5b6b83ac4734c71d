"""Trains a model for a given time, and says after each epoch how good it is. Knows nothing of Forebay.

PyTorch's DataLoader reads the pictures; a file's directory is its class. Every eighth file is held out: the model is
tried on those, below a directory of their own, which takes no training time. One JSON line comes after each epoch:
training time so far in seconds, the share of the held-out pictures whose class the model names first or among the first
five, and a digest of all weights.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from typing import Any

from course import listed
from models import MODELS
from steps import say
from train import MOMENTUM, RATE, train

HELD_OUT = 8
"""One file in so many is held out."""
EPOCHS_MAX = 10_000


def main() -> int:
    """Returns exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--held", required=True, help="directory with the same files, from which those held out are read")
    parser.add_argument("--seconds", type=float, required=True, help="of training, after which no further epoch begins")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    framework: Any = importlib.import_module("train_pytorch")
    trainer = framework.ModelTrainer(MODELS[args.model], args.classes, args.batch, args.threads, args.seed, RATE, MOMENTUM)
    own = [path for number, path in enumerate(listed(args.root)) if number % HELD_OUT]
    held = listed(args.held)[::HELD_OUT]
    at_s = 0.0
    for epoch in range(1, EPOCHS_MAX):
        found = train(trainer, random.Random(args.seed * 1000 + epoch).sample(own, len(own)), epoch, 0.0)  # noqa: S311
        at_s += found["seconds"]
        kept = {name: found[name] for name in ("seconds", "wait_s", "loss")}
        first, five = trainer.accuracy(held, 5)
        say(epoch=epoch, at_s=at_s, **kept, top1=first, top5=five, digest=trainer.digest())
        if at_s >= args.seconds:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
