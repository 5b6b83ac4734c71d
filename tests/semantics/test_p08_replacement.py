"""P8: with the policy `lru`, room is made by removing copies of directories not used for long, never open ones."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import support
from tests.support import Place, Worker, hold_copy, is_copy, read, settle, wait_until, warm

FILES = 8
FILE_BYTES = 20_000
TIER_BYTES = FILES * FILE_BYTES


def make_sets(place: Place) -> tuple[list[Path], list[Path]]:
    """Two directories of files, each as large as the tier."""
    sets = []
    for name in ("x", "y"):
        directory = place.source / name
        directory.mkdir()
        files = [directory / str(number) for number in range(FILES)]
        for number, file in enumerate(files):
            file.write_bytes(f"{name}{number}".encode() * (FILE_BYTES // 2))
        sets.append(files)
    settle(place.source)
    first, second = sets
    return first, second


@contextmanager
def running(place: Place, policy: str) -> Iterator[Worker]:
    """A worker in a run with this policy."""
    record = place.record_path()
    words = place.words([place.python, "-E", support.WORKER], record, tier_size=f"{TIER_BYTES}B")
    at = words.index("--freshness")
    words[at:at] = ["--policy", policy]
    with Worker.started(words, environment=place.environment(), cwd=place.root, record=record) as worker:
        yield worker


def size_of(copy: Path) -> int:
    """Returns the size of a copy that may just be going."""
    with suppress(FileNotFoundError):
        return copy.stat().st_size
    return 0


def copies_of(place: Place, worker: Worker, files: list[Path]) -> int:
    """Reads files, each of which must be right, and tells how many copies there are.

    The tier is never larger than it may be.
    """
    for file in files:
        assert read(worker, file) == f"{file.parent.name}{file.name}".encode() * (FILE_BYTES // 2)
    assert sum(map(size_of, place.objects())) <= TIER_BYTES
    return sum(is_copy(worker, file) for file in files)


def test_p8_lru_gives_the_room_of_an_old_set_to_a_new_one(place: Place) -> None:
    old, new = make_sets(place)
    with running(place, "fill_first") as worker:
        warm(place, worker, *old)
        assert copies_of(place, worker, new) == 0
    place.stop()
    with running(place, "lru=1") as worker:
        wait_until(lambda: copies_of(place, worker, new) == FILES, "copies of the new set")
        assert place.status()["tiers"][0]["replaced_files"] >= FILES
        assert not is_copy(worker, old[0])
    assert worker.ran
    assert "replaced:" in worker.ran.err.decode()
    assert worker.ran.record["settings"]["policy"] == {"value": "lru=1", "origin": "--policy"}
    place.stop()


def test_p8_lru_keeps_what_is_in_use(place: Place) -> None:
    first, second = make_sets(place)
    with running(place, "lru") as worker:
        warm(place, worker, *first)
        assert copies_of(place, worker, second) == 0
        wait_until(lambda: place.status()["not_copied"].get("quota_used_up"), "a copy that is refused")
        assert copies_of(place, worker, first) == FILES
        assert place.status()["tiers"][0]["replaced_files"] == 0
    place.stop()


def test_p8_lru_keeps_what_is_open(place: Place) -> None:
    first, second = make_sets(place)
    with running(place, "lru=1") as worker:
        warm(place, worker, *first)
        hold_copy(worker, first[0], "held")
        mapped = "import mmap\nwith open(path, 'rb') as file: mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)"
        worker.do(mapped, path=str(first[1]))
        # All but the two; what fits into the room of the others is copied.
        wait_until(lambda: copies_of(place, worker, second) == FILES - 2, "copies in the room of the others")
        assert place.status()["tiers"][0]["replaced_files"] >= FILES - 2
        assert is_copy(worker, first[0])
        assert is_copy(worker, first[1])
        assert worker.do("os.pread(held, 2, 0) + mapped[:2]") == b"x0x1"
    place.stop()
