"""A learning-rate fork: clones of one step of a job go on with other rates.

One clone keeps the job's rate: it shows that what is seen comes from the rates alone, for its losses are the job's, to
the last bit.

    python -m examples.forks.learning_rate --rates 0.1,0.02,0.004,0.001 --output learning-rate.svg
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.forks.jobs import (
    ENDLESS,
    ForkedJob,
    at_least,
    checked,
    errors,
    jobs,
    parser,
    run,
    save,
    sheet,
    show_errors,
    takes_keras,
    until,
)


def main() -> int:
    """Exit code 1: the clone that keeps the rate is not the trunk's equal."""
    parsing = parser(__doc__, "learning-rate.svg")
    parsing.add_argument("--rates", type=rates, default=[0.1, 0.02, 0.004, 0.001], metavar="A,B", help="the clones' (default: 0.1,...)")
    parsing.add_argument("--rate", type=rate, default=0.05, metavar="A", help="the trunk's (default: %(default)s)")
    parsing.add_argument("--at", type=at_least(10), default=200, metavar="STEP", help="where they part (default: %(default)s)")
    parsing.add_argument("--steps", type=at_least(10), default=400, metavar="N", help="for how long each goes on (default: %(default)s)")
    takes_keras(parsing)
    args = checked(parsing)
    with jobs(args.program) as all_jobs:
        with all_jobs.holding("trunk", "--lr", args.rate, "--steps", ENDLESS) as trunk:
            same = all_jobs.clone("trunk", "--steps", args.steps, at=args.at)
            others = [all_jobs.clone("trunk", "--steps", args.steps, at=args.at, changes={"lr": each}) for each in args.rates]
        for job in (same, *others):
            job.finish()
        trunk.wait_for(same.lines()[-1].step)
        trunk.end()
        for job in (same, *others):
            last = job.lines()[-1]
            print(f"lr {last.lr:g}: {100 * (1 - last.accuracy):.2f} % wrong at step {last.step}")
        is_equal = agree(trunk, same)
        print(f"the clone with the trunk's own rate has {'its' if is_equal else 'NOT its'} losses, to the last bit")
        draw(trunk, [same, *others], args.output)
    return 0 if is_equal else 1


def rate(text: str) -> float:
    """A type of options: a learning rate."""
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"invalid learning rate {text}: write a number above 0")
    return number


def rates(text: str) -> list[float]:
    """A type of options: learning rates."""
    return [rate(each) for each in text.split(",")]


def agree(trunk: ForkedJob, clone: ForkedJob) -> bool:
    """Returns True if the losses that both have written are equal.

    The clone's first line has fewer steps in it, if the fork was between two.
    """
    mine = {line.step: line.loss for line in trunk.lines()}
    return all(mine[line.step] == line.loss for line in clone.lines()[1:])


def draw(trunk: ForkedJob, clones: Sequence[ForkedJob], output: Path) -> None:
    """Loss and error of each over its steps."""
    figure, ((left, right),) = sheet(1, 2, 3.2)
    last = clones[0].lines()[-1].step
    for job, colour in zip([trunk, *clones], ["#8a8f98", "#000000", *(f"C{number}" for number in range(len(clones)))], strict=False):
        lines = until(job.lines(), last)
        steps = [line.step for line in lines]
        name = "the trunk" if job is trunk else f"lr {lines[-1].lr:g}"
        style = {"color": colour, "label": name, "linewidth": 3 if job is trunk else 1}
        left.plot(steps, [line.loss for line in lines], **style)
        right.plot(steps, errors(lines), **style)
    for panel in (left, right):
        panel.axvline(clones[0].begun()["step"], color="#8a8f98", linestyle=":", linewidth=1)
        panel.set(xlabel="step")
    left.set(ylabel="loss", yscale="log")
    show_errors(right)
    left.legend(frameon=False)
    figure.suptitle("One state, several learning rates")
    save(figure, output)


if __name__ == "__main__":
    sys.exit(run(main))
