"""A job of one rank that trains a model, and its clone on another host: `host_model.py MODEL`.

A job trains until its standard input ends, and prints a line for each fork, some steps later: the times at which the
fork's step began and ended, and the seconds of steps before, of this one and the next, and of those after. A clone
prints the time at which `session()` returned. Both print their losses since. Times are those of CLOCK_MONOTONIC, which
all processes of the machine share.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, NamedTuple

import torch
from clone_models import made

import forebay.clone as clone

AFTER = 4
"""Steps that job and clone compare."""


class TimedStep(NamedTuple):
    """A step: its loss, and the times at which it began and at which its work was done, before `point()`."""

    begun_at: float
    done_at: float
    loss: float


def main() -> int:
    """Returns exit code 0."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    job = made(sys.argv[1], "sgd")
    session = clone.session(**job.given())
    ready_at = time.monotonic()
    first = session.resumed["step"] if session.resumed else 0
    steps: dict[int, TimedStep] = {}

    def train() -> int:
        step = first + len(steps) + 1
        begun_at = time.monotonic()
        loss = job.step()
        steps[step] = TimedStep(begun_at, time.monotonic(), loss)
        session.point(epoch=0, step=step)
        return step

    if session.resumed:
        for _ in range(AFTER):
            train()
        tell(ready_at=ready_at, losses=[steps[first + 1 + number].loss for number in range(AFTER)])
    else:
        told = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            at = train()
            # A step lasts until the next one begins, so that what `point()` takes is in it.
            for fork in session.forks[told:]:
                if at > fork.step + AFTER:
                    tell(**seen(steps, fork.step), stall_s=fork.stall_s)
                    told += 1
    session.close()
    return 0


def seen(steps: dict[int, TimedStep], at: int) -> dict[str, Any]:
    """Returns what there is to say of the fork at the end of a step."""
    lasted = {step: steps[step + 1].begun_at - steps[step].begun_at for step in range(max(1, at - 2), at + AFTER)}
    usual = [seconds for step, seconds in lasted.items() if not at <= step <= at + 1]
    return {
        "step": at,
        "begun_at": steps[at].begun_at,
        "point_at": steps[at].done_at,
        "two_s": lasted[at] + lasted[at + 1],
        "usual_s": usual,
        "losses": [steps[at + 1 + number].loss for number in range(AFTER)],
    }


def tell(**line: object) -> None:
    """Prints a line, whole."""
    os.write(1, json.dumps({"rank": 0, **line}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
