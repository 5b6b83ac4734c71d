"""Lists a tree once an epoch, as programs do that look for their data set.

One JSON line comes before the first epoch and one after each. With --step a line on standard input begins an epoch, and
names the root.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from steps import options, say, steps


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    args = parser.parse_args()
    say(at=time.monotonic())
    for step in steps(args):
        begun = time.monotonic()
        names = sum(len(directories) + len(files) for _, directories, files in os.walk(step.root))
        say(epoch=step.epoch, seconds=time.monotonic() - begun, names=names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
