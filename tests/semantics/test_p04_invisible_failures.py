"""P4: a fault of ours is a read from the source, never an error that the program would not have had.

More faults: tests/faults.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.semantics.tree import SIZES, content
from tests.support import Place, read, remove_tree, wait_until, warm


def damage_copies(place: Place) -> None:
    for copy in place.objects():
        os.truncate(copy, 1)


def remove_tier(place: Place) -> None:
    remove_tree(place.tier)


def hide_tier(place: Place) -> None:
    place.tier.rename(place.tier.with_name("elsewhere"))


def kill_agent(place: Place) -> None:
    os.kill(place.agent_pid(), signal.SIGKILL)


def stop_agent(place: Place) -> None:
    os.kill(place.agent_pid(), signal.SIGSTOP)


def remove_runtime(place: Place) -> None:
    for directory in place.runtime.iterdir():
        remove_tree(directory)


def kill_agent_and_remove_all(place: Place) -> None:
    kill_agent(place)
    remove_tier(place)
    remove_runtime(place)


FAULTS: list[Callable[[Place], None]] = [
    damage_copies,
    remove_tier,
    hide_tier,
    kill_agent,
    stop_agent,
    remove_runtime,
    kill_agent_and_remove_all,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_reads_go_on(place: Place, fault: Callable[[Place], None]) -> None:
    """Opens of files that had copies and of others, by running threads and by new processes."""
    copied, others = ["a", "b", "big"], ["d/x", "d/y", "empty"]
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in copied))
        agent = place.agent_pid()
        fault(place)
        try:
            for name in copied + others:
                assert read(worker, place.source / name) == content(name)
            started = worker.do("import subprocess\nsubprocess.run(['cat', path], capture_output=True)", path=str(place.source / "b"))
            assert (started.returncode, started.stdout, started.stderr) == (0, content("b"), b"")
            with pytest.raises(FileNotFoundError):
                read(worker, place.source / "none")
            worker.do("Path(path).write_bytes(b'new')", path=str(place.source / "a"))
            assert (place.source / "a").read_bytes() == read(worker, place.source / "a") == b"new"
        finally:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
    assert worker.end().status == 0


def test_a_tier_with_no_room_costs_nothing_but_the_copies(place: Place) -> None:
    with place.worker(tier_size="64K") as worker:
        for _ in range(2):
            for name in SIZES:
                assert read(worker, place.source / name) == content(name)
            place.idle()
    ran = worker.end()
    assert sum(path.stat().st_size for path in place.objects()) <= 64 << 10
    assert ran.counters["pass_no_room"] > 0


def test_the_agent_ends_with_its_last_run(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "a")
    wait_until(lambda: not place.agents(), "the agent's end")
