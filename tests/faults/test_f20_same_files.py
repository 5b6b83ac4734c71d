"""F20: many processes read the same files at once. Each file is copied once, counted once, and is whole."""

import json

from tests.faults.harness import CORPUS, SMALL, digest
from tests.support import Place

HAMMER = """
import hashlib, json, os, random, sys, time
wanted = json.loads(sys.argv[2])
paths, begin_at = list(wanted), time.monotonic() + 0.3
children = []
for number in range(int(sys.argv[1])):
    if pid := os.fork():
        children.append(pid)
        continue
    random.seed(number)
    time.sleep(max(0, begin_at - time.monotonic()))
    for round in range(int(sys.argv[3])):
        random.shuffle(paths)
        for path in paths:
            with open(path, "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != wanted[path]:
                    os._exit(1)
    os._exit(0)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""
PROCESSES = 16
ROUNDS = 4


def hammer(place: Place, tier_size: str | None = None) -> int:
    """Has many processes read all files at once; gives how many opens that were."""
    wanted = {str(place.source / name): digest(content) for name, content in CORPUS.items()}
    ran = place.run(place.python, "-E", "-c", HAMMER, str(PROCESSES), json.dumps(wanted), str(ROUNDS), tier_size=tier_size)
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
        assert status["handed_over"] > len(CORPUS)


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
