"""Doors, for the modules that name this one in `pytest_plugins`."""

from collections.abc import Iterator

import pytest

from tests.preload.door import Door, make_doors


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """A source that no test changes, with its copies."""
    with make_doors(1) as (made,):
        made.warm()
        yield made


@pytest.fixture(scope="session")
def own_doors(request: pytest.FixtureRequest) -> Iterator[list[Door]]:
    """One for each test that asks for its own, all made at once: their files must be two seconds old."""
    with make_doors(sum("own_door" in getattr(item, "fixturenames", []) for item in request.session.items)) as made:
        yield made


@pytest.fixture
def own_door(own_doors: list[Door]) -> Iterator[Door]:
    """A source that one test may change, with its copies."""
    made = own_doors.pop()
    made.warm()
    yield made
    made.place.remove()
