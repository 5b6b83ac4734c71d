"""P12: the order is torch's, a pure function of seed, epoch, ranks and dataset.

And a job that stops goes on with each sample once.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from torch.utils.data import DataLoader as TorchLoader

from forebay import _core
from forebay.loader import StateError
from forebay.torch import DataLoader
from tests.loader.data import Indices

SAMPLES = st.integers(1, 60)
WORLDS = st.integers(1, 5)
BATCHES = st.integers(1, 7)
SEEDS = st.integers(0, 2**64 - 2**32) | st.integers(-(2**62), -1)
EPOCHS = st.integers(0, 5)


def ranks(samples: int, world: int, batch: int, **options: Any) -> list[DataLoader]:
    """A job's loaders."""
    options = {"shuffle": True, "seed": 0, "report": False, **options}
    return [DataLoader(Indices(samples), batch, rank=rank, world_size=world, **options) for rank in range(world)]


def listed(loader: Iterable[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@settings(max_examples=60)
@given(samples=SAMPLES, world=WORLDS, batch=BATCHES, shuffle=st.booleans(), drop_last=st.booleans(), seed=SEEDS, epoch=EPOCHS)
def test_p12_each_rank_gets_what_torch_gives_it(
    samples: int, world: int, batch: int, shuffle: bool, drop_last: bool, seed: int, epoch: int
) -> None:
    wanted = []
    for rank in range(world):
        sampler: DistributedSampler[Any] = DistributedSampler(
            Indices(samples), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        wanted.append(list(BatchSampler(sampler, batch, drop_last)))
    if not wanted[0]:
        with pytest.raises(ValueError, match=f"{samples} samples give {world} ranks no full batch of {batch}"):
            ranks(samples, world, batch, shuffle=shuffle, seed=seed, drop_last=drop_last)
        return
    for loader, batches in zip(ranks(samples, world, batch, shuffle=shuffle, seed=seed, drop_last=drop_last), wanted, strict=True):
        loader.set_epoch(epoch)
        assert listed(loader) == batches
        assert (len(loader), loader.epoch) == (len(batches), epoch + 1)


@settings(max_examples=30)
@given(samples=SAMPLES, world=WORLDS, batch=BATCHES, drops=st.tuples(st.booleans(), st.booleans()), seed=SEEDS, epoch=EPOCHS)
def test_p12_a_sampler_of_torchs_is_understood(
    samples: int, world: int, batch: int, drops: tuple[bool, bool], seed: int, epoch: int
) -> None:
    for rank in range(world):
        sampler: DistributedSampler[Any] = DistributedSampler(Indices(samples), world, rank, seed=seed, drop_last=drops[0])
        sampler.set_epoch(epoch)
        wanted = list(BatchSampler(sampler, batch, drops[1]))
        if not wanted:
            return
        loader = DataLoader(Indices(samples), batch, sampler=sampler, drop_last=drops[1], report=False)
        assert listed(loader) == wanted
        assert listed(loader) == wanted, "its epoch was not set again, so it is the same, as torch has it"
        loader.set_epoch(epoch + 1)
        assert sampler.epoch == epoch + 1
        assert listed(loader) == list(BatchSampler(sampler, batch, drops[1]))
        assert "samples" in loader.state_dict(), "so that it can go on with other ranks"


class Runs(Indices):
    """With three runs of samples that lie together."""

    def blocks(self) -> list[int]:
        return [3, 10, self.length]


@settings(max_examples=30)
@given(samples=st.integers(11, 40), world=WORLDS, batch=BATCHES, at_once=st.integers(1, 4), seed=st.integers(0, 2**32), epoch=EPOCHS)
def test_p12_a_block_shuffle_is_torchs_of_blocks_and_within_them(
    samples: int, world: int, batch: int, at_once: int, seed: int, epoch: int
) -> None:
    def permuted(length: int, key: int) -> list[int]:
        return torch.randperm(length, generator=torch.Generator().manual_seed(key)).tolist()

    runs = [range(3), range(3, 10), range(10, samples)]
    order: list[int] = []
    blocks = permuted(3, seed + epoch)
    for group, first in enumerate(range(0, 3, at_once)):
        together = [sample for block in blocks[first : first + at_once] for sample in runs[block]]
        order += [together[at] for at in permuted(len(together), _core.sample_key(seed + epoch, 2**32 - 1, group))]
    found: list[int] = []
    for rank in range(world):
        loader = DataLoader(Runs(samples), batch, "blocks", seed=seed, rank=rank, world_size=world, blocks_at_once=at_once, report=False)
        loader.set_epoch(epoch)
        wanted = (order + order[: -samples % world])[rank::world]
        assert list(itertools.chain.from_iterable(listed(loader))) == wanted
        found += wanted
    assert set(found) == set(range(samples))


def test_p12_a_block_shuffle_goes_on_over_the_same_blocks() -> None:
    def loader(at_once: int | None = None, **options: Any) -> DataLoader:
        return DataLoader(Runs(20), 4, "blocks", seed=1, blocks_at_once=at_once, report=False, **options)

    whole = listed(loader())
    stopped, resumed = loader(), loader(rank=0, world_size=1)
    had = [batch.tolist() for batch in itertools.islice(stopped, 2)]
    resumed.load_state_dict(stopped.state_dict())
    assert had + listed(resumed) == whole
    with pytest.raises(StateError, match="the dataset's blocks, and how many are mixed at once"):
        loader(at_once=2).load_state_dict(stopped.state_dict())
    torch.manual_seed(5)
    drawn = [listed(DataLoader(Runs(20), 4, "blocks", report=False)) for _ in range(2)]
    torch.manual_seed(5)
    assert [listed(DataLoader(Runs(20), 4, "blocks", report=False)) for _ in range(2)] == drawn
    assert drawn[0] != drawn[1]


def test_p12_without_a_seed_the_order_is_that_of_torchs_generator() -> None:
    kinds: list[Any] = [TorchLoader, DataLoader]
    orders = []
    for loader in [kind(Indices(50), 8, shuffle=True) for kind in kinds]:
        torch.manual_seed(4)
        orders.append([listed(loader) for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    own = [kind(Indices(50), 8, shuffle=True, generator=torch.Generator().manual_seed(9)) for kind in kinds]
    assert [listed(own[0]) for _ in range(2)] == [listed(own[1]) for _ in range(2)]


def test_p12_several_ranks_have_torchs_seed_unless_told_otherwise() -> None:
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(Indices(11), 2, rank)
        loader = DataLoader(Indices(11), 3, shuffle=True, rank=rank, world_size=2, report=False)
        assert listed(loader) == list(BatchSampler(sampler, 3, False))


def step(loaders: list[DataLoader], batches: int, uses: Counter[int]) -> dict[str, Any] | None:
    """Has all ranks take so many batches; counts samples that are not padding.

    The state, the same in all; None once the epoch is over.
    """
    iterators: list[Iterator[Any]] = [iter(loader) for loader in loaders]
    for _ in range(batches):
        for loader, iterator in zip(loaders, iterators, strict=True):
            if (batch := next(iterator, None)) is None:
                assert [next(iterator, None) for iterator in iterators] == [None] * len(loaders), "all end with the same step"
                return None
            indices = batch.tolist()
            uses.update(indices[: len(indices) - loader.padding])
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    return states[0]


@settings(max_examples=60)
@given(
    samples=SAMPLES, world=WORLDS, batch=BATCHES, shuffle=st.booleans(), drop_last=st.booleans(), seed=SEEDS, epoch=EPOCHS, data=st.data()
)
def test_p12_the_same_ranks_go_on_as_if_nobody_had_stopped(
    samples: int, world: int, batch: int, shuffle: bool, drop_last: bool, seed: int, epoch: int, data: st.DataObject
) -> None:
    if drop_last and samples < world * batch:
        return
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
    for whole, stopped, resumed in zip(*(ranks(samples, world, batch, **options) for _ in range(3)), strict=True):
        for loader in (whole, stopped):
            loader.set_epoch(epoch)
        done = data.draw(st.integers(0, len(whole)))
        had = [batch.tolist() for batch in itertools.islice(stopped, done)]
        resumed.load_state_dict(stopped.state_dict())
        assert resumed.epoch == epoch
        resumed.set_epoch(resumed.epoch)
        assert had + listed(resumed) == listed(whole)
        assert listed(resumed) == listed(whole), "and the next epoch is whole again"


@settings(max_examples=80)
@given(
    samples=SAMPLES,
    stages=st.lists(st.tuples(WORLDS, BATCHES, st.integers(0, 4)), min_size=1, max_size=4),
    last=st.tuples(WORLDS, BATCHES),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=SEEDS,
    epoch=EPOCHS,
)
def test_p12_each_sample_once_however_ranks_and_batches_change(
    samples: int, stages: list[tuple[int, int, int]], last: tuple[int, int], shuffle: bool, drop_last: bool, seed: int, epoch: int
) -> None:
    uses: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for world, batch, steps in [*stages, (*last, 100)]:
        if drop_last and samples < world * batch:
            continue
        loaders = ranks(samples, world, batch, shuffle=shuffle, drop_last=drop_last, seed=seed)
        for loader in loaders:
            loader.set_epoch(epoch)
            if state:
                loader.load_state_dict(state)
        before = uses.total()
        state = step(loaders, steps, uses)
        assert max(uses.values(), default=1) == 1
        if state is None:
            # What is dropped is less than a batch of all ranks.
            left = samples - uses.total()
            assert left < world * batch if drop_last else left == 0
            return
        assert state["samples"] == uses.total() >= before


def test_p12_a_state_is_counted_when_a_batch_is_handed_out() -> None:
    """However far the loader is ahead, and the same before, in and after the loop's body."""
    for workers in (0, 2):
        loader = DataLoader(Indices(20), 4, shuffle=True, seed=1, num_workers=workers, report=False)
        assert loader.state_dict()["samples"] == 0
        counted = [loader.state_dict()["samples"] for _ in loader]
        assert counted == [4, 8, 12, 16, 20]
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 0)


def test_p12_after_the_last_batch_nothing_is_left_but_the_epochs_end() -> None:
    loader = DataLoader(Indices(8), 4, seed=1, report=False)
    states = [loader.state_dict() for _ in loader]
    other = DataLoader(Indices(8), 4, seed=1, report=False)
    other.load_state_dict(states[-1])
    assert (other.epoch, listed(other), other.epoch) == (0, [], 1)


def test_p12_an_epoch_is_over_with_its_last_batch_for_who_counts_batches_too() -> None:
    counting, asking = (DataLoader(Indices(18), 4, shuffle=True, seed=1, report=False) for _ in range(2))

    def counted() -> list[list[int]]:
        return [batch.tolist() for _, batch in zip(range(len(counting)), counting, strict=False)]

    wanted = [listed(asking) for _ in range(3)]
    assert counting.left == 5
    assert [counted() for _ in range(2)] == wanted[:2]
    assert (counting.epoch, counting.left) == (1, 0)
    counting.set_epoch(1)
    assert counting.left == 5
    assert [counted(), counted()] == wanted[1:], "the epoch that was asked for, and the one after it"
    sampler = [3, 1, 2]
    own = DataLoader(Indices(18), 2, sampler=sampler, report=False)
    assert [own.left, *(own.left for _ in own)] == [2, 1, 0]
    unknown = DataLoader(Indices(18), 2, sampler=(index for index in sampler), report=False)
    with pytest.raises(TypeError):
        unknown.left  # noqa: B018  (a property)
    assert listed(unknown) == [[3, 1], [2]]


@pytest.mark.parametrize("drop_last", [False, True])
def test_p12_batches_that_were_had_elsewhere_are_left_out(drop_last: bool) -> None:
    for whole, skipping in zip(*(ranks(29, 3, 2, drop_last=drop_last) for _ in range(2)), strict=True):
        wanted = [listed(whole) for _ in range(2)]
        for skipped in range(len(whole) + 1):
            skipping.set_epoch(0)
            skipping.skip(skipped)
            assert skipping.left == len(whole) - skipped
            assert listed(skipping) == wanted[0][skipped:]
            assert listed(skipping) == wanted[1]
        skipping.set_epoch(0)
        skipping.skip(1)
        skipping.skip(2)
        had = next(iter(skipping)).tolist()
        assert had == wanted[0][3]
        skipping.load_state_dict(skipping.state_dict())
        with pytest.raises(ValueError, match=r"batches=9: [01] are left of epoch 0"):
            skipping.skip(9)
        assert listed(skipping) == wanted[0][4:]
    with pytest.raises(ValueError, match="batches=-1: give a whole number, 0 or more"):
        skipping.skip(-1)
    with pytest.raises(ValueError, match="a sampler of your own would give can't be left out: go on by load_state_dict"):
        DataLoader(Indices(3), sampler=[1]).skip(1)


def test_p12_what_is_left_out_is_of_the_epoch_that_a_sampler_of_torchs_was_told() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(Indices(20), 2, 1, seed=3)
    loader = DataLoader(Indices(20), 2, sampler=sampler, report=False)
    sampler.set_epoch(4)
    wanted = list(BatchSampler(sampler, 2, drop_last=False))
    for skipped in (3, 1):
        loader.skip(skipped)
        assert listed(loader) == wanted[skipped:]


def test_p12_what_is_left_out_of_an_order_that_is_drawn_is_of_the_same_order() -> None:
    torch.manual_seed(8)
    whole = listed(DataLoader(Indices(20), 4, shuffle=True, report=False))
    torch.manual_seed(8)
    skipping = DataLoader(Indices(20), 4, shuffle=True, report=False)
    skipping.skip(3)
    assert listed(skipping) == whole[3:]


def test_p12_another_epoch_than_the_states_begins_at_its_start() -> None:
    loader = DataLoader(Indices(8), 4, seed=1, report=False)
    next(iter(loader))
    state = loader.state_dict()
    assert listed(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]], "whoever goes through it again begins at the start"
    other = DataLoader(Indices(8), 4, seed=1, report=False)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert listed(other) == [[4, 5, 6, 7]]
    other.load_state_dict(state)
    other.set_epoch(1)
    assert listed(other) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_p12_a_seed_that_was_drawn_goes_on_too() -> None:
    torch.manual_seed(8)
    whole = listed(DataLoader(Indices(20), 4, shuffle=True, report=False))
    torch.manual_seed(8)
    stopped = DataLoader(Indices(20), 4, shuffle=True, report=False)
    had = [batch.tolist() for batch in itertools.islice(stopped, 2)]
    resumed = DataLoader(Indices(20), 4, shuffle=True, report=False)
    resumed.load_state_dict(stopped.state_dict())
    before = torch.get_rng_state()
    assert had + listed(resumed) == whole
    assert torch.equal(torch.get_rng_state(), before), "what the epoch drew was drawn when it began"


def test_p12_a_seed_that_was_given_is_taken_from_the_state() -> None:
    stopped = DataLoader(Indices(20), 4, shuffle=True, seed=6, report=False)
    had = [batch.tolist() for batch in itertools.islice(stopped, 2)]
    resumed = DataLoader(Indices(20), 4, shuffle=True, report=False)
    resumed.load_state_dict(stopped.state_dict())
    whole = DataLoader(Indices(20), 4, shuffle=True, seed=6, report=False)
    assert [had + listed(resumed), listed(resumed)] == [listed(whole), listed(whole)]


def test_p12_a_state_that_is_refused_gives_no_seed_either() -> None:
    seeded = DataLoader(Indices(20), 4, shuffle=True, seed=6, report=False).state_dict()
    other = DataLoader(Indices(20), 4, shuffle=True, report=False)
    before = other.state_dict()
    for key, value in (("epoch", -1), ("samples", "x"), ("seed", "x")):
        with pytest.raises(StateError, match="the state is damaged"):
            other.load_state_dict({**seeded, key: value})
        assert other.state_dict() == before
    assert (before["drawn"], before["seed"]) == (True, None)


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * 20, 17, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("workers", [0, 2])
def test_p12_custom_samplers_go_on_on_as_many_ranks(workers: int) -> None:
    def loader(sampler: Iterable[int], **options: Any) -> DataLoader:
        return DataLoader(Indices(20), 4, sampler=sampler, num_workers=workers, report=False, **options)

    whole = listed(loader(weighted()))
    assert whole == list(BatchSampler(weighted(), 4, False))
    stopped = loader(weighted())
    had = [batch.tolist() for batch in itertools.islice(stopped, 2)]
    state = stopped.state_dict()
    resumed = loader(weighted())
    resumed.load_state_dict(state)
    assert had + listed(resumed) == whole
    again = loader(weighted())
    again.load_state_dict(state)
    assert again.state_dict() == state
    seeded = loader(weighted(), seed=9)
    seeded.load_state_dict(state)
    assert seeded.state_dict() == {**state, "chance": 9}, "what its samples will draw from"
    others = loader(weighted(), rank=0, world_size=2)
    with pytest.raises(StateError, match=r"world=1, and this loader 2 .*can't be dealt to other ranks"):
        others.load_state_dict(state)
    different = loader(SequentialSampler(Indices(20)))
    different.load_state_dict(state)
    with pytest.raises(StateError, match="another order than before the state was saved"):
        listed(different)


def test_p12_custom_batch_samplers_go_on_on_as_many_ranks() -> None:
    batches = [[3, 1], [2], [7, 7, 0]]
    stopped = DataLoader(Indices(8), batch_sampler=batches, report=False)
    assert (len(stopped), stopped.batch_size) == (3, None)
    assert [batch.tolist() for batch in itertools.islice(stopped, 1)] == batches[:1]
    resumed = DataLoader(Indices(8), batch_sampler=batches, report=False)
    resumed.load_state_dict(stopped.state_dict())
    assert listed(resumed) == batches[1:]
    assert listed(resumed) == batches


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"samples": 21}, "length=20, and this loader 21"),
        ({"shuffle": False}, "shuffle=True, and this loader False"),
        ({"seed": 2}, "seed=1, and this loader 2"),
        ({"sampler": list(range(20)), "shuffle": None}, "has a sampler: leave sampler= and batch_sampler= out"),
    ],
)
def test_p12_a_state_of_another_order_is_refused(options: dict[str, Any], wrong: str) -> None:
    loader = DataLoader(Indices(20), 4, shuffle=True, seed=1, report=False)
    next(iter(loader))
    samples = options.pop("samples", 20)
    other = DataLoader(Indices(samples), 4, **{"shuffle": True, "seed": 1, "report": False, **options})
    before = other.state_dict()
    with pytest.raises(StateError, match=wrong):
        other.load_state_dict(loader.state_dict())
    assert other.state_dict() == before


def test_p12_states_that_can_not_be_understood_are_refused() -> None:
    custom = DataLoader(Indices(20), 4, sampler=list(range(20)), report=False)
    known = DataLoader(Indices(20), 4, report=False)
    with pytest.raises(StateError, match="has an order of its own: give it the same sampler"):
        known.load_state_dict(custom.state_dict())
    strangers: list[Any] = [{"_num_yielded": 3}, {}, None]
    for stranger in strangers:
        with pytest.raises(StateError, match=r"this is not a state of a forebay\.torch\.DataLoader"):
            known.load_state_dict(stranger)
    for key, value in (("samples", "x"), ("samples", -1), ("epoch", -1), ("epoch", 2**32 - 1)):
        with pytest.raises(StateError, match=f"the state is damaged: ValueError: {key}={value!r}"):
            known.load_state_dict({**known.state_dict(), key: value})
    with pytest.raises(StateError, match="version 2; this is known: 1"):
        known.load_state_dict({**known.state_dict(), "version": 2})
    drawn = DataLoader(Indices(20), 4, shuffle=True, report=False)
    next(iter(drawn))
    with pytest.raises(StateError, match="on one rank, and without seed=3"):
        DataLoader(Indices(20), 4, shuffle=True, seed=3, report=False).load_state_dict(drawn.state_dict())


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "sequential", "distributed", "random", "own"])
def test_p12_as_many_draws_from_the_global_generator_as_torchs_loader(kind: str, workers: int, persistent: bool) -> None:
    if persistent and not workers:
        return

    def options() -> dict[str, Any]:
        given: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
        if kind == "shuffled":
            return {**given, "shuffle": True}
        if kind == "distributed":
            return {**given, "sampler": DistributedSampler(Indices(10), 2, 0)}
        if kind == "random":
            return {**given, "sampler": RandomSampler(Indices(10), replacement=True)}
        return given if kind == "sequential" else {**given, "generator": torch.Generator().manual_seed(1), "shuffle": True}

    drawn = []
    loaders: list[Any] = [TorchLoader(Indices(10), 3, **options()), DataLoader(Indices(10), 3, report=False, **options())]
    for loader in loaders:
        torch.manual_seed(3)
        # Between batches training draws, too.
        drawn.append([(batch.tolist(), torch.rand(1)) for _ in range(2) for batch in loader])
    assert drawn[0] == drawn[1]


def test_p12_a_seeded_loader_draws_as_torchs_with_a_distributed_sampler() -> None:
    drawn = []
    loaders: list[Any] = [TorchLoader(Indices(10), 3, sampler=DistributedSampler(Indices(10), 1, 0)), *ranks(10, 1, 3)]
    for loader in loaders:
        torch.manual_seed(3)
        drawn.append((listed(loader), torch.rand(1)))
    assert drawn[0] == drawn[1]


def test_p12_a_state_beyond_its_epoch_is_refused() -> None:
    loader = DataLoader(Indices(10), 4, shuffle=True, seed=1, report=False)
    state = [loader.state_dict() for _ in loader][-1]
    assert state["samples"] == 10
    # It is at the very end.
    loader.load_state_dict(state)
    for beyond in (11, 10**9):
        with pytest.raises(StateError, match=f"the state is damaged: .*samples={beyond}, and an epoch has 10"):
            loader.load_state_dict({**state, "samples": beyond})
