"""Places to run other people's programs in."""

from collections.abc import Iterator

import pytest

from tests import support
from tests.support import Place


@pytest.fixture
def place() -> Iterator[Place]:
    with support.place() as made:
        yield made
