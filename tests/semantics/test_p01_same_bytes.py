"""P1: a read returns bytes of the source file at one version; never a mixture, a part, or another file's bytes."""

import hashlib
import os
import random
import threading

import pytest

from tests.semantics.tree import SIZES, content
from tests.support import LONG_S, Place, chill, read, settle, wait_until, warm

# Ways to read a file, each ending in the bytes.
WAYS = {
    "read": "with open(path, 'rb', buffering=0) as f: got = b''.join(iter(lambda: f.read(1000), b''))\ngot",
    "pread": "fd = os.open(path, 0); got = os.pread(fd, 10**6, 0); os.close(fd)\ngot",
    "preadv": "fd = os.open(path, 0); into = bytearray(10**6); got = bytes(into[:os.preadv(fd, [into], 0)]); os.close(fd)\ngot",
    "mmap": "import mmap\nwith open(path, 'rb') as f: got = mmap.mmap(f.fileno(), 0, access=1)[:] if os.stat(path).st_size else b''\ngot",
    "sendfile": (
        "fd, out = os.open(path, 0), os.memfd_create('x'); os.sendfile(out, fd, 0, 10**6)\n"
        "got = os.pread(out, 10**6, 0); os.close(fd); os.close(out)\ngot"
    ),
    "copy_file_range": (
        "fd, out = os.open(path, 0), os.open(path.split('/source')[0] + '/out', os.O_CREAT | os.O_RDWR | os.O_TRUNC)\n"
        "while os.copy_file_range(fd, out, 10**6): pass\n"
        "got = os.pread(out, 10**6, 0); os.close(fd); os.close(out)\ngot"
    ),
    "fopen": (
        "import ctypes\nc = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p\n"
        "f = c.fopen(path.encode(), b'rb'); into = ctypes.create_string_buffer(10**6)\n"
        "n = c.fread(into, 1, 10**6, ctypes.c_void_p(f)); c.fclose(ctypes.c_void_p(f)); into.raw[:n]"
    ),
    "cat": "import subprocess\nsubprocess.run(['cat', path], capture_output=True, check=True).stdout",
    "passed on": (
        "import subprocess\nwith open(path, 'rb') as f: got = subprocess.run(['cat'], stdin=f, capture_output=True, check=True).stdout\ngot"
    ),
}


def test_each_way_to_read_gives_the_source_s_bytes(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SIZES))
        for name in SIZES:
            for way, code in WAYS.items():
                assert worker.do(code, path=str(place.source / name)) == content(name), (name, way)
    assert worker.end().hits >= len(SIZES) * len(WAYS)


def test_each_name_of_a_file_leads_to_its_bytes(place: Place) -> None:
    names = {"to_a": "a", "to_d/x": "d/x", "harder": "hard", "hard": "hard", "d/../a": "a", "d//y": "d/y", "./e/./x": "e/x"}
    with place.worker() as worker:
        warm(place, worker, *(f"{place.source}/{name}" for name in names))
        for name, led_to in names.items():
            assert read(worker, f"{place.source}/{name}") == content(led_to), name
    # Of two names of one file there is one copy.
    assert len(place.objects()) == len(set(names.values()))


def test_a_name_with_a_slash_behind_it_is_no_file(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        for odd in ("a/", "a//", "a/.", "a/.."):
            with pytest.raises(NotADirectoryError):
                worker.do("os.open(path, 0)", path=f"{place.source}/{odd}")


def test_no_mixture_while_the_file_is_replaced(place: Place) -> None:
    """Each version is one letter.

    A writer outside the run replaces the file whole, now before a copy is published, now after.
    """
    replaced, size = place.source / "replaced", 200_000
    replaced.write_bytes(b"A" * size)
    settle(replaced)
    stop = threading.Event()

    def write() -> None:
        letters = random.Random(1)  # noqa: S311
        while not stop.wait(letters.uniform(0.5, 3.0)):
            new = place.source / "new"
            new.write_bytes(bytes([letters.randrange(65, 91)]) * size)
            new.rename(replaced)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with place.worker(freshness="ttl=1") as worker:
            # For a while, and until copies have answered.
            code = """
import time
seen, copies, begun = set(), 0, time.monotonic()
while time.monotonic() < begun + 9 or (copies < 10 and time.monotonic() < begun + limit):
    with open(path, 'rb') as file:
        copies += '/objects/' in os.readlink(f'/proc/self/fd/{file.fileno()}')
        seen.add(bytes(set(file.read())))
seen
"""
            seen = worker.do(code, path=str(replaced), limit=LONG_S)
    finally:
        stop.set()
        writer.join()
    assert seen
    assert all(len(letters) == 1 for letters in seen)
    assert worker.end().hits > 0


def test_a_file_that_changes_while_it_is_copied_is_not_published(place: Place) -> None:
    """The reader goes slowly, so that the copy of a large file takes a while.

    It is overwritten from outside halfway.
    """
    path, size = place.source / "slow", 3_000_000
    path.write_bytes(b"A" * size)
    settle(path)
    # What is in the page cache is copied ahead of its reader.
    chill(path)
    with place.worker() as worker:
        code = "f = open(path, 'rb', buffering=0); os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM); f.read(1_500_000)"
        worker.do(code, path=str(path))
        wait_until(lambda: place.status()["in_flight"] == 1, "the copy to begin")
        with path.open("r+b") as file:
            file.write(b"B" * size)
        worker.do("while f.read(100_000): pass\nf.close()")
        status = place.idle(1)
        assert status["not_copied"] == {"changed_meanwhile": 1}
        assert place.objects() == []
        assert read(worker, path) == b"B" * size


def test_a_copy_that_was_altered_is_not_opened(place: Place) -> None:
    """Another size or time of change: not the file that was published."""
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        (copy,) = place.objects()
        copy.chmod(0o600)
        copy.write_bytes(b"x" * SIZES["a"])
        assert read(worker, place.source / "a") == content("a")
    assert worker.end().counters["pass_copy_gone"] == 1


def test_large_files_in_pieces_of_all_sizes(place: Place) -> None:
    """Followed by workers in the reader's wake, then read again from the copy."""
    path = place.source / "shard"
    with path.open("wb") as file:
        for block in range(24):
            file.write(random.Random(block).randbytes(1 << 20))  # noqa: S311
    settle(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    code = (
        "import hashlib\nh = hashlib.sha256()\nwith open(path, 'rb', buffering=0) as f:\n"
        "  while piece := f.read(size): h.update(piece)\nh.hexdigest()"
    )
    with place.worker() as worker:
        assert worker.do(code, path=str(path), size=256 << 10) == digest
        warm(place, worker, path)
        for size in (4096, 100_001, 1 << 22):
            assert worker.do(code, path=str(path), size=size) == digest


def test_what_maps_a_copy_keeps_it_after_the_source_is_cut(place: Place) -> None:
    """Truncating a mapped file kills its reader with SIGBUS; a copy is never truncated."""
    with place.worker() as worker:
        warm(place, worker, place.source / "big")
        worker.do("import mmap\nwith open(path, 'rb') as f: m = mmap.mmap(f.fileno(), 0, access=1)", path=str(place.source / "big"))
        os.truncate(place.source / "big", 10)
        assert worker.do("m[:]") == content("big")


def test_descriptors_sent_to_others_lead_to_the_same_bytes(place: Place) -> None:
    code = """
import socket
a, b = socket.socketpair()
if os.fork() == 0:
    fd = os.open(path, os.O_RDONLY)
    socket.send_fds(a, [b'x'], [fd])
    os._exit(0)
_, (fd,), _, _ = socket.recv_fds(b, 1, 1)
os.wait()
got = os.pread(fd, 10**6, 0)
same = os.path.samestat(os.fstat(fd), os.stat(path))
os.close(fd)
got, same
"""
    with place.worker() as worker:
        warm(place, worker, place.source / "b")
        assert worker.do(code, path=str(place.source / "b")) == (content("b"), True)
