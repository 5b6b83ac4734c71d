"""P8: never more than the configured bytes, inodes, memory, threads and descriptors; the free floor is kept.

Over all processes.
"""

import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import Place, looking, settle, wait_until

FILES = 120
# Each process reads all files several times, in an order of its own.
READ_ALL = """
import random, sys, pathlib
files = sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.name.startswith('f'))
random.seed(sys.argv[2])
for _ in range(5):
    random.shuffle(files)
    for f in files:
        b = f.read_bytes()
        assert b and set(b) == {len(b) % 251}, f
"""
READ_ALL_AT_ONCE = """
import subprocess, sys
readers = [subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1], str(n)]) for n in range(8)]
sys.exit(max(reader.wait() for reader in readers))
"""


def make_files(place: Place, count: int = FILES, up_to: int = 40_000) -> int:
    """Files of many sizes; each is of one byte, which its size tells. Gives their bytes in all."""
    sizes = random.Random(8)  # noqa: S311
    total = 0
    for number in range(count):
        size = sizes.randrange(1, up_to)
        (place.source / f"f{number}").write_bytes(bytes([size % 251]) * size)
        total += size
    settle(place.source)
    return total


@contextmanager
def watched(place: Place) -> Iterator[dict[str, int]]:
    """The most that was ever seen of what is bounded."""
    most = {"bytes": 0, "files": 0, "threads": 0, "descriptors": 0, "resident_kib": 0}
    agent: list[int] = []

    def note(what: str, value: int) -> None:
        most[what] = max(most[what], value)

    def look() -> None:
        sizes = []
        for copy in place.objects():
            try:
                sizes.append(copy.stat().st_size)
            except FileNotFoundError:
                continue
        note("bytes", sum(sizes))
        note("files", len(sizes))
        with suppress(OSError, ValueError, KeyError):
            agent[:] = agent or [place.agent_pid()]
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{agent[0]}/status").read_text().splitlines())
            note("threads", int(lines["Threads"]))
            note("resident_kib", int(lines["VmRSS"].split()[0]))
            note("descriptors", len(list(Path(f"/proc/{agent[0]}/fd").iterdir())))

    with looking(look):
        yield most


def test_the_quota_holds_for_eight_processes(place: Place) -> None:
    total = make_files(place)
    quota = total // 2
    # A run beside, so that the agent is there to be asked.
    with place.worker(tier_size=f"{quota}B"):
        with watched(place) as most:
            place.run(sys.executable, "-c", READ_ALL_AT_ONCE, place.source, READ_ALL, tier_size=f"{quota}B")
            status = place.idle()
        limit = resource.prlimit(place.agent_pid(), resource.RLIMIT_NOFILE)[0]
        descriptors = Path(f"/proc/{place.agent_pid()}/fd")
        wait_until(lambda: len(list(descriptors.iterdir())) <= 40, "descriptors given back")
        objects = place.objects()
    assert 0.9 * quota < most["bytes"] <= quota, "nearly all of it is used, and never more"
    # Every copy was made once, whoever asked; the listing of the directory is one more.
    assert status["files_copied"] + status["listings_kept"] == len(objects)
    assert status["bytes_copied"] + status["listings_bytes"] <= quota
    # Besides, each question of ours has a thread for as long as its connection.
    assert most["threads"] <= 30
    assert most["resident_kib"] <= 64 << 10
    # Each open of a file that has no copy yet hands over a descriptor. Where programs keep the agent from its core, it
    # holds as many of them as it may.
    assert most["descriptors"] <= limit // 2 + 40


def test_a_quota_that_has_shrunk_is_kept_by_the_next_run(place: Place) -> None:
    total = make_files(place, 40)
    with place.worker(tier_size=f"{2 * total}B"):
        place.run(sys.executable, "-c", READ_ALL, place.source, "1", tier_size=f"{2 * total}B")
        listings = place.idle()["listings_bytes"]
    place.stop()
    assert sum(path.stat().st_size for path in place.objects()) == total + listings
    with place.worker(tier_size=f"{total // 2}B"):
        place.idle()
    place.stop()
    assert sum(path.stat().st_size for path in place.objects()) <= total // 2


@contextmanager
def small_disk(where: Path, options: str) -> Iterator[None]:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where], capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


def test_a_twentieth_of_the_disk_stays_free(place: Place) -> None:
    """Whatever the quota says."""
    make_files(place, 120, 400_000)
    disk = 16 << 20
    with small_disk(place.tier, f"size={disk},mode=0700"):
        low = [disk]
        stop = threading.Event()

        def look() -> None:
            last = False
            while not last:
                last = stop.wait(0.002)
                now = os.statvfs(place.tier)
                low[0] = min(low[0], now.f_bavail * now.f_frsize)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            with place.worker(tier_size="100M"):
                ran = place.run(sys.executable, "-c", READ_ALL_AT_ONCE, place.source, READ_ALL, tier_size="100M")
                status = place.idle()
        finally:
            stop.set()
            watcher.join()
        place.stop()
    assert status["not_copied"].get("free_space_floor", 0) + ran.counters["pass_no_room"] > 0
    # What the catalogue took since the room was last looked at.
    assert disk // 20 - (32 << 10) <= low[0] < disk // 8


@pytest.mark.parametrize("at_once", [False, True])
def test_inodes_are_left_for_others(place: Place, at_once: bool) -> None:
    make_files(place, 1500, 100)
    with small_disk(place.tier, "size=64m,nr_inodes=1300,mode=0700"):
        with place.worker(tier_size="100M") as worker:
            if not at_once:
                # All 256 directories are made by then.
                worker.do("for n in range(300): Path(source, f'f{n}').read_bytes()\nimport time; time.sleep(1.5)", source=str(place.source))
            worker.do("for n in range(1500): Path(source, f'f{n}').read_bytes()", source=str(place.source))
            place.idle()
        place.stop()
        now = os.statvfs(place.tier)
    # What is just being copied when the room is looked at counts twice until the next look.
    assert now.f_files // 20 <= now.f_ffree < now.f_files // 5


def test_descriptors_of_hand_overs_are_bounded(place: Place) -> None:
    """Open files that nobody reads wait for their readers; the agent never takes more than half of what it may have."""
    make_files(place, 400, 1000)
    code = """
import resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
files = [open(path, 'rb', buffering=0) for path in sorted(Path(source).iterdir()) if path.name.startswith('f')]
time.sleep(0.5)
for file in files: assert file.read()
"""
    with place.worker() as worker, watched(place) as most:
        worker.do("import resource\nresource.getrlimit(resource.RLIMIT_NOFILE)")
        started = time.monotonic()
        worker.do(code, source=str(place.source))
        # No open waits for anything, be the machine ever so slow.
        assert time.monotonic() - started < 60
        place.idle()
    assert 0 < most["descriptors"] <= 500
