"""P15: every pass and every refusal is counted with its reason."""

import itertools
import os
import subprocess

import pytest

from tests.semantics.tree import SIZES
from tests.support import Place, Ran, keep_recent, read, settle, warm

# Why an open under a source that asked for bytes was not answered by a copy, though one was known.
NOT_FROM_A_COPY = ["pass_stale", "pass_tombstoned", "pass_source_changed", "pass_copy_gone", "pass_tier_off", "pass_no_page"]
# What became of the opens that the source answered.
OFFERED = ["handed_over", "dropped_no_agent", "dropped_queue_full", "pass_no_room", "pass_not_regular"]


def passes(ran: Ran) -> dict[str, int]:
    ignored = ("pass_foreign",)
    return {name: count for name, count in ran.counters.items() if name.startswith(("pass_", "dropped_")) and count and name not in ignored}


def test_each_open_is_counted_once(place: Place) -> None:
    """A known number of each kind."""
    path = str(place.source / "a")
    with place.worker() as worker:
        warm(place, worker, path)
        base = worker.do("None")
        for _ in range(10):
            read(worker, path)
        for code, times in {
            "os.close(os.open(path, os.O_PATH))": 3,
            "os.close(os.open(os.path.dirname(path) + '/d', os.O_RDONLY | os.O_DIRECTORY))": 2,
            "os.close(os.open(path, os.O_NOFOLLOW))": 4,
            "d = os.open('/', os.O_RDONLY); os.close(os.open(path[1:], os.O_RDONLY, dir_fd=d)); os.close(d)": 5,
            "os.close(os.open(path, os.O_RDWR))": 1,
        }.items():
            for _ in range(times):
                worker.do(code, path=path)
        read(worker, path)
        assert base is None
    ran = worker.end()
    assert passes(ran) == {"pass_flags": 9, "pass_directory_descriptor": 5, "pass_writing": 1, "pass_tombstoned": 1}
    assert ran.counters["tombstones"] == 1


@pytest.mark.parametrize("freshness", ["ttl=1", "on_open", "immutable"])
def test_opens_are_hits_and_passes(place: Place, freshness: str) -> None:
    """Asserts that each successful open under the source was a hit, was handed to the agent, or passed for a reason."""
    code = """
import random, time
random.seed(5)
opened = 0
until = time.monotonic() + 1.5
while time.monotonic() < until:
    name = random.choice(names)
    with open(f'{source}/{name}', 'rb', buffering=0) as f: f.read()
    opened += 1
    if random.random() < 0.02: Path(source, 'e/x').write_bytes(random.randbytes(99))
    time.sleep(0.002)
opened
"""
    with place.worker(freshness=freshness, tier_size="620K") as worker:
        opened = worker.do(code, names=[*SIZES], source=str(place.source))
        # However busy the machine is: once what was opened is copied, copies answer.
        place.idle()
        opened += worker.do(code, names=[*SIZES], source=str(place.source))
    ran = worker.end()
    # Those that a copy might have answered but for a reason were offered, too, or are refused for it alone.
    refused_alone = ran.counters["pass_tier_off"] + ran.counters["pass_no_page"]
    assert ran.counters["source_opens"] == opened
    # Some were offered, and answered by a copy after all.
    offered = sum(ran.counters[name] for name in OFFERED) - ran.counters["copy_after_open"]
    assert ran.hits + offered + refused_alone == opened
    assert ran.hits > 0
    agent = ran.record["agent"]
    assert agent["handed_over"] == ran.counters["handed_over"]
    assert agent["handed_over"] >= agent["files_copied"] + agent["files_confirmed"] + sum(agent["not_copied"].values())
    assert agent["files_copied"] > 0


STDIO = """
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fclose(ctypes.c_void_p(libc.fopen(path.encode(), b"w")))
"""
# By an absolute name, by a relative one, by a directory's descriptor, and through stdio.
WAYS = [
    "open(path, 'w').close()",
    "os.chdir(os.path.dirname(path)); open(os.path.basename(path), 'w').close()",
    "d = os.open(os.path.dirname(path), os.O_RDONLY); os.close(os.open(os.path.basename(path), os.O_WRONLY, dir_fd=d)); os.close(d)",
    STDIO,
]


@pytest.mark.parametrize(("where", "writing"), [("source", len(WAYS)), ("beside", 0), ("link", len(WAYS))])
def test_only_what_lies_under_a_source_is_opened_for_writing(place: Place, where: str, writing: int) -> None:
    """However it is named: a run's results often lie on the same file system."""
    (place.root / "beside").mkdir()
    (place.root / "link").symlink_to(place.source)
    assert (place.root / "beside").stat().st_dev == place.source.stat().st_dev
    with place.worker() as worker:
        for code in WAYS:
            worker.do(code, path=str(place.root / where / "out"))
    counters = worker.end().counters
    assert (counters["pass_writing"], counters["tombstones"]) == (writing, len(WAYS)), "a file beside may have a name under the source"
    assert counters["pass_foreign"] >= len(WAYS) - writing


def test_what_is_opened_last_is_counted_and_copied(place: Place) -> None:
    """Also by a program that ends at once.

    Its run does not leave before the agent has taken all that is in its queue.
    """
    rounds = [[f"last{nth}-{number}" for number in range(300)] for nth in range(3)]
    for name in itertools.chain.from_iterable(rounds):
        (place.source / name).write_bytes(name.encode())
    settle(place.source)
    code = "import os, sys\nfor path in sys.argv[1:]: open(path, 'rb').read()\nos._exit(0)"
    with place.worker():
        told = []
        # A program that loses its core for half a second while it hands a file over loses that one.
        for names in rounds:
            before = place.idle()["files_copied"]
            ran = place.run(place.python, "-E", "-c", code, *(place.source / name for name in names))
            told.append((ran.counters["handed_over"], ran.record["agent"]["handed_over"], place.idle()["files_copied"] - before))
        assert (300, 300, 300) in told, told


def test_passes_without_an_agent_or_shared_memory_are_counted(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        os.kill(place.agent_pid(), 9)
        place.stop()
        read(worker, place.source / "b")
        read(worker, place.source / "d/x")
    assert worker.end().counters["dropped_no_agent"] == 2


def test_what_the_agent_refuses_is_counted_with_its_reason(place: Place) -> None:
    (place.source / "fresh").write_bytes(b"fresh")
    keep_recent(place.source / "fresh")
    with place.worker(tier_size="100K") as worker:
        read(worker, place.source / "fresh")
        worker.do("with open(path, 'rb') as f: pass", path=str(place.source / "b"))
        not_copied = place.idle(2)["not_copied"]
    assert not_copied.pop("recently_modified") == 1
    assert worker.end().record["agent"]["not_copied"] == {"recently_modified": 1, **not_copied}


def test_a_run_in_another_mount_namespace_is_counted(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
        done = worker.do(
            "import subprocess\nsubprocess.run(['unshare', '--mount', 'cat', path], capture_output=True)", path=str(place.source / "a")
        )
        if done.returncode:
            pytest.skip("needs root, to make a mount namespace")
    assert worker.end().counters["pass_other_namespace"] > 0


def test_doctor_says_what_is_covered_and_what_could_be_gained(place: Place) -> None:
    settle(place.source)
    words = [str(place.command), "doctor", "--source", str(place.source), "--tier", f"{place.tier}=1G", "--", "cat"]
    done = subprocess.run(words, env=place.environment(), cwd=place.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in (str(place.source), str(place.tier), "cat"):
        assert said in done.stdout
