"""S9: the quota in bytes and inodes, the free floor, and the limits of threads and descriptors always hold."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import support
from tests.faults.harness import CORPUS, SMALL, agent_under, needs_root, tmpfs
from tests.support import Place, is_copy, read, settle, wait_until

MANY = 600
# Threads of the agent: those that always run, those that are started once a program goes through a directory in order,
# and a few that live for a moment.
THREADS = 17
THREADS_AHEAD = 34
THREADS_MAX = THREADS + THREADS_AHEAD + 5


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

    def look() -> None:
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

    with support.looking(look):
        yield most


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


# Reads files; gives how many of them were copies.
READ = """
copies = 0
for number, path in enumerate(paths):
    with open(path, "rb") as file:
        copies += "/objects/" in os.readlink(f"/proc/self/fd/{file.fileno()}")
        assert file.read(4) == number.to_bytes(4, "little")
copies
"""
# The indices that a process has mapped, with what the kernel says of their names.
MAPPED = "{line.split(maxsplit=5)[5].strip() for line in open('/proc/self/maps') if '/index.' in line}"
# A descriptor of a copy that was dropped long ago, asked by a program that was started since.
CHILD = "import os, sys; print(os.fstat(int(sys.argv[1])).st_ino)"
# More than a preload library has places for mappings, of indices with room for as few files as there can be.
GENERATIONS = 10
INDEX_SPARE = 1024


def test_s09_copies_that_come_and_go_leave_nothing_in_shared_memory(place: Place) -> None:
    """Copies are lost, and made again, until the index was replaced more often than a process can map.

    One that lives on finds them all.
    """
    paths = sow(place, 500, 64)
    place.run("true")
    place.stop()

    def index() -> Path:
        (file,) = place.runtime.glob("*/index.*")
        return file

    with agent_under(place, index_spare=INDEX_SPARE, policy={"lru": 600}):
        wait_until(place.agents, "the agent")
        with place.worker() as worker:

            def are_copies() -> bool:
                return bool(worker.do(READ, paths=[str(path) for path in paths]) == len(paths))

            wait_until(are_copies, "copies of all")
            support.hold_copy(worker, paths[0], "held")
            (catalogue,) = place.tier.glob("forebay-*/catalogue")
            with catalogue.open() as first_catalogue:
                while int(index().suffix[1:]) < GENERATIONS:
                    for copy in place.objects():
                        copy.unlink()
                    wait_until(are_copies, "copies of all, once more")
                    assert worker.do(MAPPED) == {str(index())}
                wait_until(lambda: os.fstat(first_catalogue.fileno()).st_nlink == 0, "a catalogue without what is dead")
            # The first index is gone, and what it knew of what is still open is not.
            source = paths[0].stat()
            assert tuple(worker.do("os.fstat(held)"))[:3] == tuple(source)[:3]
            start = "subprocess.run([sys.executable, '-E', '-c', child, str(held)], pass_fds=[held], capture_output=True, check=True)"
            assert int(worker.do(f"import subprocess\n{start}.stdout", child=CHILD)) == source.st_ino
            assert index().stat().st_blocks * 512 < 8 << 20
        place.stop()
    with place.adopted() as status:
        assert status["adopted"] == len(paths)


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
    ordered = place.source / "ordered"
    ordered.mkdir()
    in_order = [ordered / f"{n:02}" for n in range(20)]
    for path in in_order:
        path.write_bytes(bytes(1 << 20))
    support.settle(ordered)
    for path in paths + in_order:
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
            # One after the other and whole, so that the agent reads ahead, for which it has more threads.
            for path in in_order:
                assert len(read(worker, path)) == 1 << 20
            wait_until(lambda: seen["threads"] >= THREADS + THREADS_AHEAD, "threads that read ahead")
        finally:
            over.set()
            watcher.join()
        assert seen["descriptors"] < 40 + 60
        assert seen["threads"] <= THREADS_MAX
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
