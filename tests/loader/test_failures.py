"""Exceptions of samples: of the dataset's own type, as torch's loader gives them, and never lost, hidden or hung on."""

import contextlib
import gc
import pickle
import time
import weakref
from typing import Any

import pytest
import torch

from forebay.loader import Extent, SampleError
from forebay.loader._failures import failure, sample_error
from forebay.torch import DataLoader
from tests.loader.data import Indices


class Mine(Exception):
    pass


class TwoArguments(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Silent(Exception):
    """Its message can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__


class Attached(Exception):
    """Holds what can't be sent to another process."""

    def __init__(self, message: str = "attached") -> None:
        super().__init__(message)
        self.function = lambda: 0


RAISED: dict[str, Any] = {
    "own": lambda: Mine("x"),
    "key": lambda: KeyError("k"),
    "value": lambda: ValueError("v"),
    "file": lambda: FileNotFoundError(2, "no", "f.bin"),
    "nothing": AssertionError,
    "two arguments": lambda: TwoArguments(1, 2),
    "silent": Silent,
    "attached": Attached,
    "unicode": lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "reason"),
}


class FailingSamples(Indices):
    def __init__(self, raised: str) -> None:
        super().__init__(6)
        self.raised = raised

    def __getitem__(self, index: int) -> object:
        if index == 4:
            raise RAISED[self.raised]()
        return index


def outcome(loader: Any) -> type[BaseException]:  # noqa: ANN401  (torch's or ours)
    with pytest.raises(Exception) as failed:  # noqa: PT011  (compared)
        list(loader)
    return type(failed.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("raised", RAISED)
def test_the_type_is_that_of_torchs_loader(raised: str, workers: int) -> None:
    dataset = FailingSamples(raised)
    theirs = outcome(torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=workers))
    ours = outcome(DataLoader(dataset, batch_size=2, num_workers=workers, report=False))
    # Where torch can't make the type again it gives a RuntimeError, which a SampleError is.
    assert ours is theirs or (theirs is RuntimeError and ours is SampleError)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("raised", RAISED)
def test_any_exception_may_be_skipped(raised: str, workers: int) -> None:
    loader = DataLoader(FailingSamples(raised), batch_size=2, num_workers=workers, on_error="skip", report=False)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [5]]
    assert loader.skipped == 1


def test_an_exception_that_would_end_the_loop_is_no_end_of_the_epoch() -> None:
    RAISED["stop"] = lambda: StopIteration("s")
    try:
        assert outcome(DataLoader(FailingSamples("stop"), batch_size=2, report=False)) is SampleError
    finally:
        del RAISED["stop"]


def test_an_exception_keeps_its_attributes_and_cause_in_one_process() -> None:
    error = FileNotFoundError(2, "No such file", "f.bin")
    error.__cause__ = cause = KeyError("k")
    got = sample_error([failure(Indices(9), 4, error)], 2, skip=False)
    assert got is error
    assert (error.errno, error.filename, str(error)) == (2, "f.bin", "[Errno 2] sample 4: No such file: 'f.bin'")
    assert isinstance(got.__cause__, SampleError)
    assert got.__cause__.__cause__ is cause
    again = sample_error([failure(Indices(9), 4, error)], 2, skip=False)
    assert str(again).count("sample 4") == 1, "one that is raised again is named once"


def test_an_exception_of_another_process_has_its_traceback_in_the_message() -> None:
    try:
        FailingSamples("key")[4]
    except KeyError as error:
        sent = pickle.loads(pickle.dumps(failure(Indices(9), 4, error)))  # noqa: S301
    got = sample_error([sent], 2, skip=False)
    assert type(got) is KeyError
    assert str(got).startswith("sample 4: KeyError: 'k'\n\nThe traceback of the process that raised it:\nTraceback")
    assert "in __getitem__" in str(got)


def test_a_type_that_only_one_process_knows_is_told_by_a_sample_error() -> None:
    class Local(Exception):
        pass

    sent = pickle.loads(pickle.dumps(failure(Indices(9), 4, Local("x"))))  # noqa: S301
    got = sample_error([sent], 2, skip=False)
    assert type(got) is SampleError
    assert str(got) == "sample 4: Local: x"


class LocatedFailures(FailingSamples):
    """A dataset that is decoded in threads."""

    keyed = True

    def locate(self, index: int) -> Extent:
        return Extent(__file__, index, 1)

    def decode(self, data: bytes, index: int, rng: object) -> object:
        return self[index]


@pytest.mark.parametrize("dataset", [FailingSamples, LocatedFailures])
def test_a_failure_keeps_nothing_of_its_loader(dataset: type[FailingSamples]) -> None:
    """Else the loader's source and its connections would stay until the garbage collector comes by."""
    gc.collect()
    gc.disable()
    try:
        source = weakref.ref(made := dataset("own"))
        with contextlib.suppress(Mine):
            list(DataLoader(made, batch_size=2))
        del made
        deadline = time.monotonic() + 10
        while source() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert source() is None
    finally:
        gc.enable()
