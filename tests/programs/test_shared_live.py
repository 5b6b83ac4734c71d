"""Files that some programs change while others have them open: every reader sees what it sees without Forebay."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import support
from tests.support import Place, Worker, is_copy, read, wait_until, warm


@pytest.fixture(scope="module")
def places() -> Iterator[list[Place]]:
    """One for each test, with its files made at once: they must be two seconds old."""
    with ExitStack() as stack:
        made = [stack.enter_context(support.place()) for _ in MAKE]
        for place, make in zip(made, MAKE, strict=True):
            make(place.source)
        support.settle(made[-1].source)
        yield made


def make_log(source: Path) -> None:
    (source / "log").write_text("first\n")


def make_lmdb(source: Path) -> None:
    if importlib.util.find_spec("lmdb"):
        subprocess.run([sys.executable, "-c", f"import os\npath = {str(source)!r}\n{LMDB_WRITES}\nadd(400)\nadd(200)"], check=True)


def make_hdf5(source: Path) -> None:
    if importlib.util.find_spec("h5py"):
        subprocess.run([sys.executable, "-c", HDF5_MAKES, source / "grows.h5", source / "locked.h5"], check=True)


MAKE: list[Callable[[Path], None]] = [make_log, make_lmdb, make_hdf5]
LMDB_WRITES = """
import lmdb
writes = lmdb.open(path, map_size=64 << 20)
def add(number):
    with writes.begin(write=True) as txn:
        first = txn.stat()["entries"]
        for key in range(first, first + number):
            txn.put(b"%08d" % key, b"value" * 20)
"""
LMDB_READS = """
import lmdb
reads = lmdb.open(path, readonly=True)
def entries():
    with reads.begin() as txn:
        return txn.stat()["entries"], len(list(txn.cursor().iternext(values=False)))
entries()
"""
HDF5_MAKES = """
import sys, h5py
for path in sys.argv[1:]:
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=range(100), maxshape=(None,), chunks=(64,))
"""
HDF5_WRITES = """
import h5py
writes = h5py.File(path, "r+", libver="latest")
writes.swmr_mode = True
x = writes["x"]
def add(number):
    x.resize((len(x) + number,))
    x[-number:] = number
    x.flush()
"""
HDF5_READS = """
import h5py
reads = h5py.File(path, "r", libver="latest", swmr=True)
def last():
    reads["x"].refresh()
    return len(reads["x"]), int(reads["x"][-1])
last()
"""


@contextmanager
def two_plain() -> Iterator[tuple[Worker, Worker]]:
    """Two processes that run as they would without Forebay."""
    words: list[support.Word] = [sys.executable, "-E", support.WORKER]
    with Worker.started(words) as one, Worker.started(words) as other:
        yield one, other


def together(ranks: tuple[Worker, Worker], source: Path, reads: str, writes: str, look: str) -> list[object]:
    """Returns the contents seen by an earlier and a later reader than the writer, at each step."""
    writer, reader = ranks
    seen: list[object] = [reader.do(reads, path=str(source))]
    writer.do(writes, path=str(source))
    for number in (200, 300, 300):
        writer.do(f"add({number})")
        seen.append(reader.do(look))
    return seen


def test_an_lmdb_environment_beside_its_writer(places: list[Place], tmp_path: Path) -> None:
    """The reader was there first, and redirected: its lock of the file beside makes its pages the source's."""
    if importlib.util.find_spec("lmdb") is None:
        pytest.skip("needs lmdb: uv sync --group programs")
    place = places[1]
    make_lmdb(tmp_path)
    with two_plain() as ranks:
        expected = together(ranks, tmp_path, LMDB_READS, LMDB_WRITES, "entries()")
    assert expected == [(number, number) for number in (600, 800, 1100, 1400)]
    with place.worker() as writer, place.worker() as reader:
        warm(place, reader, place.source / "data.mdb")
        assert together((writer, reader), place.source, LMDB_READS, LMDB_WRITES, "entries()") == expected
    assert reader.end().counters["locked"] == 1


def test_hdf5_that_is_read_while_it_grows(places: list[Place], tmp_path: Path) -> None:
    """Single writer, multiple readers; and without that, a reader's lock keeps a writer out."""
    if importlib.util.find_spec("h5py") is None:
        pytest.skip("needs h5py: uv sync --group programs")
    place = places[2]
    make_hdf5(tmp_path)

    def tried(ranks: tuple[Worker, Worker], source: Path) -> list[object]:
        writer, reader = ranks
        writer.do(HDF5_WRITES, path=str(source / "grows.h5"))
        seen: list[object] = [reader.do(HDF5_READS, path=str(source / "grows.h5"))]
        for number in (10, 20):
            writer.do(f"add({number})")
            seen.append(reader.do("last()"))
        reader.do("alone = h5py.File(path, 'r')", path=str(source / "locked.h5"))
        with pytest.raises(OSError, match=r".*") as refused:
            writer.do("other = h5py.File(path, 'r+')", path=str(source / "locked.h5"))
        return [*seen, refused.value.errno]

    with two_plain() as ranks:
        expected = tried(ranks, tmp_path)
    assert expected == [(100, 99), (110, 10), (130, 20), 11]
    with place.worker() as writer, place.worker() as reader:
        warm(place, reader, *(place.source / name for name in ("grows.h5", "locked.h5")))
        assert tried((writer, reader), place.source) == expected


APPEND = "with open(path, 'a') as file: file.write(line + '\\n')"
FOLLOW = "import subprocess\nfollowing = subprocess.Popen(['tail', '-n', '+1', '-f', path], stdin=-3, stdout=-1, text=True)"


def test_a_log_that_is_followed(places: list[Place]) -> None:
    """A writer that opens, appends and closes.

    `tail -f` that begins between two lines, when others have read the log since.
    """
    place = places[0]
    path = place.source / "log"
    with place.worker() as writer, place.worker() as reader:
        warm(place, reader, path)
        writer.do(APPEND, path=str(path), line="second")
        support.settle(path)
        for _ in range(3):
            assert read(reader, path) == b"first\nsecond\n"
            place.idle()
            assert not is_copy(reader, path), "it may grow again"
        reader.do(FOLLOW, path=str(path))
        wait_until(lambda: reader.do("following.stdout.readline()") == "second\n", "what was there")
        for line in ("third", "fourth"):
            writer.do(APPEND, line=line)
            assert reader.do("following.stdout.readline()") == f"{line}\n"
        reader.do("following.kill(); following.wait()")
    assert reader.end().counters["pass_live"] + reader.end().counters["pass_tombstoned"] >= 6


def test_what_is_written_once_is_redirected_as_before(places: list[Place]) -> None:
    """A shard that a job makes, by one open or by several, and reads then."""
    place = places[0]
    once, twice = place.source / "once", place.source / "twice"
    with place.worker() as worker:
        worker.do("Path(path).write_bytes(b'x' * 5000)", path=str(once))
        # As numpy's open_memmap does: the header by one open, the rest by another.
        worker.do("Path(path).write_bytes(b'head'); f = open(path, 'r+b'); f.seek(4); f.write(b'rest'); f.close()", path=str(twice))
        support.settle(once, twice)
        warm(place, worker, once, twice)
    assert worker.end().hits >= 2
