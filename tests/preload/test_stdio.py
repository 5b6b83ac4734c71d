"""stdio's own opens: the modes that a copy can stand in for, and those that it can't."""

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_streams_read_copies(covered: CoveredSource) -> None:
    ran = covered.program("stdio")
    assert ran.counters["pass_stdio_mode"] == 2
    assert ran.hits >= 10


def test_streams_write_the_source(own_covered: CoveredSource) -> None:
    own_covered.program("stdio_writes")
    assert (own_covered.source / "f1").read_text() == "File 1\n"
    assert (own_covered.source / "f2").read_text() == "Again 2\n"
