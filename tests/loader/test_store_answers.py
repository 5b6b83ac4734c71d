"""Answers of a store to range reads: the loader gets over each, or reports it in one clear line (F3, F4, F5)."""

import errno
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from forebay.loader import DirectSource, Extent, Source
from forebay.loader._paths import look_up
from forebay.torch import DataLoader
from tests.loader.test_objects import MIB, OPTIONS, ROOT, FilesAndObjects, Objects, both, read
from tests.views.conftest import bucket, moto
from tests.views.store import ReceivedRequest, StoreAnswer, first_times, refusal, truncated

__all__ = ["both", "bucket", "moto"]  # Fixtures of these tests, too.

CONTENT = bytes(at % 251 for at in range(1000))
ALL = f"bytes=0-{64 * MIB - 1}"
Fault = Callable[[StoreAnswer], StoreAnswer | None]

PASSING: dict[str, Fault] = {
    "slow down": lambda _: refusal(503, "SlowDown"),
    "internal error": lambda _: refusal(500, "InternalError"),
    "bad gateway": lambda _: StoreAnswer(502, {}, b"<html>no"),
    "too many requests": lambda _: refusal(429, "TooManyRequests"),
    "time out": lambda _: refusal(408, "RequestTimeout"),
    "no head": lambda _: None,
    "no body": lambda answer: replace(answer, sent=0),
    "half a body": truncated,
}
LASTING: dict[str, tuple[Fault, type[Exception], str]] = {
    "forbidden": (lambda _: refusal(403, "AccessDenied"), PermissionError, "AccessDenied: no; check the credentials and their rights"),
    "unauthorized": (lambda _: StoreAnswer(401, {}, b""), PermissionError, "HTTP status 401; check the credentials and their rights"),
    "expired": (lambda _: refusal(400, "ExpiredToken"), PermissionError, "ExpiredToken: no; check the credentials and their rights"),
    "gone": (lambda _: refusal(404, "NoSuchKey"), FileNotFoundError, "there is no such object"),
    "archived": (lambda _: refusal(403, "InvalidObjectState"), PermissionError, "InvalidObjectState"),
    "moved": (lambda _: StoreAnswer(301, {"location": "http://127.0.0.1:1/"}, b""), OSError, "HTTP status 301"),
    "not there": (lambda _: refusal(501, "NotImplemented"), OSError, "NotImplemented: no"),
    "another range": (
        lambda answer: replace(answer, headers=answer.headers | {"content-range": "bytes 1-1000/1001"}),
        OSError,
        "was answered with other bytes than were asked for",
    ),
    "no range": (lambda answer: replace(answer, status=204, headers={}, body=b""), OSError, "was answered with status 204, and not with"),
    "no version": (
        lambda answer: replace(answer, headers={name: value for name, value in answer.headers.items() if name.lower() != "etag"}),
        OSError,
        "was answered without its version (ETag)",
    ),
    "too much": (lambda answer: replace(answer, body=answer.body + b"x"), OSError, "was sent with more bytes than it has"),
    "too little": (lambda answer: replace(answer, body=answer.body[:-1]), OSError, "ended 1 bytes early"),
}


@pytest.fixture
def store(both: FilesAndObjects) -> Iterator[FilesAndObjects]:
    """With an object of 1000 bytes."""
    both.bucket.put("p/a", CONTENT)
    both.bucket.put("p/b", b"2")
    yield both
    both.bucket.behave = None


def ranges(both: FilesAndObjects) -> list[str | None]:
    return [one.range for one in both.bucket.asked if one.key == "p/a"]


@pytest.mark.parametrize("fault", PASSING)
def test_f03_what_passes_is_got_over(fault: str, store: FilesAndObjects, source: Source) -> None:
    store.bucket.behave = first_times(2, "p/a", PASSING[fault])
    assert read(source, [Extent(f"{ROOT}/a"), Extent(f"{ROOT}/b")]) == [CONTENT, b"2"]


@pytest.mark.parametrize("fault", LASTING)
def test_f03_what_lasts_is_said_in_one_line(fault: str, store: FilesAndObjects) -> None:
    answer, kind, words = LASTING[fault]
    store.bucket.behave = first_times(1000, "p/a", answer)
    with pytest.raises(kind) as caught:
        read(DirectSource(), [Extent(f"{ROOT}/a")])
    line = str(caught.value)
    assert words in line
    assert f"{ROOT}/a" in line
    assert "\n" not in line
    with pytest.raises(kind) as failed:
        list(DataLoader(Objects([Extent(f"{ROOT}/a")]), **OPTIONS, cache="ram=1M"))
    assert words in str(failed.value)


def test_f04_a_read_that_makes_progress_is_not_given_up_and_goes_on_where_it_stopped(store: FilesAndObjects, source: Source) -> None:
    store.bucket.behave = lambda asked, forward: replace(forward(), sent=100) if asked.key == "p/a" else forward()
    assert read(source, [Extent(f"{ROOT}/a"), Extent(f"{ROOT}/b")]) == [CONTENT, b"2"]
    # More often than $AWS_MAX_ATTEMPTS says, which counts failed attempts.
    assert ranges(store) == [ALL, *(f"bytes={at}-999" for at in range(100, 1000, 100))]


def test_f04_what_is_tried_in_vain_is_counted_from_the_last_progress_on(store: FilesAndObjects) -> None:
    # Each bit comes with the last attempt that there is for it.
    turns = itertools.cycle([refusal(503, "SlowDown"), refusal(500, "InternalError"), None])

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        return next(turns) or replace(forward(), sent=300)

    store.bucket.behave = behave
    assert read(DirectSource(), [Extent(f"{ROOT}/a")]) == [CONTENT]
    assert ranges(store) == [ALL] * 3 + ["bytes=300-999"] * 3 + ["bytes=600-999"] * 3 + ["bytes=900-999"] * 3


def test_f04_a_read_without_progress_is_given_up(store: FilesAndObjects) -> None:
    store.bucket.behave = lambda asked, forward: replace(forward(), sent=0 if asked.range == "bytes=100-999" else 100)
    with pytest.raises(OSError, match=r"ended (early|900 bytes early)"):
        read(DirectSource(), [Extent(f"{ROOT}/a")])
    assert ranges(store) == [ALL, *["bytes=100-999"] * 3]


CHANGES: dict[str, Callable[[FilesAndObjects], None]] = {
    "replaced": lambda both: both.bucket.put("p/a", bytes(1000)),
    "shorter": lambda both: both.bucket.put("p/a", b"2" * 10),
    "longer": lambda both: both.bucket.put("p/a", b"2" * 5000),
    "empty": lambda both: both.bucket.put("p/a", b""),
}


@pytest.mark.parametrize("forgets", [False, True], ids=["conditions", "no conditions"])
@pytest.mark.parametrize("change", CHANGES)
def test_f05_an_object_that_is_replaced_while_it_is_read_is_told_by_name(change: str, forgets: bool, store: FilesAndObjects) -> None:
    store.bucket.forgets_conditions = forgets

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if asked.range != "bytes=500-999":
            return truncated(forward())
        CHANGES[change](store)
        return forward()

    store.bucket.behave = behave
    with pytest.raises(OSError, match="it has changed since it was listed or first read") as caught:
        read(DirectSource(), [Extent(f"{ROOT}/a", 0, None, look_up(f"{ROOT}/a").mark)])
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, f"{ROOT}/a")


def test_f05_an_object_that_is_removed_while_it_is_read_is_told_by_name(store: FilesAndObjects) -> None:
    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if asked.range != "bytes=500-999":
            return truncated(forward())
        store.bucket.delete("p/a")
        return forward()

    store.bucket.behave = behave
    with pytest.raises(FileNotFoundError, match="there is no such object"):
        read(DirectSource(), [Extent(f"{ROOT}/a")])
