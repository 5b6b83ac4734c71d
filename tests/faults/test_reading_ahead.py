"""F1, F5, F6, F11 and F14 while a large file is read ahead of its reader (`--prefetch file`)."""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.memory import within
from testbed.testbed import SlowFs
from tests import support
from tests.faults.harness import (
    SMALL,
    memory_limit,
    needs_fuse,
    needs_memory_groups,
    needs_root,
    slow_source,
    tmpfs,
    wait_for_reason,
)
from tests.faults.test_f05_source_changes import CHANGES as CHANGES_OF_COPIES
from tests.faults.test_f06_changes_during_a_copy import CHANGES as CHANGES_DURING_A_COPY
from tests.faults.test_f11_hung_source import answers_soon, begins_to_hang
from tests.faults.test_f14_memory import kills
from tests.support import LONG_S, Place, Worker, is_copy, read, wait_until, warm

pytestmark = [needs_root, needs_fuse]

LARGE = "large"
BYTES = 8 << 20
# The source answers 128 KiB at a time, two requests at the same time: all of it takes two seconds.
SLOW: dict[str, float] = {"read_us": 60_000, "slots": 2}
FIRST = 65_536
HOLD = f"held = open(path, 'rb', buffering=0)\nos.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_RANDOM)\nheld.read({FIRST})"
READ_REST = "rest = b''\nwhile piece := held.read(1 << 20): rest += piece\nheld.close()\nrest"


@dataclass(frozen=True)
class Ahead:
    """A worker that has read the first bytes of LARGE. The agent reads the rest ahead of it."""

    place: Place
    source: SlowFs
    worker: Worker
    content: bytes

    @property
    def path(self) -> Path:
        return self.source.mnt / LARGE

    def end(self) -> bytes:
        """Returns what the worker reads from its open file after the first bytes."""
        rest: bytes = self.worker.do(READ_REST)
        return rest


def _is_under_way(place: Place) -> bool:
    """Returns True if the agent has copied more than the reader has read, and not all."""
    with suppress(FileNotFoundError):
        return any((1 << 20) <= copy.stat().st_size < BYTES for copy in place.objects())
    return False


@contextmanager
def reading_ahead(place: Place, **options: Any) -> Iterator[Ahead]:
    """Ends while the file is half read."""
    content = os.urandom(BYTES)
    (place.source / LARGE).write_bytes(content)
    support.settle(place.source)
    with slow_source(place) as source, place.worker(source=source.mnt, prefetch="file", **options) as worker:
        warm(place, worker, source.mnt / SMALL[0])
        source.set(**SLOW)
        assert worker.do(HOLD, path=str(source.mnt / LARGE)) == content[:FIRST]
        wait_until(lambda: _is_under_way(place), "a file that is being read ahead")
        yield Ahead(place, source, worker, content)


def test_f01_the_tier_runs_full_while_a_file_is_read_ahead(place: Place) -> None:
    with tmpfs(place.tier, "size=12m"), reading_ahead(place) as ahead:
        with (place.tier / "tenant").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(65_536)):
                pass
        assert ahead.end() == ahead.content[FIRST:]
        wait_for_reason(place, "tier_was_full")
        assert len(place.objects()) == 1
        assert is_copy(ahead.worker, ahead.source.mnt / SMALL[0])
        assert place.status()["tiers"][0]["off"] is None


# The kernel of the source's mount sees no change of a file whose size and time are as before.
@pytest.mark.parametrize("change", [change for change in CHANGES_OF_COPIES if "clock_back" not in change.__name__])
def test_f05_a_file_that_was_read_ahead_changes(place: Place, change: Callable[[Path], bytes | None]) -> None:
    with reading_ahead(place, freshness="on_open") as ahead:
        assert ahead.end() == ahead.content[FIRST:]
        wait_until(lambda: is_copy(ahead.worker, ahead.path), "the copy")
        expected = change(place.source / LARGE)
        if expected is None:
            with pytest.raises(FileNotFoundError):
                read(ahead.worker, ahead.path)
        else:
            assert read(ahead.worker, ahead.path) == expected != ahead.content


@pytest.mark.parametrize("change", CHANGES_DURING_A_COPY)
def test_f06_a_file_changes_while_it_is_read_ahead(place: Place, change: Callable[[Path], None]) -> None:
    with reading_ahead(place) as ahead:
        change(place.source / LARGE)
        changed = (place.source / LARGE).read_bytes()
        assert changed != ahead.content
        ahead.end()
        wait_until(lambda: not place.status()["in_flight"], "the end of the copy")
        assert {"changed_meanwhile", "mostly_unread", "source_error"} & place.status()["not_copied"].keys()
        assert len(place.objects()) == 1
        assert read(ahead.worker, ahead.path) == changed


def test_f11_the_source_hangs_while_a_file_is_read_ahead(place: Place) -> None:
    """The program's own read waits, and nothing else."""
    with reading_ahead(place) as ahead:
        ahead.source.hang()
        try:
            begins_to_hang(ahead.worker, ahead.source.mnt / SMALL[1])
            answers_soon(lambda: read(ahead.worker, ahead.source.mnt / SMALL[0]))
            assert is_copy(ahead.worker, ahead.source.mnt / SMALL[0])
            answers_soon(place.status)
        finally:
            ahead.source.resume()
        ahead.worker.do(f"beside.join({LONG_S})")
        assert ahead.end() == ahead.content[FIRST:]
        wait_until(lambda: is_copy(ahead.worker, ahead.path), "the copy")


# Of a group of this size 16 MiB stay free, and files are read ahead while twice as much is.
GROUP_MIB = 256
SHORT_BYTES = 24 << 20
# The agent looks at the memory five times a second.
LOOK_S = 0.5
CRC_OF = """
import zlib
crc = 0
with open(path, "rb") as file:
    while piece := file.read(65_536):
        crc = zlib.crc32(piece, crc)
crc"""


def free_bytes(group: Path) -> int:
    """Returns the memory of a control group that is free, or holds clean pages of files."""
    is_first = (group / "memory.usage_in_bytes").exists()
    used = int((group / ("memory.usage_in_bytes" if is_first else "memory.current")).read_text())
    figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    pages = sum(int(figures[f"{'total_' if is_first else ''}{kind}_file"]) for kind in ("active", "inactive"))
    return (GROUP_MIB << 20) - (used - pages)


@needs_memory_groups
def test_f14_nothing_is_read_ahead_while_memory_is_short(place: Place) -> None:
    content = os.urandom(BYTES)
    for name in (LARGE, "other"):
        (place.source / name).write_bytes(content)
    support.settle(place.source)
    with memory_limit(place, GROUP_MIB) as group, slow_source(place) as source:
        words = place.words([place.python, "-E", support.WORKER], place.record_path(), source=source.mnt, prefetch="file")
        with Worker.started([*within(group), *words], environment=place.environment(), cwd=place.root) as worker:
            warm(place, worker, source.mnt / SMALL[0])
            worker.do("taken = []")
            while free_bytes(group) > SHORT_BYTES:
                worker.do("taken.append(bytearray(os.urandom(1 << 20)))")
            source.set(**SLOW)
            time.sleep(LOOK_S)
            assert worker.do(CRC_OF, path=str(source.mnt / LARGE)) == zlib.crc32(content)
            assert place.idle()["read_ahead_files"] == 0
            assert is_copy(worker, source.mnt / SMALL[0])
            worker.do("del taken")
            time.sleep(LOOK_S)
            assert worker.do(CRC_OF, path=str(source.mnt / "other")) == zlib.crc32(content)
            assert place.idle()["read_ahead_files"] == 1, "memory is there again"
        assert kills(group) == 0
        place.stop()
