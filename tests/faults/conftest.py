"""Places to break: each with the corpus of harness.py in its source, old enough to be published."""

from collections.abc import Iterator

import pytest

from tests.faults.harness import grow
from tests.support import Place, PlacePool


@pytest.fixture(scope="session")
def places() -> Iterator[PlacePool]:
    with PlacePool(lambda place: grow(place.source)) as pool:
        yield pool


@pytest.fixture
def place(places: PlacePool) -> Iterator[Place]:
    """A place of its own."""
    with places.taken() as made:
        yield made
