"""F5: the source is written through a shared mapping whose descriptor is closed.

Plain outcome: a reader finds what was written last.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import SMALL
from tests.support import NOBODY, Place, Worker, is_copy, read, wait_until, warm

PAGE = 4096
# Maps the file at `path` for writing, without a descriptor that stays; `put(value)` fills it with that byte.
BY_C = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(path, os.O_RDWR)
size = os.fstat(fd).st_size
at = c.mmap(None, size, 3, 1, fd, 0)
os.close(fd)
put = lambda value: ctypes.memset(at, value, size)
unmap = lambda: c.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
"""
# The same with torch, as tensordict and TorchRL do it.
BY_TORCH = """
import torch
mapped = torch.from_file(path, shared=True, size=os.path.getsize(path), dtype=torch.uint8)
put = mapped.fill_
def unmap():
    global mapped, put
    mapped = put = None
"""


@contextmanager
def plain_worker() -> Iterator[Worker]:
    """One that runs as it would without Forebay."""
    with Worker.started([sys.executable, "-E", support.WORKER]) as worker:
        yield worker


def filled(path: Path, value: int) -> bytes:
    return bytes([value]) * path.stat().st_size


@pytest.mark.parametrize(("mapping", "is_covered"), [(BY_C, True), (BY_C, False), (BY_TORCH, True)], ids=["mmap", "outside", "torch"])
def test_f05_no_copy_while_a_process_has_the_file_mapped_for_writing(place: Place, mapping: str, is_covered: bool) -> None:
    """Its dirty pages move no time when they are written again.

    Once it has unmapped the file, the last bytes are copied.
    """
    if mapping == BY_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    path = place.source / SMALL[0]
    with place.worker(freshness="on_open") as reader, plain_worker() as outside:
        writer = reader if is_covered else outside
        if mapping == BY_TORCH:
            writer.do("import torch")
        # Made just before it is mapped: one that lay there for long would count as changed in place, and be passed by
        # for that.
        path.write_bytes(path.read_bytes())
        writer.do(mapping, path=str(path))
        writer.do("put(1)")
        support.settle(path)
        for value in (1, 2, 3):
            writer.do(f"put({value})")
            assert read(reader, path) == path.read_bytes() == filled(path, value)
            assert not is_copy(reader, path)
        # Where the kernel wrote the pages back meanwhile, the next write moved the time.
        support.settle(path)
        assert not is_copy(reader, path)
        assert "open_for_writing" in place.idle()["not_copied"]
        writer.do("unmap()")
        support.settle(path)
        warm(place, reader, path)
        assert read(reader, path) == filled(path, 3)
    place.stop()
    with place.worker(freshness="on_open") as reader:
        assert read(reader, path) == filled(path, 3)


def test_f05_a_writer_by_a_mapping_that_cannot_be_looked_at(place: Place) -> None:
    """Dirty pages of another user's program are written back before the copy is made."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    path = place.source / SMALL[0]
    path.chmod(0o644)
    with plain_worker() as writer:
        writer.do(BY_C, path=str(path))
        writer.do("put(1)")
        place.give_to(NOBODY)
        support.settle(path)
        # Not its first write to this page, which is dirty.
        writer.do("put(2)")
        with place.worker(freshness="ttl=1") as reader:
            warm(place, reader, path)
            assert read(reader, path) == filled(path, 2)
            writer.do("put(3)")
            wait_until(lambda: read(reader, path) == filled(path, 3), "the write to be seen")
        place.stop()
        with place.worker(freshness="on_open") as reader:
            warm(place, reader, path)
            writer.do("put(4)")
            assert read(reader, path) == filled(path, 4)


@pytest.fixture
def in_memory(place: Place) -> Iterator[Path]:
    """A source on a file system in memory, where a write through a mapping moves no time."""
    source = place.runtime / "source"
    source.mkdir()
    (source / "file").write_bytes(bytes(PAGE))
    if subprocess.run(["stat", "-f", "-c", "%T", source], capture_output=True, text=True, check=False).stdout.strip() != "tmpfs":
        pytest.skip("needs /dev/shm in memory")
    yield source
    shutil.rmtree(source)


def test_f05_a_mapping_of_a_file_in_memory(place: Place, in_memory: Path) -> None:
    """A covered writer opens, maps, writes, unmaps: no time tells of it, its open for writing does."""
    path = in_memory / "file"
    support.settle(path)
    with place.worker(source=in_memory, freshness="on_open") as reader:
        warm(place, reader, path)
        reader.do(BY_C, path=str(path))
        # Reading first makes the page writable, so that the write itself is never seen by the kernel.
        reader.do("ctypes.string_at(at, size)")
        before = path.stat().st_mtime_ns
        for value in (1, 2):
            reader.do(f"put({value})")
            assert read(reader, path) == filled(path, value)
            assert not is_copy(reader, path)
        reader.do("unmap()")
        assert path.stat().st_mtime_ns == before, "or this tests nothing"
        # It rests for a minute from then on, as every file that was changed in place.
        assert read(reader, path) == filled(path, 2)
        assert not is_copy(reader, path)
