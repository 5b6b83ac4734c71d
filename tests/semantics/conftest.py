"""Places to run in, each with a tree of files that are old enough to be published."""

from collections.abc import Iterator

import pytest

from tests import support
from tests.semantics.tree import grow
from tests.support import Place


@pytest.fixture(scope="session")
def places(request: pytest.FixtureRequest) -> Iterator[list[Place]]:
    """One for each test that asks for it, all made at once: their files must be two seconds old."""
    wanted = sum("place" in getattr(item, "fixturenames", []) for item in request.session.items)
    made = [support.make_place() for _ in range(wanted)]
    try:
        for place in made:
            grow(place.source)
        if made:
            support.settle(made[-1].source)
        yield made
    finally:
        for place in made:
            place.remove()


@pytest.fixture
def place(places: list[Place]) -> Iterator[Place]:
    """A place of its own, with the tree of tree.py in its source."""
    place = places.pop()
    yield place
    place.remove()
