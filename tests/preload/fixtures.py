"""Covered sources, for the modules that name this one in `pytest_plugins`."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.preload.covered import CoveredSource, grow
from tests.support import PlacePool


@contextmanager
def warmed(pool: PlacePool) -> Iterator[CoveredSource]:
    with pool.taken() as place:
        made = CoveredSource(place)
        made.warm()
        yield made


@pytest.fixture(scope="session")
def covered_places() -> Iterator[PlacePool]:
    with PlacePool(grow) as pool:
        yield pool


@pytest.fixture(scope="session")
def covered(covered_places: PlacePool) -> Iterator[CoveredSource]:
    """A source that no test changes, with its copies."""
    with warmed(covered_places) as made:
        yield made


@pytest.fixture
def own_covered(covered_places: PlacePool) -> Iterator[CoveredSource]:
    """A source that one test may change, with its copies."""
    with warmed(covered_places) as made:
        yield made
