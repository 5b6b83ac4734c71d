"""F13: a tier in memory.

One is told of it; it counts in the job's memory, is refused where it can't fit, and given back in need.
"""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from testbed.memory import within
from tests import support
from tests.faults.harness import (
    CORPUS,
    SMALL,
    command_words,
    is_gone,
    memory_limit,
    needs_memory_groups,
    needs_root,
    read_all,
    tmpfs,
    worker_with,
)
from tests.support import LONG_S, Place, is_copy, read, wait_until, warm

pytestmark = [needs_root, needs_memory_groups]


def refusal(place: Place, group: Path, tiers: list[str], *options: str) -> str:
    """The one line with which a run in the control group is refused."""
    words = [*within(group), *command_words(place, ["touch", place.root / "ran"], place.record_path(), tiers, *options)]
    done = subprocess.run(words, env=place.environment(), capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert not (place.root / "ran").exists()
    return line


def in_ram(place: Place) -> list[Path]:
    """The copies that lie in memory."""
    return [path for path in place.runtime.glob("*/ram/forebay-*/objects/*/*") if path.is_file()]


def tier_in_ram(place: Place) -> dict[str, Any]:
    """Returns the agent's figures of the tier."""
    tier: dict[str, Any] = place.status()["tiers"][0]
    assert tier["ram"]
    return tier


# What the program takes at a time, in bytes: two of it are half of what always stays free, so that the next look is in
# time.
STEP = 4 << 20


def has_looked(place: Place, seen: int) -> bool:
    """Returns True if the agent has seen another size of free memory than this."""
    return bool(place.status()["memory"]["free_bytes"] != seen)


def test_f13_one_is_told_of_a_tier_in_memory(place: Place) -> None:
    with tmpfs(place.tier, "size=64m"):
        told = place.run("true").err.decode()
        assert f"{place.tier} is in memory: its copies count against this job's memory" in told
        place.stop()
    assert "in memory" not in place.run("true").err.decode()


def test_f13_a_tier_larger_than_the_jobs_memory_is_refused(place: Place) -> None:
    with tmpfs(place.tier, "size=200m"), memory_limit(place, 64) as group:
        line = refusal(place, group, [f"{place.tier}=100M"])
        assert "100 MiB in memory are more than this job's memory limit, 64 MiB" in line


def test_f13_copies_in_memory_are_the_jobs(place: Place) -> None:
    with tmpfs(place.tier, "size=200m"), memory_limit(place, 128) as group:
        with worker_with(place, [f"{place.tier}=50M"], before=within(group)) as worker:
            before = _shared_memory(group)
            warm(place, worker, *(place.source / name for name in CORPUS))
            # The kernel counts by processor and sums up now and then.
            wait_until(lambda: _shared_memory(group) - before >= sum(map(len, CORPUS.values())), "the copies in the job's memory")
            assert str(place.agent_pid()) in (group / "cgroup.procs").read_text().split()
        place.stop()


def _shared_memory(group: Path) -> int:
    lines = (group / "memory.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("shmem "))


def test_f13_ram_comes_before_the_disk_and_goes_with_the_agent(place: Place) -> None:
    room = sum(len(CORPUS[name]) for name in SMALL[:4])
    with worker_with(place, [f"{place.tier}=64M"], "--ram", f"{room}B") as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        assert sum(path.stat().st_size for path in in_ram(place)) <= room
        assert (len(in_ram(place)), len(place.objects())) == (4, len(SMALL) - 4)
        (tier,) = place.runtime.glob("*/ram/forebay-*")
        assert tier.stat().st_mode & 0o7777 == 0o700
        listed = subprocess.run([support.command(), "ls"], env=place.environment(), capture_output=True, text=True, check=True).stdout
        assert f"{len(SMALL)} files" in listed
        assert "RAM" in listed
        assert all(read(worker, place.source / name) == CORPUS[name] for name in SMALL)
    assert worker.ran
    told = worker.ran.err.decode()
    assert "copies in RAM count against this job's memory" in told
    assert "(RAM)" in told
    ram, disk = worker.ran.record["tiers"]
    assert (ram["ram"], disk["ram"]) == (True, False)
    assert ram["opens"] >= 4
    place.stop()
    assert not list(place.runtime.glob("*/ram"))
    assert len(place.objects()) == len(SMALL) - 4


def test_f13_ram_stays_with_an_agent_that_is_kept_and_clean_gives_it_back(place: Place) -> None:
    with worker_with(place, [f"{place.tier}=64M"], "--ram", "16M", "--keep") as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        names = "os.listdir(path)"
        wait_until(lambda: worker.do(names, path=str(place.source)) and place.status()["listings_kept"] == 1, "a listing")
    assert len(in_ram(place)) == len(SMALL) + 1
    # The next run meets the agent: the size is that of the run that has started it.
    again = subprocess.run(
        command_words(place, ["cat", place.source / SMALL[0]], place.record_path(), [f"{place.tier}=64M"], "--ram", "1M"),
        env=place.environment(),
        capture_output=True,
        check=True,
    )
    assert again.stdout == CORPUS[SMALL[0]]
    assert b"(RAM)" in again.stderr
    assert f"RAM: {len(SMALL) + 1} copies removed" in place.clean()
    assert not list(place.runtime.glob("*/ram"))


def test_f13_what_a_killed_agent_leaves_in_memory_is_reaped_by_the_next(place: Place) -> None:
    with worker_with(place, [f"{place.tier}=64M"], "--ram", "16M") as worker:
        warm(place, worker, place.source / SMALL[0])
        agent = place.agent_pid()
        os.kill(agent, signal.SIGKILL)
        # Until then it holds its lock.
        wait_until(lambda: is_gone(agent), "an agent that is killed")
        # The copy is there still, and so is its record: programs go on.
        assert read(worker, place.source / SMALL[0]) == CORPUS[SMALL[0]]
    assert len(in_ram(place)) == 1
    # One of other tiers.
    assert read_all(place, SMALL[0]).from_tier == 0
    assert in_ram(place) == []
    place.stop()


def test_f13_more_ram_than_the_job_has_is_refused(place: Place) -> None:
    with memory_limit(place, 128) as group:
        line = refusal(place, group, [f"{place.tier}=64M"], "--ram", "100M")
        assert line.startswith("forebay: --ram: 100 MiB do not fit: of this job's memory limit, 128 MiB, ")
        assert "32 MiB stay free for the job; give at most " in line
    assert list(place.runtime.iterdir()) == []


def test_f13_what_another_run_was_promised_is_not_given_twice(place: Place) -> None:
    other = place.root / "other"
    other.mkdir()
    with memory_limit(place, 192) as group:
        with worker_with(place, [f"{place.tier}=64M"], "--ram", "100M", before=within(group)):
            line = refusal(place, group, [f"{other}=64M"], "--ram", "50M")
            assert line.startswith("forebay: --ram: 50 MiB do not fit: of this job's memory limit, 192 MiB, ")
            assert "100 MiB are promised to other runs' RAM, and 32 MiB stay free for the job; " in line
            # Who joins the agent itself is asked for no more room.
            again = command_words(place, ["true"], place.record_path(), [f"{place.tier}=64M"], "--ram", "100M")
            subprocess.run([*within(group), *again], env=place.environment(), capture_output=True, check=True)
        place.stop()
        alone = command_words(place, ["true"], place.record_path(), [f"{other}=64M"], "--ram", "50M")
        subprocess.run([*within(group), *alone], env=place.environment(), capture_output=True, check=True)
        place.stop()


def test_f13_ram_is_given_back_before_the_job_runs_out_of_memory(place: Place) -> None:
    """The program takes all memory that there is, step by step.

    Nothing is killed; what it has open stays; what it reads is right.
    """
    content = {f"m{n:02}": bytes([n]) * (1 << 20) for n in range(48)}
    for name, text in content.items():
        (place.source / name).write_bytes(text)
    support.settle(place.source)
    paths = [place.source / name for name in content]
    with memory_limit(place, 192) as group:
        # Nothing of that fits into the tier below.
        with worker_with(place, [f"{place.tier}=64K"], "--ram", "64M", before=within(group)) as worker:
            warm(place, worker, *paths)
            assert tier_in_ram(place)["files"] == len(paths)
            worker.do("held, taken = open(path, 'rb'), []", path=str(paths[-1]))
            while tier_in_ram(place)["files"] > 1:
                seen = place.status()["memory"]["free_bytes"]
                worker.do(f"taken.append(bytearray(b'x') * {STEP})\nNone")
                # Each step shows, if not in this look then in the next.
                wait_until(partial(has_looked, place, seen), "another look at the memory")
            assert tier_in_ram(place)["given_back_files"] == len(paths) - 1
            assert worker.do("held.read()") == content[paths[-1].name]
            assert is_copy(worker, paths[-1])
            assert all(read(worker, path) == content[path.name] for path in paths)
        assert worker.ran
        assert "given back:" in worker.ran.err.decode()
        place.stop()
