"""Set-ups that several tests of the loader share."""

from collections.abc import Iterator

import pytest

from forebay.loader import DirectSource, Source
from tests.loader.node import LoaderNode, ServedSource, a_node


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoaderNode]:
    with a_node(monkeypatch) as node:
        yield node


@pytest.fixture(params=[DirectSource, ServedSource], ids=["direct", "agent"])
def source(both: object, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A source of a node that has files and the objects of `both`."""
    made: Source = request.param()
    yield made
    made.close()
