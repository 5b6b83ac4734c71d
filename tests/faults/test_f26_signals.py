"""F26: handlers that open interrupt the preload library anywhere; errno stays what it was."""

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_f26_storm_of_signals_on_a_small_stack(covered: CoveredSource) -> None:
    ran = covered.program("signals")
    assert ran.hits > 30_000
