"""Sources of the bytes of samples.

A `Source` is the seam between a rank, which knows the order of its samples, and whatever fetches them ahead.
`DirectSource` reads files and objects itself, in threads of this process; it serves where no agent does. `connect`
chooses.
"""

import enum
import heapq
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from forebay.loader._errors import LoaderError
from forebay.loader._nodes import stay
from forebay.loader._paths import StoreConnections, is_object, stores
from forebay.loader.dataset import Extent
from forebay.loader.order import Order

__all__ = ["CLOSE_WAIT_S", "READS_AT_ONCE", "WINDOW_BYTES", "DirectSource", "Helper", "Request", "Source", "connect", "read_sample"]

READS_AT_ONCE = 16
"""Concurrent reads of a rank. A network file system, or an object store, answers many requests in the time of one."""
WINDOW_BYTES = 256 << 20
"""Bytes of a rank that were read and are not decoded yet."""
FILES_OPEN = 64
"""Files that stay open, of those of which only ranges are read."""
CLOSE_WAIT_S = 0.5
"""Seconds to wait for reads under way when a source is closed. A read that hangs in the kernel is left behind."""
READ_BYTES = 1 << 30
"""Bytes of one read. Linux reads at most 2 GiB less a page."""


class Request(Protocol):
    """The samples of a batch, requested from a source: see `Source.request`.

    A sample's place is its position in the batch.
    """

    def at_hand(self, places: range) -> list[memoryview | None]:
        """Returns for each place what `read` would return without waiting; None for samples that have not come."""

    def read(self, place: int) -> memoryview:
        """Blocks until a sample has been read, and returns the bytes of its extent, read-only.

        They are valid until `release`, or longer: see `Source.is_lasting`.

        Raises:
            OSError: as the file system has it, with the file's name; of an object alike, and with `ESTALE` where it is
                of another version.
            EOFError: the file ends within the extent.
            ValueError: it is not an object's address, or the environment's settings for stores are invalid.
            LoaderError: the source is closed.
        """

    def gather(self, rows: Any, row_bytes: int) -> tuple[list[int], float]:  # noqa: ANN401  (a buffer)
        """Copies the samples of a batch to memory, one after the other, each of `row_bytes` bytes.

        Args:
            rows: a writable buffer as long as all samples together.
            row_bytes: length of a sample.

        Returns:
            The places of samples that are not copied, and have to be read one by one; and the seconds that were waited.
        """
        return list(range(memoryview(rows).nbytes // row_bytes)), 0.0

    def release(self) -> None:
        """Releases the whole batch, read or not. Called once."""


class Source(Protocol):
    """Gives one process the bytes of its samples, if possible before it asks for them.

    What is read and kept are extents. Samples may share one, such as a group of rows; while any of them is requested it
    need be read once only.

    The loader calls `register` when an epoch begins and `request` for every batch, in the order in which they will be
    used and some batches ahead. What that gives it asks from several threads: `at_hand`, `read` for each sample that is
    not, and, when the batch is put together, `release`.
    """

    is_lasting: bool
    """True if the bytes of a sample stay after its `release`, while anything refers to them.

    False if their memory is used again.
    """

    def register(self, order: Order | None, locate: Callable[[int], Extent]) -> None:
        """Begins an epoch, and forgets all earlier requests.

        Args:
            order: the samples that this rank and the others will use. None if it is unknown: a sampler of the user's
                own, or a worker process that gets its rank's batches one by one. Then only requests say what is used.
            locate: returns the extent of a sample of the dataset. It reads nothing, and may be called from any thread.
                Its exceptions belong to the sample: `read` raises them, too.
        """

    def request(self, samples: list[int], iteration: int) -> Request:
        """Requests samples that this rank will use in an iteration. Smaller iterations are read first. Does not wait.

        A sample may come several times (padding repeats some); its bytes may be the same memory each time.

        Raises:
            LoaderError: the source is closed, or nothing was registered.
        """

    def close(self) -> None:
        """Ends the source: forgets all requests, and wakes threads that wait in `read`. Takes at most a second.

        No thread, descriptor or shared memory is left behind, but for a read that hangs in the kernel. Reads of objects
        end immediately, however silent their store is; one that has no connection yet may take ten seconds longer.
        """


def connect(processes: int = 1) -> Source:
    """Returns the source for a process of a rank.

    Args:
        processes: processes of this rank that read; they share the rank's bounds.
    """
    return DirectSource(threads=max(1, READS_AT_ONCE // processes), window_bytes=WINDOW_BYTES // processes)


class Helper(threading.Thread):
    """A thread of a loader, the `number`th of its kind, which stays on a NUMA node.

    The program's end does not wait for it, since it may hang for ever.
    """

    def __init__(self, name: str, number: int, work: Callable[[], None]) -> None:
        super().__init__(target=_near, args=(number, work), name=f"{name}-{number}", daemon=True)
        self.start()


def _near(number: int, work: Callable[[], None]) -> None:
    stay(number)
    work()


class _ReadState(enum.Enum):
    QUEUED = enum.auto()
    READING = enum.auto()
    DONE = enum.auto()


class _ReadEntry:
    """An extent that was requested; once it is done, its bytes or the error."""

    __slots__ = ("data", "done", "error", "extent", "held_bytes", "state", "uses")

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        self.state = _ReadState.QUEUED
        self.uses = 0  # Requests that are neither released nor forgotten.
        self.held_bytes = 0
        self.data = memoryview(b"")
        self.error: Exception | None = None
        self.done: threading.Event | None = None  # Made by the first thread that has to wait.


class _Entries(Request):
    """A batch's request of a `DirectSource`: see `Request`. Samples that can't be located have no entry."""

    __slots__ = ("_entries", "_samples", "_source")

    def __init__(self, source: "DirectSource", samples: list[int], entries: list[_ReadEntry | None]) -> None:
        self._source = source
        self._samples = samples
        self._entries = entries

    def at_hand(self, places: range) -> list[memoryview | None]:
        """See `Request.at_hand`."""
        return self._source._at_hand(self._entries[places.start : places.stop])

    def read(self, place: int) -> memoryview:
        """See `Request.read`."""
        return self._source._read_entry(self._entries[place], self._samples[place])

    def release(self) -> None:
        """See `Request.release`."""
        entries, self._entries = self._entries, []
        self._source._release(entries)


class DirectSource:
    """Reads files and objects itself, earliest iteration first, in threads that are started with the first request.

    Bytes that were read and are not released stay below a window, but for one extent of each reading thread, since a
    file's size is known only once it is open. A thread that needs an extent which nobody has begun to read reads it
    itself, so nobody waits for room.

    Args:
        threads: concurrent reads.
        window_bytes: most bytes that were read and are not released.

    Raises:
        ValueError: one of the two is not positive.
    """

    is_lasting = True

    def __init__(self, *, threads: int = READS_AT_ONCE, window_bytes: int = WINDOW_BYTES) -> None:
        if threads < 1 or window_bytes < 1:
            raise ValueError(f"a source needs at least one thread and one byte: threads={threads}, window_bytes={window_bytes}")
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads_max = threads
        self._window_bytes = window_bytes
        self._threads: list[Helper] = []
        self._entries: dict[Extent, _ReadEntry] = {}
        # By iteration, then in order of request. An entry that another thread took stays until it comes up.
        self._queue: list[tuple[int, int, _ReadEntry]] = []
        self._requests = 0
        self._held_bytes = 0
        self._locate: Callable[[int], Extent] | None = None
        self._files = _OpenFiles()
        self._stores = StoreConnections()
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Bytes that were read, or are being read, and are not released."""
        return self._held_bytes

    def register(self, order: Order | None, locate: Callable[[int], Extent]) -> None:
        """See `Source.register`. The order is not needed: requests say the same of this rank."""
        del order
        with self._lock:
            self._forget_all("another epoch has begun")
            self._locate = locate

    def request(self, samples: list[int], iteration: int) -> Request:
        """See `Source.request`."""
        extents = [self._extent(sample) for sample in samples]
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            return _Entries(self, samples, [None if extent is None else self._use(extent, iteration) for extent in extents])

    def _extent(self, sample: int) -> Extent | None:
        locate = self._locate
        if locate is None:
            raise LoaderError("nothing was registered")
        try:
            return _located(locate, sample)
        except Exception:
            # `read` raises it for this sample.
            return None

    def _use(self, extent: Extent, iteration: int) -> _ReadEntry:
        """Counts one more request of an extent. With the lock held."""
        entry = self._entries.get(extent)
        if entry is None:
            entry = self._entries[extent] = _ReadEntry(extent)
            self._requests += 1
            heapq.heappush(self._queue, (iteration, self._requests, entry))
            self._changed.notify()
            if len(self._threads) < min(self._threads_max, len(self._entries)):
                self._threads.append(Helper("forebay-read", len(self._threads), self._work))
        entry.uses += 1
        return entry

    def _at_hand(self, entries: list[_ReadEntry | None]) -> list[memoryview | None]:
        with self._lock:
            return [entry.data if entry and entry.state is _ReadState.DONE and entry.error is None else None for entry in entries]

    def _read_entry(self, entry: _ReadEntry | None, sample: int) -> memoryview:
        if entry is None:
            assert self._locate is not None
            # Raises what it has raised before.
            entry = _ReadEntry(_located(self._locate, sample))
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            is_mine = entry.state is _ReadState.QUEUED
            if is_mine:
                entry.state = _ReadState.READING
            elif entry.state is _ReadState.READING and entry.done is None:
                entry.done = threading.Event()
            done = entry.done
        if is_mine:
            self._fill(entry)
        elif done is not None:
            done.wait()
        if entry.error is not None:
            raise entry.error
        return entry.data

    def _release(self, entries: list[_ReadEntry | None]) -> None:
        with self._lock:
            for entry in entries:
                # What was requested before another epoch began, or the end, is forgotten already.
                if entry is None or entry.uses == 0:
                    continue
                entry.uses -= 1
                if entry.uses == 0:
                    del self._entries[entry.extent]
                    if entry.state is _ReadState.DONE:
                        self._give_back(entry)
                    elif entry.state is _ReadState.QUEUED:
                        entry.state, entry.error = _ReadState.DONE, LoaderError("the batch was released")

    def close(self) -> None:
        """See `Source.close`."""
        with self._lock:
            self._closed = True
            self._forget_all("the source is closed")
            self._changed.notify_all()
        self._stores.end(close=True)
        until = time.monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._files.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (not self._queue or self._held_bytes >= self._window_bytes):
                    self._changed.wait()
                if self._closed:
                    return
                _, _, entry = heapq.heappop(self._queue)
                if entry.state is not _ReadState.QUEUED:
                    continue
                entry.state = _ReadState.READING
            self._fill(entry)
            # A thread that waits would keep the last extent's memory.
            del entry

    def _fill(self, entry: _ReadEntry) -> None:
        data, error = b"", None
        try:
            data = self._load(entry)
        except Exception as caught:
            error = caught
        with self._lock:
            if entry.state is _ReadState.READING:
                entry.state, entry.data, entry.error = _ReadState.DONE, memoryview(data), error
            if entry.uses == 0 or error is not None:
                self._give_back(entry)
            done = entry.done
        if done is not None:
            done.set()

    def _load(self, entry: _ReadEntry) -> bytes:
        extent = entry.extent
        if is_object(extent.path):
            part = self._stores.get().open(*extent)
            self._hold(entry, part.length)
            return part.read()
        if extent.offset == 0 and extent.length is None:
            descriptor = os.open(extent.path, os.O_RDONLY)
            try:
                return self._read(descriptor, entry)
            finally:
                os.close(descriptor)
        file = self._files.open(extent.path)
        return self._read(file.descriptor, entry)

    def _read(self, descriptor: int, entry: _ReadEntry) -> bytes:
        extent, length = entry.extent, entry.extent.length
        try:
            if length is None:
                length = max(0, os.fstat(descriptor).st_size - extent.offset)
            self._hold(entry, length)
            data = _read_fully(descriptor, extent.offset, length)
        except OSError as error:
            raise OSError(error.errno, error.strerror, extent.path) from None
        if len(data) < length:
            ends, wanted = extent.offset + len(data), extent.offset + length
            raise EOFError(f"{extent.path} ends at byte {ends}, and the sample at {wanted}: it was cut, or is not the file that is meant")
        return data

    def _hold(self, entry: _ReadEntry, length: int) -> None:
        """Counts bytes that are about to be read."""
        with self._lock:
            entry.held_bytes = length
            self._held_bytes += length

    def _give_back(self, entry: _ReadEntry) -> None:
        was_full = self._held_bytes >= self._window_bytes
        self._held_bytes -= entry.held_bytes
        entry.held_bytes = 0
        if was_full and self._held_bytes < self._window_bytes:
            self._changed.notify_all()

    def _forget_all(self, why: str) -> None:
        for entry in self._entries.values():
            entry.uses = 0
            if entry.state is _ReadState.DONE:
                self._give_back(entry)
                continue
            # Whoever reads it gives its memory back.
            entry.state, entry.error = _ReadState.DONE, LoaderError(why)
            if entry.done is not None:
                entry.done.set()
        self._entries.clear()
        self._queue.clear()


def read_sample(locate: Callable[[int], Extent], sample: int) -> memoryview:
    """Reads the bytes of a sample's extent in the calling thread: see `Request.read`."""
    extent = _located(locate, sample)
    return memoryview(stores().open(*extent).read() if is_object(extent.path) else DirectSource()._load(_ReadEntry(extent)))


def _located(locate: Callable[[int], Extent], sample: int) -> Extent:
    extent = locate(sample)
    if not isinstance(extent, Extent):
        raise TypeError(f"locate({sample}) gave {extent!r}: have it give an Extent, of forebay.loader")
    return extent


class _OpenFile:
    """An open file, closed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Not there if it could not be opened.
        if (descriptor := getattr(self, "descriptor", None)) is not None:
            close(descriptor)


class _OpenFiles:
    """The files that were used last, which stay open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def open(self, path: str) -> _OpenFile:
        with self._lock:
            if file := self._files.get(path):
                self._files.move_to_end(path)
                return file
        # Outside the lock: a slow file system must not hold up others. Two threads may open the same one; the second
        # stays.
        file = _OpenFile(path)
        with self._lock:
            self._files[path] = file
            while len(self._files) > FILES_OPEN:
                self._files.popitem(last=False)
        return file

    def clear(self) -> None:
        with self._lock:
            self._files.clear()


def _read_fully(descriptor: int, offset: int, length: int) -> bytes:
    """Returns the bytes from an offset on, up to the length or the file's end."""
    data = os.pread(descriptor, min(length, READ_BYTES), offset)
    if len(data) == length or not data:
        return data
    pieces, got = [data], len(data)
    while got < length and (data := os.pread(descriptor, min(length - got, READ_BYTES), offset + got)):
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)
