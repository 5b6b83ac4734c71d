"""F2: a copy, or a tier, that answers with errors.

Opens fall to the source or the next tier; after a few faults the tier is off.
"""

from collections.abc import Callable

import pytest

from tests.faults.harness import (
    CORPUS,
    SMALL,
    SmallDisk,
    disk,
    needs_root,
    needs_strace,
    read_adopted,
    traced,
    wait_for_reason,
    worker_with,
)
from tests.support import Place, is_copy, read, wait_until, warm

pytestmark = [needs_root, needs_strace]


@pytest.mark.parametrize("errno", ["EIO", "ESTALE", "EUCLEAN"])
def test_f02_a_copy_that_cannot_be_opened_is_read_from_the_source(place: Place, errno: str) -> None:
    name = SMALL[0]
    with place.worker() as worker:
        warm(place, worker, place.source / name)
        (copy,) = place.objects()
        program = worker.do("os.getpid()")
        with traced(place, program, "-e", "trace=openat", "-P", str(copy), "-e", f"inject=openat:error={errno}") as trace:
            assert [read(worker, place.source / name) for _ in range(3)] == [CORPUS[name]] * 3
        assert trace.injected() == 3
        assert is_copy(worker, place.source / name)
    assert worker.ran
    assert worker.ran.counters["pass_copy_gone"] == 3


def test_f02_a_copy_that_is_gone_is_made_again(place: Place) -> None:
    name = SMALL[0]
    with place.worker() as worker:
        warm(place, worker, place.source / name)
        (copy,) = place.objects()
        copy.unlink()
        warm(place, worker, place.source / name)
        assert read(worker, place.source / name) == CORPUS[name]
        (again,) = place.objects()
        assert again != copy
        assert place.status()["tiers"][0]["files"] == 1


def test_f02_a_tier_is_off_after_a_few_faults(place: Place) -> None:
    kept, *others = SMALL
    with place.worker() as worker:
        warm(place, worker, place.source / kept)
        with traced(place, place.agent_pid(), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error=EIO") as trace:
            for name in others:
                assert read(worker, place.source / name) == CORPUS[name]
            wait_for_reason(place, "tier_error")
            wait_until(lambda: place.status()["tiers"][0]["off"], "the tier is off")
        assert trace.injected() >= 3
        assert read(worker, place.source / kept) == CORPUS[kept]
        assert not is_copy(worker, place.source / kept)
    assert worker.ran
    assert worker.ran.counters["pass_tier_off"] >= 1
    assert b"Input/output error" in worker.ran.err
    # The next agent starts with the copies from before the faults.
    place.stop()
    assert read_adopted(place, kept).from_tier == 1


@pytest.mark.parametrize(
    ("how", "why"),
    [(SmallDisk.turn_read_only, "Read-only file system"), (SmallDisk.break_down, "Input/output error")],
    ids=["read-only", "broken"],
)
def test_f02_copies_go_to_the_next_tier(place: Place, how: Callable[[SmallDisk], None], why: str) -> None:
    first, *others = SMALL
    second = place.root / "second"
    second.mkdir()
    with disk(place) as top, worker_with(place, [f"{place.tier}=32M", f"{second}=32M"]) as worker:
        warm(place, worker, place.source / first)
        assert len(place.objects()) == 1
        how(top)
        for name in others:
            assert read(worker, place.source / name) == CORPUS[name]
        wait_for_reason(place, "tier_error")
        warm(place, worker, *(place.source / name for name in others))
        assert len(list(second.glob("forebay-*/objects/*/*"))) == len(others)
        tiers = place.status()["tiers"]
        assert why in tiers[0]["off"]
        assert read(worker, place.source / first) == CORPUS[first]
        assert tiers[1]["off"] is None
