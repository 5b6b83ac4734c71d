"""Checks of states that tests on the processor and on a GPU share."""

from collections.abc import Callable

from tests.clone.jobs import StateJob, seed


def loaded_goes_on_equally(make: Callable[[int], StateJob], steps_before: int) -> None:
    """A state that is captured in one job and loaded into another is the same there, and goes on the same."""
    original, other = make(1), make(2)
    for _ in range(steps_before):
        other.step()
    seed(5)
    for _ in range(3):
        original.step()
    state, loaded = original.inventory(), other.inventory()
    with state.capture() as capture:
        assert state.manifest() == capture.manifest
        assert loaded.manifest().differences(capture.manifest) != []
        for _ in range(5):
            original.step()
        after = state.manifest()
        loaded.load(capture)
        assert loaded.manifest() == capture.manifest
    for _ in range(5):
        other.step()
    assert other.losses[-5:] == original.losses[-5:]
    assert loaded.manifest() == after
