"""F12: a tier slower than the source.

It is measured, set aside for placement and reads, told of, and taken back when it is fast.
"""

import itertools
import time

from tests.faults.harness import disk, needs_root, needs_strace, traced
from tests.support import PROGRAM_S, Place, is_copy, read, settle, wait_until

pytestmark = [needs_root, needs_strace]

# Enough for one every now and then as long as anybody would wait.
FILES = 2000
CONTENT = b"read from the source"


def test_f12_a_tier_that_turns_slow_is_set_aside_and_taken_back(place: Place) -> None:
    paths = [place.source / f"f{number:03}" for number in range(FILES)]
    for path in paths:
        path.write_bytes(CONTENT)
    settle(place.source)
    # What is opened in the tier, and nothing else: the source is handed over.
    slow = ["-e", "trace=openat2", "-e", "inject=openat2:delay_enter=100000"]
    with disk(place), place.worker() as worker:
        unread = itertools.cycle(paths)

        def is_off() -> bool:
            now = place.status()
            # One at a time: it is measured with copies that are made anyway, once a second at the most.
            if not now["in_flight"]:
                assert read(worker, next(unread)) == CONTENT
            time.sleep(0.1)
            return "slower than the source" in (now["tiers"][0]["off"] or "")

        with traced(place, place.agent_pid(), *slow):
            wait_until(is_off, "a tier that is set aside", PROGRAM_S)
            copied = place.idle()["files_copied"]
            assert copied
            assert not any(is_copy(worker, path) for path in paths[:5])
        wait_until(lambda: place.status()["tiers"][0]["off"] is None, "a tier that is taken back", PROGRAM_S)
        assert any(is_copy(worker, path) for path in paths[:5])
        assert place.status()["files_copied"] == copied
        assert place.status()["tiers"][0]["set_aside"] == 1
    assert worker.ran
    assert f"tier set aside:      {place.tier}: 1 time, while it was slower than the source" in worker.ran.err.decode()
    assert worker.ran.record["counters"]["pass_tier_off"] > 0
    place.stop()
