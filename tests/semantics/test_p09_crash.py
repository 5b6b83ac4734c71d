"""P9: after kill -9 at any moment the next start serves no unverified byte, and `clean` gives all space back."""

import os
import random
import signal
import sys
import time

import pytest

from tests.semantics.tree import SIZES, content
from tests.support import Place, is_copy, read, settle, wait_until, warm

# Files whose every version says which file it is and how long.
COUNT = 150
READ_ALL = """
import pathlib, sys
wrong = []
for f in sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.name.startswith('f')):
    n = int(f.name[1:])
    if f.read_bytes() != n.to_bytes(2, 'big') * (500 * (n % 40)): wrong.append(f.name)
sys.exit(f'{wrong}' if wrong else 0)
"""


def make_files(place: Place) -> int:
    for n in range(COUNT):
        (place.source / f"f{n}").write_bytes(n.to_bytes(2, "big") * (500 * (n % 40)))
    settle(place.source)
    return sum(path.stat().st_size for path in place.source.glob("f*"))


@pytest.mark.parametrize("freshness", ["immutable", "ttl=60"])
def test_kill_at_random_moments(place: Place, freshness: str) -> None:
    """Runs of which each one's agent is killed; what it left serves the next one, or nobody."""
    make_files(place)
    moments = random.Random(9)  # noqa: S311
    for number in range(10):
        with place.worker(freshness=freshness) as worker:
            agent = place.agent_pid()
            start = "import subprocess\nreader = subprocess.Popen([sys.executable, '-c', program, source])"
            worker.do(start, program=READ_ALL, source=str(place.source))
            if number % 2:
                # Surely in the midst of copying, on a slow machine, too; and there are some copies afterwards.
                copies = moments.randrange(1, COUNT - 20)
                wait_until(lambda copies=copies: place.status()["tiers"][0]["files"] >= copies, f"{copies} copies")  # type: ignore[misc]
            else:
                time.sleep(moments.uniform(0, 0.15))
            os.kill(agent, signal.SIGKILL)
            assert worker.do("reader.wait()") == 0
    with place.adopted(freshness="immutable") as status:
        assert status["adopted"] > 0
        last = place.run(sys.executable, "-c", READ_ALL, place.source, freshness="immutable")
        assert last.hits + last.counters["listings_saved"] >= status["adopted"]


def test_partial_copies_are_reaped_by_the_next_start(place: Place) -> None:
    """A copy of a large file is under way when the agent is killed."""
    path = place.source / "shard"
    path.write_bytes(os.urandom(16 << 20))
    settle(path)
    with path.open("rb") as file:
        # What is in the page cache is copied, read or not.
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with place.worker() as worker:
        worker.do("f = open(path, 'rb', buffering=0); f.read(2 << 20)", path=str(path))
        wait_until(lambda: place.objects() and place.objects()[0].stat().st_size >= 1 << 20, "a part of the copy")
        os.kill(place.agent_pid(), signal.SIGKILL)
        assert worker.do("f.seek(0); f.read()") == path.read_bytes()
    with place.worker() as worker:
        wait_until(lambda: not place.objects(), "the part to be reaped")
        assert read(worker, path) == path.read_bytes()


def test_copies_that_were_whole_serve_on(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SIZES))
        os.kill(place.agent_pid(), signal.SIGKILL)
    with place.worker() as worker:
        assert place.idle()["adopted"] == len(SIZES)
        assert all(is_copy(worker, place.source / name) for name in SIZES)
        ran = place.run("cat", place.source / "a", place.source / "b")
        assert ran.out == content("a") + content("b")
        assert ran.hits == 2


@pytest.mark.parametrize("damage", ["bits", "length", "catalogue"])
def test_what_was_damaged_meanwhile_is_not_served(place: Place, damage: str) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a", place.source / "b")
    place.stop()
    damaged = place.tier / "forebay-0/catalogue" if damage == "catalogue" else place.objects()[0]
    damaged.chmod(0o600)
    data = bytearray(damaged.read_bytes())
    if damage == "length":
        del data[-1]
    else:
        data[len(data) // 2] ^= 0x10
    damaged.write_bytes(data)
    with place.worker() as worker:
        place.idle()
        for name in ("a", "b"):
            assert read(worker, place.source / name) == content(name)


def test_the_program_outlives_the_agent_and_is_not_slowed(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        os.kill(place.agent_pid(), signal.SIGKILL)
        took = """
import time
took = []
for _ in range(500):
    began = time.monotonic()
    with open(path, 'rb') as file: file.read()
    took.append(time.monotonic() - began)
sorted(took)
"""
        # A machine that does other things holds up a few of them, and a wait for the agent all.
        assert worker.do(took, path=str(place.source / "b"))[250] < 0.05
        assert is_copy(worker, place.source / "a"), "copies are useful without the agent"


def test_clean_gives_all_space_back(place: Place) -> None:
    """After an orderly end, and after a crash."""
    for crash in (False, True):
        with place.worker() as worker:
            warm(place, worker, *(place.source / name for name in SIZES))
            if crash:
                os.kill(place.agent_pid(), signal.SIGKILL)
        place.stop()
        assert place.objects()
        place.clean()
        assert list(place.tier.iterdir()) == []
        assert not place.runtime.exists()
    assert {str(path.relative_to(place.source)) for path in place.source.rglob("*") if path.is_file() and not path.is_symlink()} == {
        *SIZES,
        "harder",
    }


def test_clean_removes_only_what_is_ours(place: Place) -> None:
    """Beside our directory, and links that somebody planted in it."""
    precious = place.root / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    (place.tier / "other").write_text("not ours")
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
    place.stop()
    objects = place.tier / "forebay-0/objects"
    (objects / "00").mkdir(exist_ok=True)
    (objects / "00/0123456789abcd00").symlink_to(precious / "file")
    (objects / "fe").symlink_to(precious)
    place.clean(complete=False)
    assert (precious / "file").read_text() == "precious"
    assert (place.tier / "other").read_text() == "not ours"


def test_the_source_is_untouched_by_crashes(place: Place) -> None:
    def state(name: str) -> tuple[bytes, int, int]:
        path = place.source / name
        return path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ctime_ns

    before = {name: state(name) for name in SIZES}
    with place.worker() as worker:
        for name in SIZES:
            read(worker, place.source / name)
        os.kill(place.agent_pid(), signal.SIGKILL)
    assert {name: state(name) for name in SIZES} == before
