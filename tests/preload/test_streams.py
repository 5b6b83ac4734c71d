"""Directory streams over listings: `readdir`, `seekdir`, `dirfd` and kin, in real programs.

What listings say, and when: semantics/test_p03_listings.py.
"""

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_streams_give_what_the_source_gives(covered: CoveredSource) -> None:
    ran = covered.program("streams", "reads")
    counted = ran.counters
    assert counted["listings_saved"] > 300
    kinds = ("saved", "unknown", "stale", "tombstoned", "passed")
    assert counted["source_listings"] == sum(counted[f"listings_{kind}"] for kind in kinds)
    # Where all streams are in use, and no word of it.
    assert counted["listings_passed"] >= 300 - 256
    assert counted["listings_dropped"] == 0


def test_streams_show_what_the_program_changes(own_covered: CoveredSource) -> None:
    ran = own_covered.program("streams", "changes")
    assert ran.counters["listings_tombstoned"] > 10
