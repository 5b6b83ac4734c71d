"""An ensemble from one trunk.

Clones part from a job that has learned the basics, draw other data from there on, and vote.

The trunk's steps are trained once instead of once a member. Draws the error of each member, and that of the vote.

    python -m examples.forks.ensemble --members 5 --output ensemble.svg
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """See above."""
    parsing = parser(__doc__, "ensemble.svg")
    parsing.add_argument("--members", type=at_least(1), default=5, metavar="N", help="clones that vote (default: %(default)s)")
    parsing.add_argument("--at", type=at_least(10), default=200, metavar="STEP", help="where they part (default: %(default)s)")
    parsing.add_argument("--steps", type=at_least(10), default=600, metavar="N", help="for how long each goes on (default: %(default)s)")
    takes_keras(parsing)
    args = checked(parsing)
    with jobs(args.program) as all_jobs:
        with all_jobs.holding("trunk", "--steps", ENDLESS) as trunk:
            members = [
                all_jobs.clone("trunk", "--steps", args.steps, at=args.at, changes={"seed": seed}) for seed in range(1, args.members + 1)
            ]
        ended = [member.finish() for member in members]
        trunk.wait_for(args.at + args.steps)
        trunk.end()
        labels = ended[0].labels
        alone = [error_of(one.scores, labels) for one in ended]
        vote = error_of(sum(one.scores for one in ended) / len(ended), labels)
        print(f"{len(members)} members, each alone: {' '.join(f'{error:.2f}' for error in alone)} % wrong; their vote: {vote:.2f} %")
        shared, apart = args.at + len(members) * args.steps, len(members) * (args.at + args.steps)
        print(f"{shared:,} steps were trained for them instead of {apart:,}")
        draw(trunk, members, vote, args.output)
    return 0


def error_of(scores: Any, labels: Any) -> float:  # noqa: ANN401  (arrays)
    """Test images that are told wrongly, in percent; `scores` is float32 [images, digits], `labels` int64 [images]."""
    return float(100 * (scores.argmax(1) != labels).mean())


def draw(trunk: ForkedJob, members: Sequence[ForkedJob], vote: float, output: Path) -> None:
    """The error of each over its steps."""
    figure, ((panel,),) = sheet(1, 1, 3.2)
    last = max(member.lines()[-1].step for member in members)
    for number, member in enumerate(members):
        lines = member.lines()
        panel.plot([line.step for line in lines], errors(lines), linewidth=1, label="a member" if number == 0 else None, color="#58a6d6")
    lines = until(trunk.lines(), last)
    panel.plot([line.step for line in lines], errors(lines), color="#8a8f98", label="the trunk")
    panel.axvline(members[0].begun()["step"], color="#8a8f98", linestyle=":", linewidth=1)
    panel.plot([last], [vote], "o", color="#a33b3b", label=f"the vote of {len(members)}")
    panel.set(xlabel="step", title="An ensemble from one trunk")
    show_errors(panel)
    panel.legend(frameon=False)
    save(figure, output)


if __name__ == "__main__":
    sys.exit(run(main))
