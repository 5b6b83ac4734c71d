"""F26: handlers that open interrupt the door anywhere; errno stays what it was."""

from tests.preload.door import Door

pytest_plugins = ["tests.preload.fixtures"]


def test_f26_storm_of_signals_on_a_small_stack(door: Door) -> None:
    ran = door.program("signals")
    assert ran.hits > 30_000
