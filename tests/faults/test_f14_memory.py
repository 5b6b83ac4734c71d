"""F14: memory runs out. Buffers are bounded; a worker that is killed takes nothing with it.

An agent that is killed is passed by.
"""

import random
from functools import partial
from pathlib import Path

import pytest

from testbed.memory import within
from tests.faults.harness import CORPUS, SMALL, is_gone, memory_limit, needs_memory_groups, needs_root, reading_on, worker_with
from tests.support import PROGRAM_S, Place, is_copy, read, settle, wait_until, warm

pytestmark = [needs_root, needs_memory_groups]

# Of the agent, whatever it copies: buffers, threads, and an index of a few files.
AGENT_BYTES_MAX = 64 << 20
LARGE = 96 << 20


def kills(group: Path) -> int:
    """Returns the number of processes of a control group that were killed for memory."""
    file = group / ("memory.oom_control" if (group / "memory.oom_control").exists() else "memory.events")
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("oom_kill "))


def resident_max(pid: int) -> int:
    """The most memory that a process has had at a time, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def test_f14_a_copy_needs_no_more_memory_than_its_buffers(place: Place) -> None:
    """Files that are together larger than all memory that there is are copied and read; nothing is killed."""
    large = [place.source / "large0", place.source / "large1"]
    piece = random.Random(14).randbytes(1 << 20)  # noqa: S311
    for path in large:
        with path.open("wb") as file:
            for _ in range(LARGE >> 20):
                file.write(piece)
    settle(place.source)
    with memory_limit(place, 128) as group:
        with worker_with(place, [f"{place.tier}=1G"], before=within(group)) as worker:
            read_through = (
                "total = 0\nwith open(path, 'rb') as file:\n    while piece := file.read(1 << 20): total += piece == wanted\ntotal"
            )

            def is_copied(path: Path) -> bool:
                assert worker.do(read_through, path=str(path), wanted=piece) == LARGE >> 20
                return is_copy(worker, path)

            for path in large:
                wait_until(partial(is_copied, path), "a copy of a large file", PROGRAM_S)
            assert resident_max(place.agent_pid()) < AGENT_BYTES_MAX
            assert kills(group) == 0
        place.stop()


def test_f14_a_worker_killed_for_memory_leaves_all_others_as_they_were(place: Place) -> None:
    child = """
import os, signal
pid = os.fork()
if pid == 0:
    # It reads a copy, is the first to be chosen, and takes all that there is.
    open("/proc/self/oom_score_adj", "w").write("1000")
    held, taken = open(path, "rb"), []
    while True:
        taken.append(bytearray(b"x") * (1 << 20))
os.waitpid(pid, 0)[1]
"""
    with memory_limit(place, 160) as group:
        with worker_with(place, [f"{place.tier}=64M"], before=within(group)) as worker:
            warm(place, worker, *(place.source / name for name in SMALL))
            agent, before = place.agent_pid(), place.status()["tiers"]
            assert worker.do(child, path=str(place.source / SMALL[0])) == 9
            assert kills(group) == 1
            assert all(read(worker, place.source / name) == CORPUS[name] for name in SMALL)
            assert is_copy(worker, place.source / SMALL[0])
            assert (place.agent_pid(), place.status()["tiers"]) == (agent, before)
        place.stop()


@pytest.mark.parametrize("in_ram", [False, True], ids=["disk", "ram"])
def test_f14_an_agent_killed_for_memory_is_passed_by(place: Place, *, in_ram: bool) -> None:
    """The agent, and it alone, gets no more memory; its next copy ends it, in the midst of reading."""
    options = ["--ram", "32M"] if in_ram else []
    copied, fresh = SMALL[:6], SMALL[6:]
    with worker_with(place, [f"{place.tier}=64M"], *options) as worker:
        warm(place, worker, *(place.source / name for name in copied))
        agent = place.agent_pid()
        with memory_limit(place, 0) as group:
            (group / "cgroup.procs").write_text(str(agent))
            with reading_on(place, worker, *copied):
                for name in fresh:
                    assert read(worker, place.source / name) == CORPUS[name]
                wait_until(lambda: is_gone(agent), "an agent that is killed")
            assert kills(group) == 1
        assert all(read(worker, place.source / name) == CORPUS[name] for name in SMALL)
        # What it had made serves on.
        assert is_copy(worker, place.source / copied[0])
    # And the next run has it again.
    with worker_with(place, [f"{place.tier}=64M"], *options) as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        assert all(read(worker, place.source / name) == CORPUS[name] for name in SMALL)
    place.stop()
