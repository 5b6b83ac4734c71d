"""Reading a state changes nothing: neither what the job draws from then on, nor what its clone does."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, train
from tests.clone.jobs import StateJob, full
from tests.clone.loading import Loading, Noisy

DRAWS: dict[str, Callable[[StateJob], object]] = {
    "torch": lambda _: torch.rand(3),
    "numpy": lambda _: np.random.rand(3),
    "python": lambda _: random.random(),  # noqa: S311
    "named": lambda made: torch.rand(3, generator=made.generators["torch"]),
    "nothing": lambda _: None,
}


class DrawingState:
    """An object of the program's own whose state can't be read without drawing."""

    def __init__(self, made: StateJob, draw: Callable[[StateJob], object]) -> None:
        self.made, self.draw, self.value = made, draw, 0
        self.drawn: list[object] = []

    def state_dict(self) -> dict[str, Any]:
        self.drawn.append(self.draw(self.made))
        return {"value": self.value, "drawn": str(self.drawn[-1])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draw(self.made)
        self.value = state["value"]


class DrawingModule(nn.Module):
    """The same, of a module's extra state."""

    def __init__(self, made: StateJob, draw: Callable[[StateJob], object]) -> None:
        super().__init__()
        self.made, self.draw, self.value = [made], draw, 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"value": self.value, "drawn": str(self.draw(self.made[0]))}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.draw(self.made[0])
        self.value = state["value"]


@pytest.mark.parametrize("kind", [DrawingState, DrawingModule])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_p14b_objects_that_draw_when_they_are_read(
    here: CloneNode, opened: Opened, kind: type[DrawingState | DrawingModule], draw: Callable[[StateJob], object]
) -> None:
    made, other, plain = full(1), full(2), full(1)
    drawing = kind(made, draw)
    jobs.seed(1)
    session = opened(made, others={"mine": drawing})
    drawing.value = 5
    train(made, session, 3)
    with here.cloning("trunk", "--at", "5") as asked:
        train(made, session, 6, 4)
        copy = kind(other, draw)
        resumed = opened(other, asked=asked, others={"mine": copy})
        train(other, resumed, 4, 6)
    assert copy.value == 5
    assert other.losses == made.losses[5:]
    jobs.seed(1)
    train(plain, None, 9)
    assert made.losses == plain.losses, "as though nobody had asked"


@pytest.mark.parametrize("has_own", [False, True], ids=["process", "own"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("at", [2, 4, 6], ids=["first-epoch", "between", "second-epoch"])
def test_p14b_a_stateful_data_loader_is_carried(here: CloneNode, opened: Opened, workers: int, at: int, *, has_own: bool) -> None:
    """Four batches an epoch.

    With a worker the samples draw nothing, for torchdata does not keep what its workers' generators are at.
    """

    def loader() -> Any:  # noqa: ANN401
        generator = torch.Generator().manual_seed(5) if has_own else None
        data: Any = Noisy() if workers == 0 else TensorDataset(torch.arange(12.0))
        collate = None if workers == 0 else _first
        return StatefulDataLoader(data, batch_size=3, shuffle=True, num_workers=workers, generator=generator, collate_fn=collate)

    parent, other, plain = (Loading(loader, is_given=True) for _ in range(3))
    jobs.seed(1)
    session = opened(parent.job)
    with here.cloning("trunk", "--at", str(at)) as asked:
        parent.run(session, 3)
        jobs.seed(9)
        resumed = opened(other.job, asked=asked)
        other.run(resumed, 3)
    assert other.had == parent.had[at:]
    jobs.seed(1)
    plain.run(None, 3)
    assert parent.had == plain.had, "as though nobody had asked"


def _first(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([sample for (sample,) in samples])
