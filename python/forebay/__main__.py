"""`python -m forebay` is the command `forebay`."""

import os
import sys

from forebay import command

path = command()
os.execv(path, [str(path), *sys.argv[1:]])  # noqa: S606  (no shell is the point)
