"""stdio's own opens: the modes that a copy can stand in for, and those that it can't."""

from tests.preload.door import Door

pytest_plugins = ["tests.preload.fixtures"]


def test_streams_read_copies(door: Door) -> None:
    ran = door.program("stdio")
    assert ran.counters["pass_stdio_mode"] == 2
    assert ran.hits >= 10


def test_streams_write_the_source(own_door: Door) -> None:
    own_door.program("stdio_writes")
    assert (own_door.source / "f1").read_text() == "File 1\n"
    assert (own_door.source / "f2").read_text() == "Again 2\n"
