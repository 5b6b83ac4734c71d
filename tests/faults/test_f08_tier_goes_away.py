"""F8: the tier's directory is deleted, moved, mounted over or made read-only under load. Nobody notices."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from tests.faults.harness import BIG, CORPUS, SMALL, SmallDisk, disk, needs_root, read_adopted, reading_on, tmpfs
from tests.support import Place, is_copy, read, remove_tree, wait_until, warm

pytestmark = needs_root


@contextmanager
def gone(place: Place, on: SmallDisk, what: str) -> Iterator[None]:
    """The tier is no longer what it was."""
    (root,) = place.tier.glob("forebay-*")
    if what == "deleted":
        remove_tree(root)
    elif what == "moved":
        root.rename(place.tier / "elsewhere")
    elif what == "read_only":
        on.turn_read_only()
    elif what == "broken":
        on.break_down()
    with tmpfs(place.tier, "size=16m") if what == "covered" else nullcontext():
        yield


@pytest.mark.parametrize("what", ["deleted", "moved", "covered", "read_only", "broken"])
def test_f08_the_tier_goes_away_under_load(place: Place, what: str) -> None:
    copied, fresh = SMALL[:6], SMALL[6:]
    with disk(place) as on:
        with place.worker() as worker:
            warm(place, worker, *(place.source / name for name in copied), place.source / BIG)
            assert is_copy(worker, place.source / BIG)
            head = worker.do("held = open(path, 'rb', buffering=0)\nheld.read(1000)", path=str(place.source / BIG))
            with reading_on(place, worker, *copied, excused=what == "broken"), gone(place, on, what):
                wait_until(lambda: what == "read_only" or not is_copy(worker, place.source / copied[0]), "the tier is out of reach")
                for name in fresh:
                    assert read(worker, place.source / name) == CORPUS[name]
                wait_until(lambda: place.status()["tiers"][0]["off"], "the tier is off")
                if what != "broken":
                    # What was handed out lives on.
                    assert head + worker.do("held.read()") == CORPUS[BIG]
                assert not is_copy(worker, place.source / copied[0])
        assert worker.ran
        assert worker.ran.counters["pass_copy_gone"] + worker.ran.counters["pass_tier_off"] >= 1
        place.stop()
    # And the next agent has a tier again.
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in copied))
    place.stop()
    assert read_adopted(place, *copied).from_tier == len(copied)
