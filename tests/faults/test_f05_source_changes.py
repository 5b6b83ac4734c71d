"""F5: the source changes after it was copied, behind the preload library's back.

Never a mixture; never older than the freshness allows.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import CORPUS, SMALL
from tests.support import Place, Worker, is_copy, keep_recent, read, warm

TTL_S = 5
NEW = bytes(range(256)) * 120


def _overwrite(path: Path) -> bytes:
    with path.open("r+b") as file:
        file.write(NEW[:5000])
    return path.read_bytes()


def _overwrite_and_set_the_clock_back(path: Path) -> bytes:
    before = path.stat()
    _overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path.read_bytes()


def _replace(path: Path) -> bytes:
    other = path.with_name(f".{path.name}")
    other.write_bytes(NEW)
    other.rename(path)
    return NEW


def _replace_by_one_of_the_same_size_and_time(path: Path) -> bytes:
    before = path.stat()
    other = path.with_name(f".{path.name}")
    other.write_bytes((NEW * 2)[: before.st_size])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    return path.read_bytes()


def _truncate(path: Path) -> bytes:
    os.truncate(path, 777)
    return path.read_bytes()


def _append(path: Path) -> bytes:
    with path.open("ab") as file:
        file.write(NEW)
    return path.read_bytes()


def _delete(path: Path) -> None:
    path.unlink()


CHANGES: list[Callable[[Path], bytes | None]] = [
    _overwrite,
    _overwrite_and_set_the_clock_back,
    _replace,
    _replace_by_one_of_the_same_size_and_time,
    _truncate,
    _append,
    _delete,
]


def now_read(worker: Worker, path: Path) -> bytes | None:
    """Returns the bytes that the worker reads; None if there is nothing to read."""
    try:
        return read(worker, path)
    except FileNotFoundError:
        return None


def test_f05_on_open_sees_every_change_at_once(place: Place) -> None:
    paths = [place.source / name for name in SMALL]
    with place.worker(freshness="on_open") as worker:
        warm(place, worker, *paths)
        for path, change in zip(paths, CHANGES, strict=False):
            expected = change(path)
            assert expected != CORPUS[path.name]
            assert now_read(worker, path) == expected, change.__name__
        untouched = paths[len(CHANGES)]
        assert is_copy(worker, untouched)
        assert read(worker, untouched) == CORPUS[untouched.name]
    assert worker.ran
    assert worker.ran.counters["pass_source_changed"] >= len(CHANGES) - 1


def test_f05_ttl_sees_every_change_in_time(place: Place) -> None:
    paths = [place.source / name for name in SMALL[: len(CHANGES)]]
    with place.worker(freshness=f"ttl={TTL_S}") as worker:
        warm(place, worker, *paths)
        expected: dict[Path, bytes | None] = {}
        last: dict[Path, bytes | None] = {}
        changed_at = {}
        for path, change in zip(paths, CHANGES, strict=True):
            expected[path] = change(path)
            changed_at[path] = time.monotonic()
        while time.monotonic() < max(changed_at.values()) + TTL_S + 1:
            for path in paths:
                asked_at = time.monotonic()
                found = now_read(worker, path)
                assert found in (CORPUS[path.name], expected[path]), f"a mixture of {path}"
                assert found == expected[path] or asked_at < changed_at[path] + TTL_S, f"{path} is too old"
                assert last.get(path, found) in (CORPUS[path.name], found), f"{path} went back in time"
                last[path] = found
        assert all(now_read(worker, path) == expected[path] for path in paths)


@pytest.mark.parametrize("freshness", ["on_open", "ttl=60", "immutable"])
def test_f05_versions_of_one_size_in_one_tick_of_the_clock(place: Place, freshness: str) -> None:
    """And of one time of modification, which is too recent to tell anything."""
    path = place.source / SMALL[0]
    with place.worker(freshness=freshness) as worker:
        for version in range(60):
            content = bytes([version]) * 4096
            with path.open("r+b") as file:
                file.truncate(4096)
                file.write(content)
            keep_recent(path)
            assert read(worker, path) == content
        # What was changed so recently is not published: its timestamps might not tell its next change.
        assert place.idle(60)["not_copied"]["recently_modified"] == 60
        assert place.objects() == []
