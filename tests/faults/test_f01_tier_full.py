"""F1: a tier without room. The partial copy goes, the program does not notice, and smaller files are still tried."""

import os

import pytest

from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, end_big, needs_root, needs_strace, tmpfs, traced, wait_for_reason
from tests.support import Place, read, warm

pytestmark = needs_root


def free_bytes(place: Place) -> int:
    room = os.statvfs(place.tier)
    return room.f_bavail * room.f_frsize


def test_f01_another_tenant_fills_the_tier_during_a_copy(place: Place) -> None:
    with tmpfs(place.tier, "size=8m"), place.worker() as worker:
        head = begin_big(place, worker)
        tenant = place.tier / "tenant"
        with tenant.open("wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096 and free_bytes(place) >= 4096:
                pass
        assert head + end_big(worker) == CORPUS[BIG]
        wait_for_reason(place, "tier_was_full")
        assert place.objects() == []
        # The tier is full for what just failed. What is smaller is tried as soon as there is some room.
        os.truncate(tenant, tenant.stat().st_size - (1 << 20))
        warm(place, worker, *(place.source / name for name in SMALL))
        assert read(worker, place.source / BIG) == CORPUS[BIG]
        assert place.status()["tiers"][0]["off"] is None


@needs_strace
@pytest.mark.parametrize("errno", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("call", ["openat2", "pwrite64", "close"])
def test_f01_no_room_at_any_call_of_a_copy(place: Place, call: str, errno: str) -> None:
    first, second = place.source / SMALL[0], place.source / SMALL[1]
    with place.worker() as worker:
        warm(place, worker, first)
        copies = place.objects()
        with traced(place, place.agent_pid(), "-e", f"trace={call}", "-e", f"inject={call}:error={errno}") as trace:
            assert read(worker, second) == CORPUS[SMALL[1]]
            wait_for_reason(place, "tier_was_full")
            assert trace.injected()
        assert place.objects() == copies
        # It backs off for a second or two and tries again.
        warm(place, worker, second)
        assert read(worker, second) == CORPUS[SMALL[1]]
    assert worker.ran
    assert worker.ran.record["agent"]["tiers"][0]["off"] is None
