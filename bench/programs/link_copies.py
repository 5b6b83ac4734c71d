"""Makes a tree of symbolic links, with the names of a source's files, to the copies that opens of these files lead to.

usage: forebay run ... -- link_copies.py SOURCE NAMES TIER LINKS

A program that reads LINKS without Forebay reads the very bytes on disk that it would be given with it. The names are
those of NAMES, a local directory with the same files, so that the source is not listed. A file whose open does not lead
below TIER is linked to its namesake in NAMES instead. Nothing is read. One JSON line: how many links there are, and how
many of them lead to copies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def names_below(root: Path) -> Iterator[Path]:
    """Every file, relative to `root`."""
    for place, _, names in os.walk(root):
        yield from (Path(place, name).relative_to(root) for name in names)


def leads_to(path: Path) -> Path:
    """Returns the file that an open of this path leads to."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    finally:
        os.close(descriptor)


def main() -> int:
    """Exit code 0."""
    if len(sys.argv) != 5:
        print(__doc__, file=sys.stderr)
        return 2
    source, names, tier, links = map(Path, sys.argv[1:])
    made = copies = 0
    for name in names_below(names):
        target = leads_to(source / name)
        is_copy = target.is_relative_to(tier)
        link = links / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target if is_copy else names / name)
        made += 1
        copies += is_copy
    print(json.dumps({"files": made, "copies": copies}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
