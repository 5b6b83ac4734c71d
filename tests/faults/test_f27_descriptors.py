"""F27: close_range, dup2, jumps out of handlers, cancelled threads, no descriptor left: the door keeps none."""

from tests.preload.door import Door

pytest_plugins = ["tests.preload.fixtures"]


def test_f27_descriptors_come_and_go_behind_the_door(door: Door) -> None:
    door.program("descriptors")
