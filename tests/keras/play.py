"""Plays jobs, clones and refusals in one process, as TensorFlow takes seconds to start; prints a line of JSON for each.

Usage: play.py NAME...
"""

import json
import os
import sys

from tests.clone.clone_node import CloneNode, node
from tests.keras.early import played_early
from tests.keras.loops import LOOPS, REFUSED_LOOPS, looped, refused_loop, untrained
from tests.keras.matrix import ended_agent, played
from tests.keras.refusals import CASES, CLONES, held_reads, refused


def _told(place: CloneNode, name: str) -> object:
    if name == "ended agent":
        return ended_agent(place)
    if name == "held reads":
        return held_reads()
    if name == "untrained":
        return untrained(place)
    if name in REFUSED_LOOPS:
        return refused_loop(place, name)
    if name.startswith("early"):
        return played_early(place, name)
    loop, _, words = name.partition(" loop")
    if loop in LOOPS:
        return looped(place, loop, *words.split())
    return refused(place, name) if name in {**CASES, **CLONES} else played(place, name)


def main() -> None:
    with node() as place:
        os.environ.update(place.own)
        for name in sys.argv[1:]:
            print(json.dumps([name, _told(place, name)]), flush=True)


if __name__ == "__main__":
    main()
