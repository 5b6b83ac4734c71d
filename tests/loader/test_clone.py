"""A job that is forked has its loader's place in its state."""

from forebay.torch import DataLoader
from tests.clone.jobs import job
from tests.loader.data import Indices


def test_a_clones_loader_goes_on_where_its_parents_is() -> None:
    loader, clones = (DataLoader(Indices(20), 4, shuffle=True, seed=3, report=False) for _ in range(2))
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    described, other = job().inventory(loader=loader), job(number=1).inventory(loader=clones)
    with described.capture() as capture:
        other.load(capture)
        assert other.manifest() == capture.manifest
    assert clones.state_dict() == loader.state_dict()
    assert [batch.tolist() for batch in clones] == [batch.tolist() for batch in batches]
