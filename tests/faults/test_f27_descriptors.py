"""F27: close_range, dup2, jumps out of handlers, cancelled threads, no descriptor left.

The preload library keeps none.
"""

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_f27_descriptors_come_and_go_by_an_uncovered_program(covered: CoveredSource) -> None:
    covered.program("descriptors")
