"""Work that a clone does in advance, while it waits.

Its parent's memory, mapped, and memory of its own for the tensors that it lacks.
"""

import contextlib
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from forebay import _core
from forebay.clone._adapter import adapter_of
from forebay.clone._ahead import PreparedMemory
from forebay.clone._later import uncollected
from forebay.clone._manifest import Layout
from forebay.clone._resume import CloneRequest
from forebay.clone._shared import FROM_BYTES, Storage
from tests import support
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, taking, train, train_until
from tests.clone.jobs import WIDE, StateJob, job
from tests.clone.test_read_lease import ALL, LARGE, LENGTHS, Parent, Tensors, play


def given_to(here: CloneNode, memory: list[int], ranks: int = 1) -> list[_core.Mapped]:
    """Returns the shared tensors that rank 0 of a clone finds mapped, when a job's only rank has described its own."""
    rank = rank_of(here)
    say_lying(rank, memory)
    with here.cloning("trunk") as asked:
        told = CloneRequest.from_json(asked)
        return _core.Taking(told.directory, told.fork, 0, ranks).map_ahead()


def say_lying(rank: _core.Rank, memory: list[int]) -> None:
    """As a rank says it that knows nothing of its state."""
    text = os.memfd_create("text")
    rank.lying(text, memory)
    os.close(text)


def rank_of(here: CloneNode) -> _core.Rank:
    """A job of one rank, played by the test, until this is dropped."""
    rank = _core.Rank(str(here.forks), "trunk", 0, 1, False, 0)
    rank.measured(1)
    return rank


@pytest.fixture
def served(here: CloneNode, opened: Opened) -> CloneNode:
    """Somebody has started the agent."""
    opened(jobs.full(1), job="other")
    return here


def test_what_is_mapped_is_read_as_what_is_not(served: CloneNode) -> None:
    tensors = Tensors(readers=2)
    (mapped,) = given_to(served, [tensors.memory.descriptor])
    assert mapped.length == sum(LENGTHS)
    assert mapped.is_of(tensors.memory.descriptor)
    assert not mapped.is_of(tensors.aside.descriptor)
    early, late = tensors.reading(0, mapped), tensors.reading(1, mapped)
    digests = [tensors.digest(tensor) for tensor in ALL]
    assert [tensors.read(early, tensor) for tensor in ALL] == digests
    tensors.close()
    tensors.step()
    assert [tensors.read(late, tensor) for tensor in ALL] == digests, "it was copied aside"


def test_what_is_mapped_no_more_is_read(served: CloneNode) -> None:
    tensors = Tensors()
    (mapped,) = given_to(served, [tensors.memory.descriptor])
    mapped.close()
    assert not mapped.is_of(tensors.memory.descriptor)
    assert tensors.read(tensors.reading(mapped=mapped), 0) == tensors.digest(0)


def test_f53_memory_that_could_be_taken_away_is_not_mapped(served: CloneNode) -> None:
    """Its length is not sealed: who reads past the end of a file that was cut is killed."""
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 1 << 20)
    tensors = Tensors()
    assert [mapped.length for mapped in given_to(served, [unsealed, tensors.memory.descriptor])] == [sum(LENGTHS)]
    os.close(unsealed)


def test_a_clone_of_another_number_of_ranks_gets_nothing_ready(served: CloneNode) -> None:
    assert given_to(served, [Tensors().memory.descriptor], ranks=2) == []


def test_what_is_said_later_counts_and_of_who_has_gone_nothing_is_left(served: CloneNode) -> None:
    first, second = Tensors(), Tensors()
    rank = rank_of(served)
    say_lying(rank, [first.memory.descriptor])
    say_lying(rank, [second.memory.descriptor])
    with served.cloning("trunk") as asked:
        mine = taking(asked)
        (mapped,) = mine.map_ahead()
        assert mapped.is_of(second.memory.descriptor)
        assert mine.map_ahead() == [], "once"
    assert (held(served, first), held(served, second)) == (0, 1)
    del rank
    support.wait_until(lambda: not held(served, second), "no descriptor")


def held(here: CloneNode, tensors: Tensors) -> int:
    """Returns the number of descriptors of their memory that the agent has."""
    there = os.fstat(tensors.memory.descriptor)
    count = 0
    for descriptor in Path(f"/proc/{here.agent_pid()}/fd").iterdir():
        # It may be closed by now.
        with contextlib.suppress(FileNotFoundError):
            count += os.path.samestat(descriptor.stat(), there)
    return count


def test_a_clone_reads_from_what_it_has_mapped(here: CloneNode, opened: Opened) -> None:
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        adapter = adapter_of(parent.made.model)
        ahead = PreparedMemory(mine, adapter, (), 1)
        was = parent.fork()
        played = play(asked, mine)
        arenas = played.descriptors[4:]
        assert arenas
        assert all(ahead.mapped(arena) for arena in arenas)
        assert ahead.mapped(played.descriptors[0]) is None
        assert played.read() == was
        played.close()
        ahead.close()
    parent.train()
    parent.check()


def adamw_job(seed: int) -> StateJob:
    return job(jobs.adamw, seed, WIDE)


def test_an_optimizer_s_tensors_lie_in_shared_memory_at_once_and_are_moved_no_more(
    here: CloneNode, opened: Opened, executor: ThreadPoolExecutor
) -> None:
    made = adamw_job(1)
    session = opened(made)
    step = train(made, session, 2)
    with here.cloning("trunk") as asked:
        other = adamw_job(9)
        became = executor.submit(opened, other, job=None, asked=asked, wait_s=float(support.PROGRAM_S))
        train_until(made, session, lambda: bool(session.forks), step)
        support.wait_until(became.done, "the clone")
    clone = became.result()
    assert clone._source
    storage = clone._source._storage
    moments = {
        path: tensor for path, tensor in other.inventory().steady().items() if path.startswith("optimizer/") and tensor.nbytes >= FROM_BYTES
    }
    assert len(moments) == 3
    places = {path: storage.place(tensor) for path, tensor in moments.items()}
    assert None not in places.values()
    assert storage.share(other.inventory().steady()) == {}
    train(other, clone, 3, 1000)
    assert {path: storage.place(tensor) for path, tensor in moments.items()} == places


def test_more_than_was_made_ready_is_made_then(served: CloneNode) -> None:
    large = Layout("float32", (FROM_BYTES // 4,), (1,), "cpu")
    memory = _core.Shared(2 * FROM_BYTES)
    rank = rank_of(served)
    say_lying(rank, [memory.descriptor])
    with served.cloning("trunk") as asked:
        ahead = PreparedMemory(taking(asked), adapter_of(torch.nn.Identity()), (), 1)
        tensors = [ahead.empty(large) for _ in range(3)]
        small = ahead.empty(Layout("float32", (1,), (1,), "cpu"))
    storage = Storage(adapter_of(torch.nn.Identity()), ahead.arenas)
    assert [storage.place(tensor) for tensor in [*tensors, small]] == [(0, 0), (0, FROM_BYTES), None, None]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [tensor.mean().item() for tensor in tensors] == [0, 1, 2]
    ahead.close()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_of_garbage_waits_and_stays_as_it_was(*, was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


def test_a_parent_that_moves_its_tensors_is_read_all_the_same(here: CloneNode, opened: Opened) -> None:
    """The memory that the clone mapped in advance no longer holds the tensors."""
    parent = Parent(opened)
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        ahead = PreparedMemory(mine, adapter_of(parent.made.model), (), 1)
        assert ahead.arenas == []
        parent.made.model.double().float()
        was = parent.fork()
        played = play(asked, mine)
        assert set(was) == set(LARGE)
        assert played.read() == was
        ahead.close()
        played.close()
    parent.train()
