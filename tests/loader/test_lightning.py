"""The loader for Lightning, without Lightning: when it begins, and which states it takes.

With Lightning: test_trainers.py.
"""

from typing import Any

import pytest

from forebay.lightning import DataLoader
from forebay.loader import StateError
from tests.loader.data import Indices


class CountedEpochs(Indices):
    """Counts what is read of it."""

    reads = 0

    def __getitem__(self, index: int) -> object:
        self.reads += 1
        return index


def made(batch_size: int = 4, samples: int = 20, **options: Any) -> DataLoader:
    return DataLoader(Indices(samples), batch_size, shuffle=True, seed=1, report=False, **options)


def test_it_begins_with_the_first_batch_that_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    samples = CountedEpochs(20)
    loader = DataLoader(samples, 4, seed=1)
    forgotten, batches = iter(loader), iter(loader)
    loader.sampler.set_epoch(2)
    assert (samples.reads, len(loader), loader.loader.epoch) == (0, 5, 2)
    assert [next(batches).tolist() for _ in range(5)] == [[4 * batch, 4 * batch + 1, 4 * batch + 2, 4 * batch + 3] for batch in range(5)]
    assert capfd.readouterr().err == ""
    del forgotten, batches
    assert capfd.readouterr().err.startswith("forebay: epoch 2: 20 samples"), "nobody asked for one more"
    assert samples.reads == 20
    wrong = made(0)
    with pytest.raises(ValueError, match="batch_size=0"):
        len(wrong)


def test_a_state_from_the_middle_of_an_epoch_needs_as_many_batches() -> None:
    stopped = made()
    batches = iter(stopped)
    next(batches)
    with pytest.raises(StateError, match="4 batches were left of epoch 0, and now it would be 8: Lightning counts batches"):
        made(2).load_state_dict(stopped.state_dict())
    resumed = made()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
    whole = made()
    for _ in zip(range(5), whole, strict=False):
        ended = whole.state_dict()
    other = made(2)
    other.load_state_dict(ended)
    assert (other.loader.epoch, len([*other])) == (1, 10), "an epoch that ended is not gone through again"
