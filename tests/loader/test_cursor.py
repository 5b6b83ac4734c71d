"""The place of a loader in its epochs, without a loader."""

from typing import Any

import pytest
import torch

from forebay.loader import LoaderError, StateError
from forebay.torch._cursor import EpochCursor
from forebay.torch._plans import Ordering


def cursor(dataset: list[int], *, seed: int | None = 3, sampler: Any = None) -> EpochCursor:  # noqa: ANN401
    ordering = Ordering(4, None if sampler else True, seed, None, sampler, None, False, 0, 1)
    return EpochCursor(ordering, dataset, None, None)


def rest(one: EpochCursor) -> list[int]:
    place, _ = one.go_on(None)
    return [sample for batch in one.plan.begin(place, 0).batches() for sample in batch.samples]


def test_a_state_goes_on_after_what_was_had() -> None:
    one, other = cursor(list(range(10))), cursor(list(range(10)))
    whole = rest(one)
    one.set_epoch(0)
    one.skip(1, None)
    assert one.left(None) == 2
    other.load(one.state(None), None)
    assert rest(other) == whole[4:]
    # Another epoch begins at its beginning.
    other.set_epoch(1)
    assert (other.coming().epoch, other.left(None)) == (1, 3)


def test_a_place_beyond_the_epoch_and_another_dataset_s_state_are_refused() -> None:
    one = cursor(list(range(10)))
    with pytest.raises(ValueError, match="batches=4: 3 are left of epoch 0"):
        one.skip(4, None)
    state = one.state(None)
    with pytest.raises(StateError, match="length=10"):
        cursor(list(range(12))).load(state, None)
    with pytest.raises(ValueError, match="a sampler of your own"):
        cursor(list(range(10)), sampler=[1, 2]).skip(1, None)


def test_a_length_that_changes_is_followed_unless_it_has_to_stay() -> None:
    dataset = list(range(10))
    one = cursor(dataset)
    dataset += [10, 11, 12]
    assert len(one.plan_now(None)) == 4
    one.is_length_fixed = True
    with pytest.raises(LoaderError, match="the dataset has 13 samples, and had 10"):
        one.plan_now(None)


def test_peeking_draws_nothing() -> None:
    torch.manual_seed(5)
    one = cursor(list(range(10)), seed=None)
    before = torch.get_rng_state()
    one.state(None)
    assert torch.equal(torch.get_rng_state(), before)
