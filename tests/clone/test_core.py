"""Native digests, copies and reads agree with the reference implementation at every size that is special to them."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from forebay import _core
from forebay.clone import CloneError, _capture, _ranks

# Around the piece in which copies are digested, and the sizes at which XXH3 changes its way of hashing.
PIECE = 128 * 1024
SIZES = [0, 1, 16, 17, 128, 129, 240, 241, 1024, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]


class ByteBuffer:
    """Memory with an address."""

    def __init__(self, content: bytes) -> None:
        self._memory = ctypes.create_string_buffer(content, max(len(content), 1))
        self.address = ctypes.addressof(self._memory)
        self._length = len(content)

    def bytes(self) -> bytes:
        return self._memory.raw[: self._length]


def span(address: int, length: int, offset: int = 0) -> tuple[_core.Spans, int, int]:
    """Returns a range as the only entry of the only section."""
    return _core.Spans([(0, address, length, offset)]), 0, 0


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(max(SIZES))


@pytest.fixture
def file(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("content")
    os.write(descriptor, content)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("size", SIZES)
def test_digests_are_xxh3_128(content: bytes, file: int, size: int) -> None:
    wanted = xxhash.xxh3_128_digest(content[:size])
    source, copied, read = ByteBuffer(content[:size]), ByteBuffer(bytes(size)), ByteBuffer(bytes(size))
    assert _core.digest(source.address, size) == wanted.hex()
    assert _core.digests(1, [span(source.address, size)]) == wanted
    assert _core.pack(copied.address, size, 1, [span(source.address, size)]) == wanted
    assert copied.bytes() == content[:size]
    assert _core.fill(file, 1, [span(read.address, size)]) == wanted
    assert read.bytes() == content[:size]


@pytest.mark.parametrize("way", ["see", "copy", "read"])
def test_what_comes_in_pieces_has_the_same_digest(content: bytes, file: int, way: str) -> None:
    """The pieces of several tensors alternate, as they come out of a GPU; the last piece has 2 KiB or all."""
    pieces = _core.Pieces(SIZES)
    source, target = ByteBuffer(content), ByteBuffer(bytes(len(content)))
    places = dict.fromkeys(range(len(SIZES)), 0)
    while places:
        for number, at in list(places.items()):
            left = SIZES[number] - at
            length = left if left < 8 * 1024 else 5 * 1024
            if way == "see":
                pieces.see([(number, source.address + at, length)])
            elif way == "copy":
                pieces.copy([(number, source.address + at, length, target.address + at)])
            else:
                pieces.read(file, [(number, at, target.address + at, length)])
            if way != "see":
                assert target.bytes()[at : at + length] == content[at : at + length]
            places[number] += length
            if length == left:
                del places[number]
    assert pieces.digests() == [xxhash.xxh3_128_digest(content[:size]) for size in SIZES]


def test_a_piece_that_can_not_come_next_is_refused(content: bytes) -> None:
    source = ByteBuffer(content)
    pieces = _core.Pieces([5000, 0])
    for number, length in ((0, 0), (0, 1000), (0, 5001), (1, 1), (2, 0)):
        with pytest.raises(ValueError, match=f"number {number} can't have a piece of {length} bytes"):
            pieces.see([(number, source.address, length)])
    pieces.see([(0, source.address, 4096), (1, 0, 0)])
    with pytest.raises(ValueError, match="number 0 can't have a piece of 904 bytes"):
        pieces.see([(0, source.address + 4096, 904)])
    with pytest.raises(ValueError, match="number 0 has not come as a whole"):
        pieces.digests()
    with pytest.raises(ValueError, match="number 1 can't"):
        pieces.see([(1, 0, 0)])


def test_several_are_packed_at_once(content: bytes) -> None:
    """Two sections, of three entries and two, of which each has one that is not copied."""
    one, two, target = ByteBuffer(content[:100]), ByteBuffer(content[100:107]), ByteBuffer(bytes(200))
    first, second = _core.Spans([(0, one.address, 100, 64), (2, two.address, 7, 3)]), _core.Spans([(1, two.address, 0, 20)])
    packed = _core.pack(target.address, 200, 5, [(first, 0, 0), (second, 180, 3)])
    parts = [content[:100], None, content[100:107], None, b""]
    assert packed == b"".join(bytes(16) if part is None else xxhash.xxh3_128_digest(part) for part in parts)
    assert target.bytes() == bytes(3) + content[100:107] + bytes(54) + content[:100] + bytes(36)
    for length, offset in ((100, 101), (1, 200), (0, 201)):
        with pytest.raises(ValueError, match=f"no {length} bytes are at {offset} of 200 bytes"):
            _core.pack(target.address, 200, 1, [span(one.address, length, offset)])
    with pytest.raises(ValueError, match="there is no number 5 of 5"):
        _core.pack(target.address, 200, 5, [(second, 0, 4)])


def test_what_shares_memory_is_named() -> None:
    of = [
        _core.Spans([(1, 1000, 100, 0), (2, 1100, 0, 0), (3, 1100, 10, 0), (4, 5000, 8, 0)]),
        _core.Spans([(1, 1050, 1, 0), (2, 1099, 1, 0), (3, 4999, 1, 0)]),
        _core.Spans([(7, 5000, 8, 0), (9, 5008, 8, 0)]),
    ]
    assert [set(numbers) for numbers in _core.overlapping(of)] == [{1, 4}, {1, 2}, {7}]
    assert _core.overlapping([]) == []


def test_reading_begins_at_the_offset(content: bytes, file: int) -> None:
    read = ByteBuffer(bytes(100))
    assert _core.fill(file, 1, [(_core.Spans([(0, read.address, 100, 3)]), 4, 0)]) == xxhash.xxh3_128_digest(content[7:107])
    assert read.bytes() == content[7:107]


def test_a_file_that_ends_early_is_an_error(content: bytes, file: int) -> None:
    with pytest.raises(OSError, match="end of file"):
        _core.fill(file, 1, [span(ByteBuffer(bytes(11)).address, 11, len(content) - 10)])
    closed = os.dup(file)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.fill(closed, 1, [span(ByteBuffer(bytes(1)).address, 1)])


@pytest.mark.parametrize(("address", "length"), [(0, 1), (8, 2**63), (2**64 - 8, 16)])
def test_memory_that_can_not_be_is_refused(address: int, length: int) -> None:
    with pytest.raises(ValueError, match="no memory of"):
        _core.digest(address, length)
    with pytest.raises(ValueError, match="no memory of"):
        _core.pack(address, length, 0, [])
    with pytest.raises(ValueError, match="no memory of"):
        _core.Spans([(0, address, length, 0)])


def test_what_overlaps_and_what_is_no_descriptor_is_refused() -> None:
    memory = ByteBuffer(bytes(20))
    with pytest.raises(ValueError, match="overlap"):
        _core.pack(memory.address + 9, 10, 1, [span(memory.address, 10)])
    with pytest.raises(ValueError, match="invalid descriptor -1"):
        _core.fill(-1, 1, [span(memory.address, 10)])


def test_memory_is_reserved_written_to_and_sealed(content: bytes) -> None:
    memory = _core.Reserved(PIECE)
    assert memory.length == PIECE
    source = ByteBuffer(content[:1000])
    _core.pack(memory.address, PIECE, 1, [span(source.address, 1000)])
    with pytest.raises(ValueError, match="overlap"):
        _core.pack(memory.address, PIECE, 1, [span(memory.address, 1)])
    descriptor = memory.seal(1000)
    assert os.pread(descriptor, PIECE, 0) == content[:1000]
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    for length in (1, PIECE):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, length)
    os.close(descriptor)
    for name in ("address", "length"):
        with pytest.raises(ValueError, match="the memory is sealed"):
            getattr(memory, name)
    with pytest.raises(ValueError, match="the memory is sealed"):
        memory.seal(1)


def test_a_worker_that_is_forked_meanwhile_neither_hinders_the_seal_nor_holds_the_memory() -> None:
    memory = _capture.reserve(PIECE)
    (wait, closed), (told, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(closed)
        held = [one for one in Path("/proc/self/fd").iterdir() if "forebay-capture" in one.resolve().name]
        os.write(tell, b"%d" % len(held))
        os.read(wait, 1)
        # Its end is not that of what may be mapped there now.
        del memory
        os._exit(0)
    assert os.read(told, 10) == b"0"
    descriptor = memory.seal(PIECE)
    for opened in (descriptor, wait, closed, told, tell):
        os.close(opened)
    assert os.waitpid(child, 0) == (child, 0)


def test_memory_is_counted_by_the_ranks_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    assert _ranks.ranks_here(8) == 8, "no launcher says"
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (_ranks.ranks_here(8), _ranks.ranks_here(1)) == (2, 1)


def test_memory_is_asked_for_by_all_ranks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    monkeypatch.setattr(_core, "memory_left", lambda: 20 * mib)
    assert _capture.reserve(9 * mib, 2).length == 9 * mib
    assert _capture.reserve(9 * mib).length == 9 * mib
    with pytest.raises(CloneError, match="of 9,437,184 bytes of state, 28,311,552 in the 3 ranks of this host: 20,971,520 are left"):
        _capture.reserve(9 * mib, 3)
    assert _capture.reserve(9 * mib, 3, 30 * mib).length == 9 * mib, "another has taken its share already"
    with pytest.raises(CloneError, match="28,311,552 in the 3 ranks of this host"):
        _capture.reserve(9 * mib, 3, 28 * mib)
    with pytest.raises(CloneError, match="60,000,000 in the 3 ranks of this host: 20,971,520 are left"):
        _capture.reserve(20_000_000, 3, 1 << 40)
    with pytest.raises(CloneError, match="of 20,971,520 bytes of state: 20,971,520 are left"):
        _capture.reserve(20 * mib)


def test_memory_that_is_not_there_is_refused() -> None:
    for length in (0, 1 << 63):
        with pytest.raises(OSError, match="Errno"):
            _core.Reserved(length)
    with pytest.raises(OSError, match="Invalid argument"):
        _core.Reserved(10).seal(11)


def test_without_a_fork_agent_there_is_no_rank_and_no_state(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"fork\.sock: No such file"):
        _core.Rank(str(tmp_path), "job", 0, 1, False, 0)
    with pytest.raises(ConnectionError, match=r"fork\.sock: No such file"):
        _core.Taking(str(tmp_path), 1, 0, 1)
