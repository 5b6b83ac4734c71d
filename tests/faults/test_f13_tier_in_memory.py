"""F13: a tier in memory. One is told of it; it counts in the job's memory, and is refused where it can't fit."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.harness import CORPUS, MEMORY_GROUPS, command_words, needs_memory_groups, needs_root, tmpfs, worker_with
from tests.support import LONG_S, Place, wait_until, warm

pytestmark = [needs_root, needs_memory_groups]


@contextmanager
def memory_limit(place: Place, mebibytes: int) -> Iterator[Path]:
    """A control group of that much memory."""
    groups, file = MEMORY_GROUPS or (Path("/"), "")
    group = groups / place.root.name
    group.mkdir()
    try:
        (group / file).write_text(str(mebibytes << 20))
        yield group
    finally:
        # What ended a moment ago is in it a little longer.
        wait_until(lambda: is_removed(group), "an empty control group")


def is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def within(group: Path) -> list[str]:
    """What to put before a command so that it runs in the control group."""
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]


def test_f13_one_is_told_of_a_tier_in_memory(place: Place) -> None:
    with tmpfs(place.tier, "size=64m"):
        told = place.run("true").err.decode()
        assert f"{place.tier} is in memory: its copies count against this job's memory" in told
        place.stop()
    assert "in memory" not in place.run("true").err.decode()


def test_f13_a_tier_larger_than_the_jobs_memory_is_refused(place: Place) -> None:
    with tmpfs(place.tier, "size=200m"), memory_limit(place, 64) as group:
        words = [*within(group), *command_words(place, ["touch", place.root / "ran"], place.record_path(), [f"{place.tier}=100M"])]
        done = subprocess.run(words, env=place.environment(), capture_output=True, text=True, timeout=LONG_S, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "100 MiB in memory are more than this job's memory limit, 64 MiB" in line
        assert not (place.root / "ran").exists()


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
