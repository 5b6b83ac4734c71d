"""F4: interrupted calls are gone on with; calls that make no progress end the copy, and nothing spins."""

import pytest

from tests.faults.harness import BIG, CORPUS, SMALL, needs_root, needs_strace, traced, wait_for_reason
from tests.support import Place, read, wait_until, warm

pytestmark = [needs_root, needs_strace]


@pytest.mark.parametrize("call", ["pread64", "pwrite64", "openat2"])
def test_f04_every_other_call_is_interrupted(place: Place, call: str) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / SMALL[0])
        with traced(place, place.agent_pid(), "-e", f"trace={call}", "-e", f"inject={call}:error=EINTR:when=1+2") as trace:
            warm(place, worker, *(place.source / name for name in CORPUS))
        assert trace.injected() >= len(SMALL) / 2
        assert sorted(copy.read_bytes() for copy in place.objects()) == sorted(CORPUS.values())
        assert place.status()["not_copied"] == {}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("pread64:retval=0", "changed_meanwhile"),
        ("pwrite64:retval=0", "tier_error"),
        ("pread64:error=EINTR", "source_error"),
        ("pwrite64:error=EINTR", "tier_error"),
        ("pread64:error=EAGAIN", "source_error"),
        ("pwrite64:error=EAGAIN", "tier_error"),
    ],
)
def test_f04_no_progress_is_an_error_and_never_a_spin(place: Place, fault: str, reason: str) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / SMALL[0])
        copies, spent_ms = place.objects(), place.status()["cpu_ms"]
        call = fault.partition(":")[0]
        with traced(place, place.agent_pid(), "-e", f"trace={call}", "-e", f"inject={fault}") as trace:
            for name in (SMALL[1], BIG):
                assert read(worker, place.source / name) == CORPUS[name]
            wait_for_reason(place, reason)
            wait_until(lambda: not place.status()["in_flight"], "the end of all copies")
        assert 1 <= trace.injected() < 1000
        assert place.status()["cpu_ms"] - spent_ms < 10_000
        assert place.objects() == copies
        for name in (SMALL[1], BIG):
            assert read(worker, place.source / name) == CORPUS[name]
