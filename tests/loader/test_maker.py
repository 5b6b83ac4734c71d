"""The making of a loader's batches, and the batches of an epoch, without a loader."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import default_collate

from forebay.loader import SampleError
from forebay.loader._reporter import LoaderReporter
from forebay.torch._cursor import EpochCursor
from forebay.torch._epoch import EpochBatches
from forebay.torch._maker import BatchMaker
from forebay.torch._plans import Ordering
from forebay.torch._processes import WorkOptions
from tests.loader.data import Indices, KeyedFiles

IN_TRAINING = WorkOptions(default_collate, 0, None, False, 0, None, None, None, False)


class Cracked(Indices):
    """Indices of which one can't be had."""

    def __getitem__(self, index: int) -> object:
        if index == 4:
            raise OSError("cracked")
        return index


def epoch(dataset: Any, options: WorkOptions = IN_TRAINING, *, skip: bool = False) -> tuple[EpochBatches, EpochCursor, LoaderReporter]:  # noqa: ANN401
    maker = BatchMaker(dataset, is_batching=True, is_skipping=skip)
    maker.check(options)
    cursor = EpochCursor(Ordering(4, None, 0, None, None, None, False, 0, 1), dataset, maker.located, None)
    reporter = LoaderReporter("0", 0, 1, None, is_saying=False)
    place, _ = cursor.go_on(None)
    return EpochBatches(maker, options, cursor, reporter, cursor.plan.begin(place, 0), place.epoch), cursor, reporter


def test_an_epoch_moves_the_place_and_is_reported() -> None:
    batches, cursor, reporter = epoch(Indices(10))
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert (cursor.place.epoch, cursor.place.used) == (0, 4)
    assert [batch.tolist() for batch in batches] == [[4, 5, 6, 7], [8, 9]]
    assert (cursor.place.epoch, cursor.place.used) == (1, 0)
    assert reporter.last is not None
    assert (reporter.last.samples, reporter.last.workers) == (10, 0)
    assert next(batches, None) is None


def test_a_sample_that_fails_ends_the_epoch_or_is_counted() -> None:
    batches, cursor, reporter = epoch(Cracked(10))
    next(batches)
    with pytest.raises(OSError, match=r"sample 4.*cracked") as failed:
        next(batches)
    assert isinstance(failed.value.__cause__, SampleError)
    assert (next(batches, None), cursor.place.used, reporter.last) == (None, 4, None)
    batches, _, reporter = epoch(Cracked(10), skip=True)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [5, 6, 7], [8, 9]]
    assert reporter.skipped == 1


@pytest.mark.parametrize(("is_persistent", "made"), [(False, [2, 2, 1]), (True, [2])])
def test_processes_are_made_again_if_options_change_unless_they_stay(
    is_persistent: bool, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []

    def processes(dataset: object, collate: object, options: WorkOptions, *, skip: bool) -> object:
        workers.append(options.num_workers)
        return object()

    monkeypatch.setattr("forebay.torch._maker.Processes", processes)
    maker = BatchMaker(Indices(4), is_batching=True, is_skipping=False)
    options = replace(IN_TRAINING, num_workers=2, persistent_workers=is_persistent)
    for changed in (options, options, replace(options, timeout=3), replace(options, num_workers=1)):
        maker.check(changed)
    assert workers == made


def test_batches_ahead_are_of_all_threads_or_of_each_process(tmp_path: Path) -> None:
    keyed, plain = (BatchMaker(dataset, is_batching=True, is_skipping=False) for dataset in (KeyedFiles(tmp_path, 4), Indices(4)))
    options = replace(IN_TRAINING, num_workers=3)
    assert (keyed.batches_ahead(options), plain.batches_ahead(options)) == (2, 6)
    assert keyed.batches_ahead(replace(options, prefetch_factor=5)) == 5
    with pytest.raises(ValueError, match="worker_init_fn is for worker processes"):
        keyed.check(replace(options, worker_init_fn=print))
