"""Sources: what each must do, and what the direct one promises beside that. Another one joins by its maker in SOURCES."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.loader import DirectSource, Extent, LoaderError, Source
from forebay.loader.source import FILES_OPEN
from tests.loader.node import Served
from tests.support import LONG_S, wait_until

SOURCES: list[Callable[[], Source]] = [
    DirectSource,
    # All that is asked for is beyond its window.
    lambda: DirectSource(threads=1, window_bytes=1),
    lambda: DirectSource(threads=3, window_bytes=1000),
    Served,
]


@pytest.fixture(params=SOURCES, ids=["direct", "direct-narrow", "direct-small", "agent"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (100 * number))
    return paths


def whole(files: list[Path]) -> Callable[[int], Extent]:
    return lambda sample: Extent(str(files[sample]))


def test_what_was_requested_is_read(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    for sample in range(40):
        source.request(sample, sample // 4)
    for sample in range(40):
        data = source.read(sample)
        assert data.readonly
        assert data == files[sample].read_bytes()
        source.release(sample)


def test_samples_may_be_asked_for_in_any_order_by_several_threads(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    for sample in range(40):
        source.request(sample, sample // 4)
    wrong: list[int] = []

    def ask(samples: range) -> None:
        for sample in samples:
            if source.read(sample) != files[sample].read_bytes():
                wrong.append(sample)
            source.release(sample)

    threads = [threading.Thread(target=ask, args=(range(39 - first, -1, -3),), daemon=True) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert wrong == []


def test_a_sample_that_is_used_twice_is_read_and_released_twice(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    source.request(7, 0)
    source.request(7, 3)
    assert source.read(7) == files[7].read_bytes()
    source.release(7)
    files[7].unlink()
    assert source.read(7) == bytes([7]) * 700, "its second use was still to come"
    source.release(7)
    with pytest.raises(FileNotFoundError):
        source.read(7)


def test_an_extent_that_samples_share_is_read_once(source: Source, files: list[Path]) -> None:
    """While any of them is requested."""
    source.register(None, lambda sample: Extent(str(files[7])))
    for sample in (1, 2, 3, 2):
        source.request(sample, sample)
    assert source.read(1) == bytes([7]) * 700
    files[7].unlink()
    for sample in (1, 2, 2):
        source.release(sample)
    assert source.read(3) == bytes([7]) * 700
    source.release(3)
    with pytest.raises(FileNotFoundError):
        source.read(3)


def test_a_sample_that_can_not_be_located_fails_when_it_is_read(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    source.request(40, 0)
    with pytest.raises(IndexError):
        source.read(40)
    source.release(40)
    assert source.read(39) == files[39].read_bytes()


def test_what_is_no_extent_is_told_when_it_is_read(source: Source, files: list[Path]) -> None:
    """A path alone, for one."""
    found: list[Any] = [str(files[0]), (str(files[0]), 0, 10), None]
    source.register(None, found.__getitem__)
    for sample in range(3):
        source.request(sample, 0)
        with pytest.raises(TypeError, match=rf"locate\({sample}\) gave .*: have it give an Extent, of forebay\.loader"):
            source.read(sample)
        source.release(sample)


def test_bytes_stay_as_long_as_anything_refers_to_them(source: Source, files: list[Path]) -> None:
    if not source.is_lasting:
        return
    source.register(None, whole(files))
    source.request(9, 0)
    kept = source.read(9)[100:200]
    source.release(9)
    for sample in range(10, 40):
        source.request(sample, 1)
        source.read(sample)
        source.release(sample)
    assert kept == bytes([9]) * 100


def test_what_nobody_requested_is_read_at_once(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    assert source.read(5) == files[5].read_bytes()
    source.release(5)


def test_ranges_of_files_are_read(source: Source, files: list[Path]) -> None:
    extents = [Extent(str(files[30]), 1000, 10), Extent(str(files[30]), 2990), Extent(str(files[30]), 5000), Extent(str(files[0]), 0, 0)]
    source.register(None, extents.__getitem__)
    assert [bytes(source.read(sample)) for sample in range(4)] == [bytes([30]) * 10, bytes([30]) * 10, b"", b""]


def test_what_is_wrong_with_a_file_is_told(source: Source, files: list[Path], tmp_path: Path) -> None:
    extents = [Extent(str(tmp_path / "gone")), Extent(str(files[3]), 290, 20), Extent(str(tmp_path)), Extent(str(files[4]), 0, 401)]
    source.register(None, extents.__getitem__)
    for sample in range(4):
        source.request(sample, 0)
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as gone:
            source.read(0)
        assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, str(tmp_path / "gone"))
    with pytest.raises(EOFError, match=r"3 ends at byte 300, and the sample at 310: it was cut"):
        source.read(1)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        source.read(2)
    with pytest.raises(EOFError, match=r"4 ends at byte 400"):
        source.read(3)
    with pytest.raises(IndexError):
        source.read(4)


def test_another_epoch_begins_anew(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    for sample in range(40):
        source.request(sample, 0)
    source.read(1)
    source.register(None, whole(files[::-1]))
    source.request(1, 0)
    assert source.read(1) == bytes([38]) * 3800
    source.release(1)
    source.release(2)  # Of the epoch before: nothing is known of it any more.


def test_who_waits_is_woken_when_it_is_closed(source: Source, tmp_path: Path) -> None:
    """A pipe that nobody writes to stands for a file system that hangs."""
    os.mkfifo(tmp_path / "hung")
    begun = threading.Event()

    def locate(sample: int) -> Extent:
        begun.set()
        return Extent(str(tmp_path / "hung"))

    source.register(None, locate)
    source.request(0, 0)
    told: list[str] = []

    def ask() -> None:
        try:
            source.read(0)
        except LoaderError as error:
            told.append(str(error))

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in asking:
        thread.start()
    assert begun.wait(LONG_S)
    source.close()
    with pytest.raises(LoaderError, match="the source is closed"):
        source.read(0)
    # One of them may itself hang in the kernel, which has to let go of it.
    writer = os.open(tmp_path / "hung", os.O_RDWR | os.O_NONBLOCK)
    for thread in asking:
        thread.join(LONG_S)
        assert not thread.is_alive()
    os.close(writer)
    assert told == ["the source is closed"] * 2


def test_the_window_bounds_what_is_read_ahead(files: list[Path]) -> None:
    source = DirectSource(threads=2, window_bytes=5000)
    source.register(None, whole(files))
    for sample in range(40):
        source.request(sample, sample)
    most = 0
    for sample in range(40):
        source.read(sample)
        most = max(most, source.held_bytes)
        source.release(sample)
    # Beyond the window goes one file of each thread, and that of who asks.
    assert most < 5000 + 3 * 3900
    wait_until(lambda: source.held_bytes == 0, "all to be given back")
    source.close()


def test_what_is_due_first_is_read_first(tmp_path: Path) -> None:
    """Pipes hold up its only thread: the first until all is requested, each other until it is its turn."""
    os.mkfifo(tmp_path / "gate")
    for sample in range(1, 5):
        os.mkfifo(tmp_path / f"{sample}")
    source = DirectSource(threads=1)
    source.register(None, lambda sample: Extent(str(tmp_path / (f"{sample}" if sample else "gate"))))
    source.request(0, 0)
    # Opens once somebody has the other end open.
    gate = os.open(tmp_path / "gate", os.O_WRONLY)
    for sample, iteration in ((1, 5), (2, 3), (3, 3), (4, 1)):
        source.request(sample, iteration)
    os.close(gate)
    for sample in (4, 2, 3, 1):
        # Would wait for ever for another than the one whose turn it is.
        os.close(os.open(tmp_path / f"{sample}", os.O_WRONLY))
    source.close()


def test_files_of_which_ranges_are_read_stay_open_within_a_bound(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(FILES_OPEN + 10)]
    for path in paths:
        path.write_bytes(b"shard")
    source = DirectSource()
    source.register(None, lambda sample: Extent(str(paths[sample % len(paths)]), 1, 3))
    for sample in range(2 * len(paths)):
        assert bytes(source.read(sample)) == b"har"
        source.release(sample)
    assert len(opened_below(tmp_path)) == FILES_OPEN
    source.close()
    assert opened_below(tmp_path) == []


def opened_below(folder: Path) -> list[Path]:
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if folder in link.parents]


def test_it_leaves_no_thread(files: list[Path]) -> None:
    before = set(threading.enumerate())
    source = DirectSource()
    source.register(None, whole(files))
    for sample in range(40):
        source.request(sample, 0)
    assert set(threading.enumerate()) - before
    source.close()
    wait_until(lambda: set(threading.enumerate()) <= before, "its threads to end")
    with pytest.raises(LoaderError, match="closed"):
        source.request(1, 0)


@pytest.mark.parametrize(("threads", "window_bytes"), [(0, 1), (1, 0)])
def test_no_source_without_threads_or_room(threads: int, window_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least one thread and one byte"):
        DirectSource(threads=threads, window_bytes=window_bytes)
