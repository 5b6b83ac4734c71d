"""F3: an error of the source is what the program would have seen without Forebay: the same errno at the same call."""

import errno as errnos
import sys

import pytest

from tests import support
from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, needs_fuse, needs_strace, slow_source, traced, wait_for_reason
from tests.support import Place, Word, Worker, is_copy, read, warm

STEPS = """
told = []
try:
    fd = os.open(path, os.O_RDONLY)
    told.append("opened")
    told.append(len(os.read(fd, 100)))
except OSError as error:
    told.append(error.errno)
told
"""


@needs_fuse
@pytest.mark.parametrize("errno", ["EIO", "ETIMEDOUT", "EACCES"])
@pytest.mark.parametrize("operation", ["lookup", "open", "read"])
def test_f03_the_same_error_at_the_same_call(place: Place, operation: str, errno: str) -> None:
    plain: list[Word] = [sys.executable, "-E", support.WORKER]
    with slow_source(place) as fs, Worker.started(plain) as without, place.worker(source=fs.mnt) as within:
        warm(place, within, fs.mnt / SMALL[0])
        fs.fail(errno, operation)
        expected = without.do(STEPS, path=str(fs.mnt / SMALL[1]))
        assert expected == (["opened"] if operation == "read" else []) + [getattr(errnos, errno)]
        assert within.do(STEPS, path=str(fs.mnt / SMALL[2])) == expected
        # What was copied before needs no source.
        assert read(within, fs.mnt / SMALL[0]) == CORPUS[SMALL[0]]
        fs.ok()
        assert read(within, fs.mnt / SMALL[2]) == CORPUS[SMALL[2]]


@needs_fuse
def test_f03_an_error_in_the_middle_of_a_file(place: Place) -> None:
    with slow_source(place) as fs, place.worker(source=fs.mnt) as worker:
        head = begin_big(place, worker, fs.mnt)
        fs.fail("EIO", "read")
        with pytest.raises(OSError, match="Input/output error"):
            worker.do("os.pread(held.fileno(), 4096, 700_000)")
        fs.ok()
        rest = worker.do("held.seek(300_000)\nrest = b''\nwhile piece := held.read(100_000): rest += piece\nrest")
        assert head + rest == CORPUS[BIG]
        assert read(worker, fs.mnt / BIG) == CORPUS[BIG]


@needs_strace
def test_f03_an_error_that_only_the_agent_sees_is_nobody_elses(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / SMALL[0])
        copies = place.objects()
        with traced(place, place.agent_pid(), "-e", "trace=pread64", "-e", "inject=pread64:error=EIO") as trace:
            assert read(worker, place.source / SMALL[1]) == CORPUS[SMALL[1]]
            wait_for_reason(place, "source_error")
        assert trace.injected()
        assert place.objects() == copies
        assert place.status()["tiers"][0]["off"] is None
        warm(place, worker, place.source / SMALL[1])
        assert is_copy(worker, place.source / SMALL[1])
