"""A small population-based search of a learning rate.

Now and then the worst member ends, and a clone of the best takes its place.

The clone has another rate. As in Jaderberg et al., Population Based Training of Neural Networks (2017): exploit by a
fork, explore by `--set lr`. Nobody waits, and no checkpoint is written. Draws each member's error and rate, and who
came from whom.

    python -m examples.forks.population --members 4 --generations 5 --output population.svg
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from examples.forks.jobs import ENDLESS, ForkedJob, Jobs, at_least, checked, errors, jobs, parser, run, save, sheet, show_errors

RATES = (0.0003, 0.3)
FACTORS = (0.5, 0.8, 1.25, 2.0)
# A member is as good as its last lines are on average.
JUDGED = 3


@dataclass
class Member:
    """A job of the population, by what it has come to; `parent` is one that it was cloned from."""

    job: ForkedJob
    name: str
    rate: float
    parent: Member | None = None

    @property
    def step(self) -> int:
        """The last one that it has written."""
        return max((line.step for line in self.job.lines()), default=0)

    @property
    def error(self) -> float:
        """In percent."""
        return mean(errors(self.job.lines()[-JUDGED:]))


def main() -> int:
    """See above."""
    parsing = parser(__doc__, "population.svg")
    parsing.add_argument("--members", type=at_least(2), default=4, metavar="N", help="jobs that train at a time (default: %(default)s)")
    parsing.add_argument("--generations", type=at_least(1), default=5, metavar="N", help="clones that are made (default: %(default)s)")
    parsing.add_argument("--steps", type=at_least(10), default=200, metavar="N", help="of each member in between (default: %(default)s)")
    parsing.add_argument("--seed", type=at_least(0), default=1, help="of the rates (default: %(default)s)")
    args = checked(parsing)
    draw_rate = random.Random(args.seed)  # noqa: S311
    with jobs() as all_jobs:
        low, high = RATES
        members: list[Member] = []
        for number in range(args.members):
            rate = low * (high / low) ** draw_rate.random()
            job = all_jobs.train(f"p{number}", "--lr", f"{rate:g}", "--steps", ENDLESS)
            members.append(Member(job, f"p{number}", rate))
        everyone = list(members)
        for generation in range(1, args.generations + 1):
            go_on(members, args.steps)
            # They train on meanwhile: each is judged once.
            judged = sorted(((one.error, one) for one in members), key=lambda each: each[0])
            (least, best), *_, (most, worst) = judged
            child = replace(all_jobs, best, worst, best.rate * draw_rate.choice(FACTORS))
            print(
                f"generation {generation}: {worst.name} (lr {worst.rate:.3g}, {most:.2f} % wrong) ends; "
                f"{child.name} is {best.name} ({least:.2f} %) at step {child.job.begun()['step']}, with lr {child.rate:.3g}",
                flush=True,
            )
            members[members.index(worst)] = child
            everyone.append(child)
        go_on(members, args.steps)
        best = min(members, key=lambda one: one.error)
        print(f"the best is {best.name}: {best.error:.2f} % wrong, lr {best.rate:.3g}")
        all_jobs.end()
        draw(everyone, best, args.output)
    return 0


def go_on(members: Sequence[Member], steps: int) -> None:
    """Until each has trained so many steps more."""
    goals = [(member, max(member.step, member.job.begun()["step"]) + steps) for member in members]
    for member, goal in goals:
        member.job.wait_for(goal)


def replace(all_jobs: Jobs, best: Member, worst: Member, rate: float) -> Member:
    """Ends one, and starts a clone of another."""
    worst.job.end()
    job = all_jobs.clone(best.name, "--steps", ENDLESS, changes={"lr": rate})
    return Member(job, job.begun()["job"], rate, best)


def draw(everyone: Sequence[Member], best: Member, output: Path) -> None:
    """Errors and rates over steps, and lines from parents to clones."""
    figure, ((left, right),) = sheet(1, 2, 3.6)
    line_of_best = ancestors(best)
    for number, member in enumerate(everyone):
        lines = member.job.lines()
        colour = "#a33b3b" if member in line_of_best else f"C{number % 10}"
        alpha = 1.0 if member in line_of_best else 0.5
        steps = [line.step for line in lines]
        left.plot(steps, errors(lines), color=colour, alpha=alpha, linewidth=1)
        begun = member.job.begun()["step"]
        if member.parent:
            right.plot([begun, begun], [member.parent.rate, member.rate], color=colour, alpha=alpha, linestyle=":")
        right.plot([begun, *steps], [member.rate] * (len(steps) + 1), color=colour, alpha=alpha, linewidth=2)
        right.annotate(member.name, (begun, member.rate), fontsize=7, xytext=(2, 3), textcoords="offset points")
    left.set(xlabel="step")
    show_errors(left)
    right.set(xlabel="step", ylabel="learning rate", yscale="log")
    figure.suptitle("Population-based search; in red the best, and what it came from")
    save(figure, output)


def ancestors(member: Member) -> list[Member]:
    """A member, its parent, that one's parent..."""
    found = [member]
    while found[-1].parent:
        found.append(found[-1].parent)
    return found


if __name__ == "__main__":
    sys.exit(run(main))
