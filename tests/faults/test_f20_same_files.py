"""F20: many processes read the same files at once. Each file is copied once, counted once, and is whole."""

import json
import os
import time

from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, digest, needs_root
from tests.support import NOBODY, Place, settle, wait_until

# The agent stands still until everybody has read everything once: so they do meet, also where they run one after the
# other.
HAMMER = """
import hashlib, json, os, random, signal, sys
wanted, agent = json.loads(sys.argv[2]), int(sys.argv[4])
paths = list(wanted)
children = []
told, tells = os.pipe()
os.kill(agent, signal.SIGSTOP)
for number in range(int(sys.argv[1])):
    if pid := os.fork():
        children.append(pid)
        continue
    random.seed(number)
    for round in range(int(sys.argv[3])):
        if round == 1:
            os.write(tells, b".")
        random.shuffle(paths)
        for path in paths:
            with open(path, "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != wanted[path]:
                    os._exit(1)
    os._exit(0)
os.close(tells)
for _ in children:
    os.read(told, 1)
os.kill(agent, signal.SIGCONT)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""
PROCESSES = 16
ROUNDS = 4


def hammer(place: Place, tier_size: str | None = None) -> int:
    """Has many processes read all files at once; gives how many opens that were."""
    wanted = {str(place.source / name): digest(content) for name, content in CORPUS.items()}
    agent = str(place.agent_pid())
    ran = place.run(place.python, "-E", "-c", HAMMER, str(PROCESSES), json.dumps(wanted), str(ROUNDS), agent, tier_size=tier_size)
    assert ran.out.decode().strip() == str([0] * PROCESSES)
    opens: int = ran.record["derived"]["source_opens"]
    return opens


def test_f20_sixteen_processes_hammer_the_same_files(place: Place) -> None:
    # A run beside, so that the agent is there to be asked.
    with place.worker() as worker:
        worker.do("None")
        assert hammer(place) == PROCESSES * ROUNDS * len(CORPUS)
        status = place.idle()
        size = sum(map(len, CORPUS.values()))
        assert (status["files_copied"], status["bytes_copied"]) == (len(CORPUS), size)
        assert (status["tiers"][0]["files"], status["tiers"][0]["used_bytes"]) == (len(CORPUS), size)
        assert sorted(copy.read_bytes() for copy in place.objects()) == sorted(CORPUS.values())
        # They did meet.
        assert status["handed_over"] >= PROCESSES * len(CORPUS)


def test_f20_the_quota_is_the_nodes(place: Place) -> None:
    quota = 200_000
    with place.worker(tier_size=f"{quota}B") as worker:
        worker.do("None")
        hammer(place, tier_size=f"{quota}B")
        tier = place.idle()["tiers"][0]
        lying = sum(copy.stat().st_size for copy in place.objects())
        assert tier["used_bytes"] == lying <= quota
        # And it is made use of: no file is left that would still fit.
        assert quota - lying < max(len(CORPUS[name]) for name in SMALL)


@needs_root
def test_f20_a_second_reader_is_followed_once_the_first_has_left(place: Place) -> None:
    place.give_to(NOBODY)
    path = place.source / BIG
    # What of somebody else's file is in the page cache is not told: its copy goes by its readers alone.
    os.chown(path, 0, 0)
    path.chmod(0o644)
    settle(path)
    with place.worker() as worker:
        worker.do("first = open(path, 'rb', buffering=0); first.read(100_000); second = open(path, 'rb', buffering=0)", path=str(path))
        wait_until(lambda: place.status()["handed_over"] == 2, "both hand-overs")
        worker.do("first.close()")
        content = b""
        # Longer than a copy waits that nobody reads.
        while len(content) < len(CORPUS[BIG]):
            content += worker.do("second.read(1 << 17)")
            time.sleep(0.4)
        assert content == CORPUS[BIG]
        wait_until(lambda: not place.status()["in_flight"], "the end of the copy")
        status = place.status()
        assert (status["files_copied"], status["not_copied"]) == (1, {})


def test_f20_what_was_read_for_a_copy_that_came_to_nothing_is_counted(place: Place) -> None:
    with place.worker() as worker:
        begin_big(place, worker)
        worker.do("held.close()")
        wait_until(lambda: place.status()["not_copied"], "the copy to be given up")
        status = place.status()
        assert (status["not_copied"], status["bytes_copied"]) == ({"mostly_unread": 1}, 0)
        assert 0 < status["source_bytes_read"] < len(CORPUS[BIG])
