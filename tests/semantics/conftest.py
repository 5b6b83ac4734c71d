"""Places to run in, each with a tree of files that are old enough to be published."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.testbed import have_fuse
from tests.semantics.tree import grow
from tests.support import Place, PlacePool


@pytest.fixture(scope="session")
def places() -> Iterator[PlacePool]:
    with PlacePool(lambda place: grow(place.source)) as pool:
        yield pool


@pytest.fixture
def place(places: PlacePool) -> Iterator[Place]:
    """A place of its own, with the tree of tree.py in its source."""
    with places.taken() as made:
        yield made


@pytest.fixture
def mnt(place: Place) -> Path:
    """A directory at which the source can be mounted by FUSE."""
    if reason := have_fuse():
        pytest.skip(reason)
    made = place.root / "mnt"
    made.mkdir()
    return made
