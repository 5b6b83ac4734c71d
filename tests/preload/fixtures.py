"""Covered sources, for the modules that name this one in `pytest_plugins`."""

from collections.abc import Iterator

import pytest

from tests.preload.covered import CoveredSource, make_covered_sources


@pytest.fixture(scope="session")
def covered() -> Iterator[CoveredSource]:
    """A source that no test changes, with its copies."""
    with make_covered_sources(1) as (made,):
        made.warm()
        yield made


@pytest.fixture(scope="session")
def own_covered_sources(request: pytest.FixtureRequest) -> Iterator[list[CoveredSource]]:
    """One for each test that asks for its own, all made at once: their files must be two seconds old."""
    with make_covered_sources(sum("own_covered" in getattr(item, "fixturenames", []) for item in request.session.items)) as made:
        yield made


@pytest.fixture
def own_covered(own_covered_sources: list[CoveredSource]) -> Iterator[CoveredSource]:
    """A source that one test may change, with its copies."""
    made = own_covered_sources.pop()
    made.warm()
    yield made
    made.place.remove()
