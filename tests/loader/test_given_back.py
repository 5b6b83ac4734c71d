"""Requests are given back to the agent once each, and none while anything refers to the sample's bytes."""

import gc
import random

import pytest

from forebay import _core
from forebay.loader import DirectSource
from forebay.loader._agent import AgentRank
from forebay.loader._agent_source import AgentBatch, AgentSource
from forebay.loader._joining import AgentJoining
from forebay.loader._place import place_of
from forebay.loader._settings import AgentSettings
from tests.loader.node import SAMPLES, LoaderNode

ROUNDS = 40
SETTINGS = AgentSettings(SAMPLES, 6, seed=0, window=6, window_bytes=1 << 20, hedge_budget=0.0)


def begun(node: LoaderNode) -> tuple[AgentRank, AgentSource, _core.LoaderRank]:
    place = place_of(0, 1)
    assert place is not None
    agent = AgentRank(AgentJoining("0", SAMPLES, SETTINGS, place, ("ram=1M",)))
    source = agent.source(DirectSource())
    source.register(None, node.locate)
    assert agent.rank is not None
    return agent, source, agent.rank


def requested(source: AgentSource, samples: list[int], iteration: int) -> AgentBatch:
    batch = source.request(samples, iteration)
    assert isinstance(batch, AgentBatch)
    return batch


def test_each_request_is_given_back_once_and_not_while_anybody_looks_at_it(node: LoaderNode) -> None:
    agent, source, rank = begun(node)
    chance = random.Random(0)  # noqa: S311
    for iteration in range(ROUNDS):
        samples = chance.sample([sample for sample in range(SAMPLES) if node.content(sample)], 6)
        batch = requested(source, samples, iteration)
        views = dict(enumerate(map(batch.read, range(len(samples)))))
        assert (rank.open, rank.references) == (6, 6)
        is_released = False
        # Views end in any order, the batch somewhere among them.
        for place in chance.sample([*views, None], len(views) + 1):
            if place is None:
                batch.release()
                is_released = True
            else:
                del views[place]
            left = {kept for kept, number in enumerate(batch.native.numbers) if number is not None}
            assert left == (set(views) if is_released else set(range(6)))
            assert rank.references == len(views)
            assert all(bytes(view) == node.content(samples[kept]) for kept, view in views.items())
        # None is left, and none was told of twice.
        assert rank.open == 0
    assert agent.figures()["from_source"] <= SAMPLES
    source.close()
    agent.close()


def test_of_a_batch_that_is_over_what_nobody_looks_at_is_given_back(node: LoaderNode) -> None:
    agent, source, rank = begun(node)
    samples = [sample for sample in range(SAMPLES) if node.content(sample)][:4]
    batch, other = requested(source, samples[:3], 0), requested(source, samples[3:], 1)
    views = [batch.read(place) for place in range(3)]
    batch.release()
    assert (rank.open, rank.references) == (4, 3)
    del views[1:]
    assert bytes(other.read(0)) == node.content(samples[3])
    other.release()
    # With the next batch, where some of it stays; immediately, where nothing does.
    assert (rank.open, rank.references) == (1, 1)
    assert bytes(views[0]) == node.content(samples[0])
    views.clear()
    assert (rank.open, rank.references) == (0, 0)
    source.close()
    agent.close()


def test_a_view_of_a_view_keeps_the_bytes_and_a_forgotten_batch_is_given_back(node: LoaderNode) -> None:
    agent, source, rank = begun(node)
    part = requested(source, [40], 0).read(0)[10:20]
    # Neither batch nor source is there any more.
    source.close()
    del source
    agent.close()
    gc.collect()
    assert (rank.open, rank.references) == (1, 1)
    assert bytes(part) == node.content(40)[10:20]
    assert part.readonly
    del part
    assert (rank.open, rank.references) == (0, 0)


def test_a_loan_holds_its_batch_until_it_ends(node: LoaderNode) -> None:
    agent, source, rank = begun(node)
    batch = requested(source, [40, 41], 0)
    assert source.pass_all_on(batch)
    loan = batch.native.lend()
    assert loan is not None
    assert batch.native.lend() is None
    batch.release()
    assert (rank.open, rank.references, loan.is_done) == (2, 1, False)
    # As when torch's iterator is forgotten.
    del loan
    assert (rank.open, rank.references) == (0, 0)
    source.close()
    agent.close()


def test_rows_are_copied_to_writable_memory_of_their_size_only(node: LoaderNode) -> None:
    agent, source, _ = begun(node)
    batch = requested(source, [40, 41], 0)
    for wrong in (bytes(20), bytearray(19), memoryview(bytearray(40))[::2]):
        with pytest.raises((ValueError, BufferError)):
            batch.native.gather(wrong, 10)
    length = len(node.content(41))
    rows = bytearray(2 * length)
    # The other one is of another size.
    missing, waited_s = batch.gather(rows, length)
    assert missing == [0]
    assert waited_s >= 0
    assert rows[length:] == node.content(41)
    batch.release()
    source.close()
    agent.close()
