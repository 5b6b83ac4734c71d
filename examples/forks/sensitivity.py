"""A sensitivity study: how much does a model's accuracy on one class depend on the data of another?

Clones part from one step of a job. Each goes on without the images of one digit, and one goes on with all; so what
differs comes from the missing images alone. The DeepClone paper names this as a reason to fork: to find which samples
learning depends on. Draws the change of each digit's accuracy.

    python -m examples.forks.sensitivity --output sensitivity.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.forks.jobs import ENDLESS, ForkedJob, at_least, checked, jobs, parser, run, save, sheet

CLASSES = 10
# Lines at the end whose mean is the accuracy.
JUDGED = 3


def main() -> int:
    """See above."""
    parsing = parser(__doc__, "sensitivity.svg")
    parsing.add_argument("--digits", type=digits, default=list(range(CLASSES)), metavar="A,B", help="left out, one a clone (default: each)")
    parsing.add_argument("--at", type=at_least(10), default=200, metavar="STEP", help="where they part (default: %(default)s)")
    parsing.add_argument("--steps", type=at_least(10), default=200, metavar="N", help="for how long each goes on (default: %(default)s)")
    args = checked(parsing)
    with jobs() as all_jobs:
        with all_jobs.holding("trunk", "--steps", ENDLESS):
            whole = all_jobs.clone("trunk", "--steps", args.steps, at=args.at)
            without = [all_jobs.clone("trunk", "--steps", args.steps, "--without", digit, at=args.at) for digit in args.digits]
        for job in (whole, *without):
            job.finish()
        before = accuracies(whole)
        changes = [[100 * (new - old) for new, old in zip(accuracies(job), before, strict=True)] for job in without]
        for digit, row in zip(args.digits, changes, strict=True):
            others = [(change, other) for other, change in enumerate(row) if other != digit]
            gained, most = max(others)
            print(f"without {digit}: {row[digit]:+.1f} points for {digit}; the most for another: {gained:+.1f} for {most}")
        draw(args.digits, changes, args.output)
    return 0


def digits(text: str) -> list[int]:
    """A type of options: digits."""
    if not all(part.isdecimal() and int(part) < CLASSES for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: write digits from 0 to 9, such as 3,8")
    return [int(part) for part in text.split(",")]


def accuracies(job: ForkedJob) -> list[float]:
    """By digit, from 0 to 1."""
    lines = job.lines()[-JUDGED:]
    return [sum(line.accuracies[digit] for line in lines) / len(lines) for digit in range(CLASSES)]


def draw(left_out: Sequence[int], changes: Sequence[Sequence[float]], output: Path) -> None:
    """A row a clone, a column a digit."""
    figure, ((panel,),) = sheet(1, 1, 3.8)
    # What was left out is forgotten, which would hide all else.
    others = [abs(change) for digit, row in zip(left_out, changes, strict=True) for other, change in enumerate(row) if other != digit]
    most = max(others) or 1.0
    picture = panel.imshow(changes, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for row, each in enumerate(changes):
        for column, change in enumerate(each):
            colour = "white" if abs(change) > most / 2 else "black"
            panel.text(column, row, str(round(change)), color=colour, ha="center", va="center", fontsize=7)
    panel.set_xticks(range(CLASSES))
    panel.set_yticks(range(len(left_out)), [f"{digit}" for digit in left_out])
    panel.set(xlabel="accuracy of digit", ylabel="trained on without", title="Points of accuracy gained or lost")
    figure.colorbar(picture)
    save(figure, output)


if __name__ == "__main__":
    sys.exit(run(main))
