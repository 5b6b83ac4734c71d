"""Places to break: each with the corpus of harness.py in its source, old enough to be published."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests import support
from tests.faults.harness import grow
from tests.support import Place


@pytest.fixture(scope="session")
def places(request: pytest.FixtureRequest) -> Iterator[list[Place]]:
    """One for each test that asks for it, all made at once: their files must be two seconds old."""
    wanted = sum("place" in getattr(item, "fixturenames", []) for item in request.session.items)
    with ExitStack() as stack:
        made = [stack.enter_context(support.place()) for _ in range(wanted)]
        for place in made:
            grow(place.source)
        if made:
            support.settle(made[-1].source)
        yield made


@pytest.fixture
def place(places: list[Place]) -> Iterator[Place]:
    """A place of its own."""
    place = places.pop()
    yield place
    place.remove()
