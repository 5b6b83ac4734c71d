"""The native functions for orders: what they give is policy's, which has tests of its own.

Here that arguments and errors arrive.
"""

import itertools

import pytest
import torch

from forebay._core import BlockOrder, DatasetDeal, RestOfEpoch, counter_at, sample_key

WORD = 2**64 - 1


def test_an_epoch_is_dealt() -> None:
    deal = DatasetDeal(10, 3, 2, False, False)
    assert deal.iterations == 2
    whole = RestOfEpoch(deal, False, 0, 0, 0)
    assert [[whole.batch(rank, step) for step in range(3)] for rank in range(3)] == [
        [[0, 3], [6, 9], []],
        [[1, 4], [7, 0], []],
        [[2, 5], [8, 1], []],
    ]
    assert [whole.padding_of(rank, 1) for rank in range(3)] == [0, 1, 1]
    assert whole.iterations == 2
    assert [whole.used_after(steps) for steps in range(4)] == [0, 6, 10, 10]


@pytest.mark.parametrize(
    ("sampler", "loader", "steps", "dropped"), [(False, False, 3, 0), (False, True, 2, 1), (True, False, 3, 0), (True, True, 2, 1)]
)
def test_what_is_dropped_is_not_used(sampler: bool, loader: bool, steps: int, dropped: int) -> None:
    epoch = RestOfEpoch(DatasetDeal(5, 1, 2, sampler, loader), True, 3, 1, 0)
    assert (epoch.iterations, 5 - epoch.used_after(epoch.iterations)) == (steps, dropped)


def test_the_rest_of_an_epoch_is_dealt() -> None:
    rest = RestOfEpoch(DatasetDeal(10, 2, 2, False, False), True, 7, 2, 7)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(9)).tolist()
    assert [rest.batch(rank, 0) for rank in range(2)] == [[order[7], order[9]], [order[8], order[0]]]
    assert (rest.iterations, rest.padding_of(0, 0), rest.padding_of(1, 0), rest.used_after(1)) == (1, 0, 1, 10)
    assert RestOfEpoch(DatasetDeal(10, 2, 2, False, False), True, 7, 2, 2**40).iterations == 0


def test_seeds_and_keys_have_64_bits() -> None:
    deal = DatasetDeal(50, 1, 50, False, False)
    for seed in (0, WORD):
        wanted = torch.randperm(50, generator=torch.Generator().manual_seed(seed)).tolist()
        assert RestOfEpoch(deal, True, seed, 0, 0).batch(0, 0) == wanted
    assert sample_key(0, 0, 0) == 5_197_578_548_964_807_871
    assert sample_key(WORD, 2**32 - 1, 2**32 - 1) == 5_066_756_352_113_716_771
    for wrong in ((2**64, 0, 0), (-1, 0, 0), (0, 2**32, 0), (0, 0, 2**32)):
        with pytest.raises(OverflowError):
            sample_key(*wrong)


def test_a_permutation_is_computed_place_by_place() -> None:
    for length in (1, 2, 100):
        assert sorted(counter_at(length, 7, index) for index in range(length)) == list(range(length))
    assert [counter_at(50, 1, index) for index in range(50)] != [counter_at(50, 2, index) for index in range(50)]
    for length, index in ((5, 5), (0, 0)):
        with pytest.raises(ValueError, match=f"index {index} of a permutation of {length}"):
            counter_at(length, 1, index)


def test_blocks_are_mixed_some_at_a_time() -> None:
    deal = DatasetDeal(10, 1, 10, False, False)
    blocks = BlockOrder(deal, [2, 5, 10], 1)
    whole = blocks.epoch(3, 0, 0).batch(0, 0)
    of = [sum(sample >= end for end in (2, 5)) for sample in whole]
    assert sorted(whole) == list(range(10))
    assert len([1 for one, following in itertools.pairwise(of) if one != following]) == 2, "one after another"
    assert blocks.epoch(3, 0, 4).batch(0, 0) == whole[4:], "from a place on"
    assert blocks.epoch(WORD, 4, 0).batch(0, 0) == whole, "the sum of seed and epoch has 64 bits"
    with pytest.raises(ValueError, match="at block 1"):
        BlockOrder(deal, [2, 2, 10], 1)
    with pytest.raises(ValueError, match="blocks at once must be at least 1"):
        BlockOrder(deal, [2, 10], 0)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ((0, 1, 1, False, False), "samples must be at least 1"),
        ((1, 0, 1, False, False), "world must be at least 1"),
        ((1, 1, 0, False, False), "batch must be at least 1"),
        ((2**32 - 1, 1, 1, False, False), "at most 4294967294 samples can be counted"),
        ((2**40, 1, 1, False, False), "at most 4294967294 samples can be counted"),
        ((5, 2, 3, True, True), "5 samples give 2 ranks no full batch of 3"),
    ],
)
def test_an_order_that_can_not_be_is_refused(arguments: tuple[int, int, int, bool, bool], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        DatasetDeal(*arguments)
