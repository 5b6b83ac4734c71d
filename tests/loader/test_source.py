"""Sources: what each must do, and what the direct one promises beside that.

Another one joins by its maker in SOURCES.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.loader import DirectSource, Extent, LoaderError, Source
from forebay.loader.source import FILES_OPEN, read_sample
from tests.loader.node import ServedSource
from tests.loader.singly import Singly
from tests.support import LONG_S, wait_until

SOURCES: list[Callable[[], Source]] = [
    DirectSource,
    # All that is asked for is beyond its window.
    lambda: DirectSource(threads=1, window_bytes=1),
    lambda: DirectSource(threads=3, window_bytes=1000),
    ServedSource,
]


@pytest.fixture(params=SOURCES, ids=["direct", "direct-narrow", "direct-small", "agent"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def singly(source: Source) -> Singly:
    return Singly(source)


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
    batches = [list(range(first, first + 4)) for first in range(0, 40, 4)]
    requests = [source.request(samples, iteration) for iteration, samples in enumerate(batches)]
    for samples, request in zip(batches, requests, strict=True):
        for place, sample in enumerate(samples):
            data = request.read(place)
            assert data.readonly
            assert data == files[sample].read_bytes()
        request.release()


def test_what_was_read_is_at_hand(source: Source, files: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hung")
    extents = [*map(whole(files), range(5)), Extent(str(tmp_path / "gone")), Extent(str(tmp_path / "hung"))]
    source.register(None, extents.__getitem__)
    request = source.request([3, 1, 5, 4, 99, 3, 6], 0)
    for place in (0, 1, 3, 5):
        request.read(place)
    for place, error in ((2, FileNotFoundError), (4, IndexError)):
        with pytest.raises(error):
            request.read(place)
    contents = [files[sample].read_bytes() for sample in range(5)]
    # What could not be had, and what has yet to come, nobody waits for.
    assert request.at_hand(range(7)) == [contents[3], contents[1], None, contents[4], None, contents[3], None]
    found = request.at_hand(range(1, 4))
    assert found == [contents[1], None, contents[4]]
    assert found[0] is not None
    assert found[0].readonly
    assert request.at_hand(range(3, 3)) == []
    request.release()
    # Threads that hang there are released.
    writer = os.open(tmp_path / "hung", os.O_RDWR | os.O_NONBLOCK)
    source.close()
    os.close(writer)


def test_a_batch_may_be_larger_than_all_windows(source: Source, files: list[Path]) -> None:
    source.register(None, lambda sample: Extent(str(files[sample % 40])))
    samples = [number % 40 for number in range(1000)]
    request = source.request(samples, 0)
    for place in reversed(range(1000)):
        assert request.read(place) == files[samples[place]].read_bytes()
    request.release()


def test_samples_may_be_asked_for_in_any_order_by_several_threads(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    request = source.request(list(range(40)), 0)
    wrong: list[int] = []

    def ask(samples: range) -> None:
        wrong.extend(sample for sample in samples if request.read(sample) != files[sample].read_bytes())

    threads = [threading.Thread(target=ask, args=(range(39 - first, -1, -3),), daemon=True) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert wrong == []
    request.release()


def test_a_sample_that_is_used_twice_is_read_and_released_twice(singly: Singly, files: list[Path]) -> None:
    singly.register(None, whole(files))
    singly.request(7, 0)
    singly.request(7, 3)
    assert singly.read(7) == files[7].read_bytes()
    singly.release(7)
    files[7].unlink()
    assert singly.read(7) == bytes([7]) * 700, "its second use was still to come"
    singly.release(7)
    if isinstance(singly.source, DirectSource):
        with pytest.raises(FileNotFoundError):
            singly.read(7)


def test_an_extent_that_samples_share_is_read_once(singly: Singly, files: list[Path]) -> None:
    """While any of them is requested."""
    singly.register(None, lambda sample: Extent(str(files[7])))
    for sample in (1, 2, 3, 2):
        singly.request(sample, sample)
    assert singly.read(1) == bytes([7]) * 700
    files[7].unlink()
    for sample in (1, 2, 2):
        singly.release(sample)
    assert singly.read(3) == bytes([7]) * 700
    singly.release(3)
    if isinstance(singly.source, DirectSource):
        with pytest.raises(FileNotFoundError):
            singly.read(3)


def test_a_sample_that_can_not_be_located_fails_when_it_is_read(singly: Singly, files: list[Path]) -> None:
    singly.register(None, whole(files))
    singly.request(40, 0)
    with pytest.raises(IndexError):
        singly.read(40)
    singly.release(40)
    assert singly.read(39) == files[39].read_bytes()


def test_what_is_no_extent_is_told_when_it_is_read(source: Source, files: list[Path]) -> None:
    """A path alone, for one."""
    found: list[Any] = [str(files[0]), (str(files[0]), 0, 10), None]
    source.register(None, found.__getitem__)
    request = source.request([0, 1, 2], 0)
    for sample in range(3):
        with pytest.raises(TypeError, match=rf"locate\({sample}\) gave .*: have it give an Extent, of forebay\.loader"):
            request.read(sample)
    request.release()


def test_bytes_stay_as_long_as_anything_refers_to_them(singly: Singly, files: list[Path]) -> None:
    if not singly.source.is_lasting:
        return
    singly.register(None, whole(files))
    singly.request(9, 0)
    kept = singly.read(9)[100:200]
    singly.release(9)
    for sample in range(10, 40):
        singly.request(sample, 1)
        singly.read(sample)
        singly.release(sample)
    assert kept == bytes([9]) * 100


def test_ranges_of_files_are_read(singly: Singly, files: list[Path]) -> None:
    extents = [Extent(str(files[30]), 1000, 10), Extent(str(files[30]), 2990), Extent(str(files[30]), 5000), Extent(str(files[0]), 0, 0)]
    singly.register(None, extents.__getitem__)
    contents = [bytes([30]) * 10, bytes([30]) * 10, b"", b""]
    assert [bytes(singly.read(sample)) for sample in range(4)] == contents
    assert [bytes(read_sample(extents.__getitem__, sample)) for sample in range(4)] == contents


def test_what_is_wrong_with_a_file_is_told(singly: Singly, files: list[Path], tmp_path: Path) -> None:
    extents = [Extent(str(tmp_path / "gone")), Extent(str(files[3]), 290, 20), Extent(str(tmp_path)), Extent(str(files[4]), 0, 401)]
    singly.register(None, extents.__getitem__)
    for sample in range(4):
        singly.request(sample, 0)
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as gone:
            singly.read(0)
        assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, str(tmp_path / "gone"))
    with pytest.raises(EOFError, match=r"3 ends at byte 300, and the sample at 310: it was cut"):
        singly.read(1)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        singly.read(2)
    with pytest.raises(EOFError, match=r"4 ends at byte 400"):
        singly.read(3)
    with pytest.raises(IndexError):
        singly.read(4)


def test_another_epoch_begins_anew(source: Source, files: list[Path]) -> None:
    source.register(None, whole(files))
    before = [source.request(list(range(first, first + 20)), 0) for first in (0, 20)]
    before[0].read(1)
    source.register(None, whole(files[::-1]))
    request = source.request([1], 0)
    # Nothing is known of these any more, and what has come since has nothing to do with them.
    for one in before:
        one.release()
    assert request.read(0) == bytes([38]) * 3800
    request.release()


def test_who_waits_is_woken_when_it_is_closed(source: Source, tmp_path: Path) -> None:
    """A pipe that nobody writes to stands for a file system that hangs."""
    os.mkfifo(tmp_path / "hung")
    begun = threading.Event()

    def locate(sample: int) -> Extent:
        begun.set()
        return Extent(str(tmp_path / "hung"))

    source.register(None, locate)
    request = source.request([0], 0)
    told: list[str] = []

    def ask() -> None:
        try:
            request.read(0)
        except LoaderError as error:
            told.append(str(error))

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in asking:
        thread.start()
    assert begun.wait(LONG_S)
    source.close()
    with pytest.raises(LoaderError, match="the source is closed"):
        request.read(0)
    assert request.at_hand(range(1)) == [None]
    # One of them may itself hang in the kernel, which has to release it.
    writer = os.open(tmp_path / "hung", os.O_RDWR | os.O_NONBLOCK)
    for thread in asking:
        thread.join(LONG_S)
        assert not thread.is_alive()
    os.close(writer)
    assert told == ["the source is closed"] * 2


def test_the_window_bounds_what_is_read_ahead(files: list[Path]) -> None:
    source = DirectSource(threads=2, window_bytes=5000)
    source.register(None, whole(files))
    requests = [source.request([sample], sample) for sample in range(40)]
    most = 0
    for request in requests:
        request.read(0)
        most = max(most, source.held_bytes)
        request.release()
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
    source.request([0], 0)
    # Opens once somebody has the other end open.
    gate = os.open(tmp_path / "gate", os.O_WRONLY)
    for samples, iteration in (([1], 5), ([2, 3], 3), ([4], 1)):
        source.request(samples, iteration)
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
        request = source.request([sample], 0)
        assert bytes(request.read(0)) == b"har"
        request.release()
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
    source.request(list(range(40)), 0)
    assert set(threading.enumerate()) - before
    source.close()
    wait_until(lambda: set(threading.enumerate()) <= before, "its threads to end")
    with pytest.raises(LoaderError, match="closed"):
        source.request([1], 0)


@pytest.mark.parametrize(("threads", "window_bytes"), [(0, 1), (1, 0)])
def test_no_source_without_threads_or_room(threads: int, window_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least one thread and one byte"):
        DirectSource(threads=threads, window_bytes=window_bytes)
