"""What the agent is told of uses that are over: each once, and none while anybody looks at its bytes."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from forebay.loader import DirectSource
from forebay.loader._agent import VIEWED_BYTES, Agent, AgentSource
from forebay.loader._place import place_of
from forebay.loader._settings import AgentSettings
from tests.loader.node import SAMPLES, Node, a_node

ROUNDS = 40
SETTINGS = AgentSettings(SAMPLES, 6, seed=0, window=6, window_bytes=1 << 20, hedge_budget=0.0)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with a_node(monkeypatch) as node:
        yield node


class Told:
    """A rank before the agent, and the uses of which it has told that they are over, or over but looked at."""

    def __init__(self, rank: Any) -> None:  # noqa: ANN401  (a class of the extension's that can't be derived from)
        self._rank = rank
        self.released: list[int] = []
        self.held: list[int] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._rank, name)

    def release(self, turns: Sequence[int]) -> None:
        self.released += turns
        self._rank.release(turns)

    def hold(self, turns: Sequence[int]) -> None:
        self.held += turns
        self._rank.hold(turns)


def begun(node: Node) -> tuple[Agent, AgentSource, Told]:
    place = place_of(0, 1)
    assert place is not None
    agent = Agent("0", SAMPLES, SETTINGS, place, ("ram=1M",))
    source = agent.source(DirectSource())
    source.register(None, node.locate)
    told = Told(agent._rank)
    agent._rank = told  # type: ignore[assignment]
    return agent, source, told


@pytest.mark.parametrize("viewed_bytes", [1, VIEWED_BYTES], ids=["each by itself", "together"])
def test_each_use_is_given_back_once_and_not_while_anybody_looks_at_it(
    viewed_bytes: int, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.loader._agent.VIEWED_BYTES", viewed_bytes)
    agent, source, told = begun(node)
    chance = random.Random(0)  # noqa: S311
    asked: list[int] = []
    for iteration in range(ROUNDS):
        samples = chance.sample([sample for sample in range(SAMPLES) if node.content(sample)], 6)
        request = source.request(samples, iteration)
        views = dict(enumerate(map(request.read, range(len(samples)))))
        turns = [turn for turn in request.turns if turn is not None]  # type: ignore[attr-defined]
        assert len(turns) == len(samples)
        asked += turns
        # Views end in any order, the batch somewhere among them.
        for place in chance.sample([*views, None], len(views) + 1):
            if place is None:
                request.release()
            else:
                del views[place]
            given_back = set(told.released)
            assert not given_back & {turns[kept] for kept in views}
            assert all(bytes(view) == node.content(samples[kept]) for kept, view in views.items())
        assert not agent._held
    # Nothing is left, and nothing was told of twice.
    assert sorted(told.released) == asked
    assert len(told.held) == len(set(told.held))
    assert agent.figures()["from_source"] <= SAMPLES
    source.close()
    agent.close()


def test_of_a_batch_that_is_over_what_nobody_looks_at_is_given_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.loader._agent.VIEWED_BYTES", 1)
    agent, source, told = begun(node)
    samples = [sample for sample in range(SAMPLES) if node.content(sample)][:4]
    request, other = source.request(samples[:3], 0), source.request(samples[3:], 1)
    views = [request.read(place) for place in range(3)]
    first, second, third = request.turns  # type: ignore[attr-defined]
    request.release()
    assert (told.released, sorted(told.held)) == ([], [first, second, third])
    del views[1:]
    assert bytes(other.read(0)) == node.content(samples[3])
    other.release()
    # With the next batch, where some of it stays; at once, where nothing does.
    assert {second, third} <= set(told.released)
    assert first not in told.released
    assert len(agent._held) == 1
    assert bytes(views[0]) == node.content(samples[0])
    views.clear()
    assert not agent._held
    assert first in told.released
    source.close()
    agent.close()
