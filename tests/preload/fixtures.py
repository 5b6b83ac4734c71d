"""Doors, for the modules that name this one in `pytest_plugins`."""

from collections.abc import Iterator

import pytest

from tests.preload.door import Door, make_door


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """A source that no test changes."""
    with make_door() as made:
        yield made


@pytest.fixture
def own_door() -> Iterator[Door]:
    """A source that one test may change."""
    with make_door() as made:
        yield made
