"""F15: few descriptors. The program gets as many as without Forebay, and the same error at the same open.

The agent lives with few.
"""

import errno
import os
import resource
import signal
import sys
import time

import pytest

from tests import support
from tests.faults.harness import CORPUS, SMALL, agent_under, fill, needs_root
from tests.support import Place, Word, Worker, read, wait_until, warm

MORE = 150

OPEN_MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held, said = [], None
try:
    while True:
        held.append(os.open(paths[len(held) % len(paths)], os.O_RDONLY))
except OSError as error:
    said = error.errno
counted = len(held)
for fd in held:
    os.close(fd)
counted, said
"""


@pytest.mark.parametrize("copied", [False, True])
def test_f15_the_program_has_as_many_as_without(place: Place, copied: bool) -> None:
    paths = [str(place.source / name) for name in SMALL]
    plain: list[Word] = [sys.executable, "-E", support.WORKER]
    with Worker.started(plain) as without, place.worker() as within:
        if copied:
            warm(place, within, *paths)
        expected = without.do(OPEN_MANY, paths=paths)
        assert expected[1] == errno.EMFILE
        assert within.do(OPEN_MANY, paths=paths) == expected
        for name in SMALL:
            assert read(within, place.source / name) == CORPUS[name]
    assert within.ran
    # Where nothing had a copy, some may have one by the time of their second open.
    assert within.ran.hits > 20 or not copied


@needs_root
def test_f15_an_agent_with_few(place: Place) -> None:
    fill(place, SMALL[0])
    contents = {place.source / f"more{n:03}": bytes([n]) * 3000 for n in range(MORE)}
    for path, content in contents.items():
        path.write_bytes(content)
    support.settle(place.source)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > MORE + 20
    with agent_under(place, "prlimit", "--nofile=48:48"):
        wait_until(place.agents, "the agent")
        with place.worker() as worker:
            # All open at once, each a descriptor of the agent, before it looks at any.
            agent = place.agent_pid()
            os.kill(agent, signal.SIGSTOP)
            worker.do("held = [open(path, 'rb', buffering=0) for path in paths]", paths=[str(path) for path in contents])
            os.kill(agent, signal.SIGCONT)
            assert worker.do("[file.read() for file in held]") == list(contents.values())
            worker.do("[file.close() for file in held]\nNone")
            lost = wait_until(lambda: place.idle()["not_copied"], "a hand-over that is not taken")
            assert set(lost) <= {"too_many_descriptors", "mostly_unread"}
            # Once they are back all goes on.
            warm(place, worker, *list(contents)[:20])
            assert place.status()["tiers"][0]["off"] is None
        assert worker.ran
        assert worker.ran.record["agent"]
        place.stop()


HOLD = """
held = [os.open(path, os.O_RDONLY) for _ in range(15_000)]
len(held)
"""
LOOK = """
import time
begun = time.process_time()
for pid in pids:
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            pass
time.process_time() - begun
"""


def test_f15_many_descriptors_of_other_processes_do_not_stop_the_agent(place: Place) -> None:
    """Each file that has changed lately is compared with what processes have open for writing."""
    contents = {place.source / f"more{n:03}": bytes([n]) * 3000 for n in range(MORE)}
    for path, content in contents.items():
        path.write_bytes(content)
    # A long name takes the kernel long to spell.
    held = place.root.joinpath(*["d" * 230] * 15, "held")
    held.parent.mkdir(parents=True)
    held.touch()
    support.settle(place.source)
    plain: list[Word] = [sys.executable, "-E", support.WORKER]
    with Worker.started(plain) as one, Worker.started(plain) as other, place.worker() as worker:
        for holder in (one, other):
            holder.do("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)")
            assert holder.do(HOLD, path=str(held)) == 15_000
        look_s = one.do(LOOK, pids=[one.process.pid, other.process.pid])
        clock = ~place.agent_pid() << 3 | 2
        before_s = time.clock_gettime(clock)
        warm(place, worker, *contents)
        took_s = time.clock_gettime(clock) - before_s
        assert took_s < 20 * look_s, f"{took_s} s of the processor, a look at all descriptors takes {look_s}"
