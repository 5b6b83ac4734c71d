"""S9: never more than the quota in bytes and inodes, always the free floor left, never more threads or descriptors than said."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import support
from tests.faults.harness import CORPUS, SMALL, needs_root, tmpfs
from tests.support import Place, is_copy, read, settle, wait_until

MANY = 600
THREADS_MAX = 24


def sow(place: Place, files: int, size: int) -> list[Path]:
    """More files."""
    paths = [place.source / f"s{n:04}" for n in range(files)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "little") * (size // 4))
    support.settle(place.source)
    return paths


@contextmanager
def watched(place: Place) -> Iterator[dict[str, int]]:
    """The most that was seen of what the tier held meanwhile."""
    most = {"bytes": 0, "inodes": 0, "used": 0, "least_free": 1 << 62, "least_free_inodes": 1 << 62}
    over = threading.Event()

    def look() -> None:
        last = False
        while not last:
            # Once more after the end, for what came since the last look.
            last = over.is_set()
            sizes = []
            for directory, _, names in os.walk(place.tier):
                for name in names:
                    try:
                        sizes.append((Path(directory, name).stat().st_size, "objects" in directory))
                    except FileNotFoundError:
                        continue
            room = os.statvfs(place.tier)
            most["bytes"] = max(most["bytes"], sum(size for size, is_copy in sizes if is_copy))
            most["inodes"] = max(most["inodes"], len(sizes))
            most["least_free"] = min(most["least_free"], room.f_bavail * room.f_frsize)
            most["least_free_inodes"] = min(most["least_free_inodes"], room.f_favail)
            time.sleep(0.005)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def test_s09_bytes(place: Place) -> None:
    quota = 300_000
    with watched(place) as most, place.worker(tier_size=f"{quota}B") as worker:
        for _ in range(3):
            for name, content in CORPUS.items():
                assert read(worker, place.source / name) == content
        status = place.idle()
    assert worker.ran
    assert sum(status["not_copied"].values()) + worker.ran.counters["pass_no_room"] >= 1
    assert quota - max(len(CORPUS[name]) for name in SMALL) < most["bytes"] <= quota


def test_s09_a_smaller_quota_than_before(place: Place) -> None:
    with place.worker() as worker:
        support.warm(place, worker, *(place.source / name for name in SMALL))
    place.stop()
    kept = sum(copy.stat().st_size for copy in place.objects())
    quota = kept // 2
    with place.worker(tier_size=f"{quota}B") as worker:
        status = place.idle()
        assert 0 < status["adopted"] < len(SMALL)
        assert sum(copy.stat().st_size for copy in place.objects()) == status["tiers"][0]["used_bytes"] <= quota
        for name, content in CORPUS.items():
            assert read(worker, place.source / name) == content


@needs_root
def test_s09_inodes_of_a_small_file_system(place: Place) -> None:
    paths = sow(place, MANY, 400)
    inodes = 500
    with tmpfs(place.tier, f"size=64m,nr_inodes={inodes}"), watched(place) as most:
        with place.worker() as worker:
            for path in paths:
                assert len(read(worker, path)) == 400
            status = place.idle()
            assert status["not_copied"].keys() <= {"free_space_floor", "tier_was_full"}
            assert status["tiers"][0]["off"] is None
            assert MANY > len(place.objects()) > 100
            (place.tier / "of_somebody_else").touch()
        assert worker.ran
        # Refused by the agent, or not even handed over.
        assert sum(status["not_copied"].values()) + worker.ran.counters["pass_no_room"] >= MANY - inodes
        place.stop()
    # The last twentieth is for others.
    assert most["least_free_inodes"] >= inodes // 20 - 2


@needs_root
def test_s09_shared_memory_that_has_no_room_for_a_larger_index(place: Place) -> None:
    # Long names fill the first index; there is memory for no second one.
    deep = place.source / "/".join(["d" * 230] * 15)
    paths = [deep / str(n) / "f" for n in range(900)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(path.parent.name.encode())
    settle(paths[-1])
    with tmpfs(place.runtime, "size=14m,mode=0700"), place.worker() as worker:
        agent = place.agent_pid()
        for path in paths:
            assert read(worker, path) == path.parent.name.encode()
        status = place.idle()
        assert status["not_copied"]["index_full"] > 0
        assert status["files_copied"] == status["tiers"][0]["files"] == len(place.objects()) > 100
        # It refuses, and serves on.
        assert is_copy(worker, paths[0])
        assert read(worker, paths[0]) == b"0"
        assert place.agent_pid() == agent


@needs_root
def test_s09_the_free_floor(place: Place) -> None:
    paths = sow(place, 300, 40_000)
    size = 8 << 20
    with tmpfs(place.tier, f"size={size}"), watched(place) as most:
        # Another tenant has some of it.
        (place.tier / "tenant").write_bytes(bytes(size // 3))
        with place.worker() as worker:
            for path in paths:
                assert len(read(worker, path)) == 40_000
            refused = place.idle()["not_copied"].get("free_space_floor", 0)
            assert len(paths) > len(place.objects()) > 80
        assert worker.ran
        assert refused + worker.ran.counters["pass_no_room"] >= 1
        place.stop()
    floor = size // 20
    assert most["least_free"] >= floor - 3 * 40_960


def test_s09_threads_and_descriptors(place: Place) -> None:
    paths = sow(place, 40, 1 << 20)
    for path in paths:
        support.chill(path)
    with place.worker() as worker:
        worker.do("None")
        agent = place.agent_pid()
        seen = {"threads": 0, "descriptors": 0}
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                seen["threads"] = max(seen["threads"], len(list(Path(f"/proc/{agent}/task").iterdir())))
                seen["descriptors"] = max(seen["descriptors"], len(list(Path(f"/proc/{agent}/fd").iterdir())))
                time.sleep(0.01)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            # All at once, each read to its half and not beyond.
            code = (
                "held = [open(path, 'rb', buffering=0) for path in paths]\n"
                "for file in held: os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)\n"
                "sum(len(file.read(1 << 19)) for file in held)"
            )
            assert worker.do(code, paths=[str(path) for path in paths]) == 40 << 19
            wait_until(lambda: seen["descriptors"] >= 40, "all of them in the agent's hands")
            worker.do("[(file.read(), file.close()) for file in held]\nNone")
            place.idle(40)
        finally:
            over.set()
            watcher.join()
        assert seen["descriptors"] < 40 + 60
        assert 10 <= seen["threads"] <= THREADS_MAX
        # All is given back.
        wait_until(lambda: len(list(Path(f"/proc/{agent}/fd").iterdir())) < 30, "descriptors given back")


def test_s09_the_agents_memory_does_not_grow_with_use(place: Place) -> None:
    paths = sow(place, 50, 4000)
    with place.worker(freshness="on_open") as worker:
        support.warm(place, worker, *paths)
        agent = place.agent_pid()

        def resident() -> int:
            return int(Path(f"/proc/{agent}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        before = resident()
        worker.do("for _ in range(40):\n    for path in paths: open(path, 'rb').close()", paths=[str(path) for path in paths])
        # Written and copied again, over and over.
        for _ in range(200):
            worker.do("for path in paths[:5]:\n    with open(path, 'r+b') as file: file.write(b'x')", paths=[str(path) for path in paths])
        place.idle()
        assert resident() - before < 16 << 20
