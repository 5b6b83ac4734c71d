"""Frameworks with loaders of their own, unmodified: the same samples with copies and without.

Once warmed, every file from its copy.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import support
from tests.support import Place

HERE = Path(__file__).parent
NEEDED = ("datasets", "keras", "nvidia.dali", "tensorflow")


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


MISSING = [name for name in NEEDED if not is_there(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")

# In one process each: importing TensorFlow takes longer than reading.
TOGETHER = [("tf.data-tfrecord", "tf.data-files", "keras-fit"), ("dali-files", "dali-tfrecord"), ("datasets-arrow",), ("numpy-memmap",)]
EPOCHS = 2


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    """The data, at the source of one place."""
    with support.place() as made:
        words = [sys.executable, str(HERE / "make_records.py"), str(made.source)]
        subprocess.run(words, capture_output=True, check=True, timeout=support.PROGRAM_S)
        support.settle(made.source)
        yield made


def program(place: Place, names: tuple[str, ...]) -> list[str]:
    return [sys.executable, str(HERE / "frameworks.py"), str(place.source), *names]


def warm(place: Place) -> None:
    words = [str(place.command), "warm", "--source", str(place.source), "--tier", f"{place.tier}={place.tier_size}", str(place.source)]
    subprocess.run(words, env=place.environment(), capture_output=True, check=True, timeout=support.PROGRAM_S)


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_frameworks(shared: Place, names: tuple[str, ...]) -> None:
    plain = subprocess.run(program(shared, names), capture_output=True, check=True, timeout=support.PROGRAM_S).stdout
    assert len(set(plain.splitlines())) == EPOCHS * len(names)
    first = shared.run(*program(shared, names))
    assert first.out == plain
    # Of files that an earlier case has read there may be copies already.
    assert first.counters["handed_over"] + first.hits > 0
    warm(shared)
    with shared.adopted():
        later = shared.run(*program(shared, names))
    assert later.out == plain
    assert later.hits == later.counters["source_opens"] > 0, {name: count for name, count in later.counters.items() if count}
    # What they list `warm` has listed, too.
    assert later.counters["listings_saved"] == later.counters["source_listings"]
