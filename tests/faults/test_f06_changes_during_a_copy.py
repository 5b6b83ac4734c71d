"""F6: the source changes while it is copied. That copy is dropped; what is read next is the new version."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import BIG, CORPUS, begin_big, end_big, wait_for_reason
from tests.support import Place, read, wait_until


def _overwrite_what_was_copied(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"new")


def _overwrite_what_is_to_be_copied(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"new")


def _truncate(path: Path) -> None:
    os.truncate(path, 500_000)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"new")


def _replace(path: Path) -> None:
    other = path.with_name(".other")
    other.write_bytes(b"new")
    other.rename(path)


CHANGES = [_overwrite_what_was_copied, _overwrite_what_is_to_be_copied, _truncate, _append, _replace]


@pytest.mark.parametrize("freshness", ["immutable", "ttl=60"])
@pytest.mark.parametrize("change", CHANGES)
def test_f06_a_change_by_an_uncovered_program(place: Place, change: Callable[[Path], None], freshness: str) -> None:
    path = place.source / BIG
    with place.worker(freshness=freshness) as worker:
        begin_big(place, worker)
        change(path)
        end_big(worker)
        worker.do("held.close()")
        # Of a file that has become shorter than its reader had come, the rest is waited for, and then it is given up.
        reasons = {"changed_meanwhile", "mostly_unread"} if change is _truncate else {"changed_meanwhile"}
        wait_until(lambda: reasons & place.status()["not_copied"].keys(), "the end of the copy")
        assert place.objects() == []
        assert read(worker, path) == path.read_bytes() != CORPUS[BIG]


def test_f06_a_change_by_a_covered_program(place: Place) -> None:
    path = place.source / BIG
    with place.worker() as worker:
        begin_big(place, worker)
        before = path.stat()
        worker.do("with open(path, 'r+b') as file: file.write(b'new')", path=str(path))
        end_big(worker)
        wait_for_reason(place, "changed_meanwhile")
        assert place.objects() == []
        assert path.stat().st_size == before.st_size
        assert read(worker, path) == path.read_bytes() != CORPUS[BIG]
