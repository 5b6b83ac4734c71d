"""Small training jobs, of each kind of state that a fork must carry."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import forebay.clone as clone

# These models are too small to be shared out, and the machine too busy.
torch.set_num_threads(1)


class StateNet(nn.Module):
    """Convolution, BatchNorm and dropout: weights, buffers, generators all matter to its losses."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(width * 36, 3)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images).flatten(1))
        return logits


class Position:
    """A loader's position, known by its state_dict alone."""

    def __init__(self) -> None:
        self.consumed = 0

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consumed = state["consumed"]


@dataclass
class StateJob:
    """A training job that draws its batches from generators of its own and from the process's."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    loader: Any = None
    counters: dict[str, int] = field(default_factory=lambda: {"step": 0})
    generators: dict[str, Any] = field(
        default_factory=lambda: {
            "torch": torch.Generator(),
            "numpy": np.random.default_rng(1),
            "legacy": np.random.RandomState(2),
            "python": random.Random(3),  # noqa: S311
        }
    )
    losses: list[float] = field(default_factory=list)
    device: str = "cpu"

    def given(self) -> dict[str, Any]:
        names = (*clone.KINDS, "generators")
        return {name: getattr(self, name) for name in names}

    def for_session(self) -> dict[str, Any]:
        """A session counts by itself."""
        return {name: value for name, value in self.given().items() if name != "counters"}

    def inventory(self, **instead: Any) -> clone.Inventory:
        return clone.inventory(**{**self.given(), **instead})

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(4, 1, 8, 8, generator=self.generators["torch"])
        shift = self.generators["numpy"].random() + self.generators["legacy"].rand() + self.generators["python"].random()
        drawn = random.random() + np.random.rand()  # noqa: S311
        return (noise + float(shift + drawn)).to(self.device), torch.tensor([0, 1, 2, 0], device=self.device)

    def step(self) -> None:
        images, labels = self.batch()

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            # In half precision where there is a GPU, as its users train.
            with torch.autocast("cuda", torch.float16, enabled=self.device == "cuda"):
                loss = nn.functional.cross_entropy(self.model(images), labels)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            return loss

        if self.scaler:
            loss: Any = closure()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss = self.optimizer.step(closure)  # type: ignore[arg-type]
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss.detach().item())
        elif self.scheduler:
            self.scheduler.step()
        if self.ema:
            self.ema.update_parameters(self.model)
        if self.loader:
            self.loader.consumed += len(images)
        self.counters["step"] += 1
        self.losses.append(loss.item())


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0, "lr": torch.tensor(0.01)}]
    return torch.optim.AdamW(groups, amsgrad=True)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def capturable(model: nn.Module) -> torch.optim.Optimizer:
    """Its learning rate and its counts of steps are tensors, on the GPU if the model is."""
    device = next(model.parameters()).device
    return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01, device=device), capturable=True)


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)


def averaged(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def warmed_cosine(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[2])


# Each scheduler that torch has for a schedule of its own kind: closed form, recursion, milestones (a Counter), text and
# infinities.
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
    "sequential": warmed_cosine,
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}


WIDE = 256
"""At this width the last layer's weight, of 110,592 bytes, is large enough for shared memory."""


def job(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = momentum, number: int = 0, width: int = 8, device: str = "cpu"
) -> StateJob:
    """A job with one optimizer and nothing else, its weights drawn from a seed."""
    seed(number)
    model = StateNet(width).to(device)
    return StateJob(model, optimizer(model), device=device)


def full(number: int = 0, scheduler: str = "sequential", width: int = 8, device: str = "cpu") -> StateJob:
    """A job with something of every kind."""
    made = job(momentum, number, width, device)
    made.scheduler = SCHEDULERS[scheduler](made.optimizer)
    # So seldom that no test comes to where it overflows: there the optimizer's step is left out, the average's is not.
    made.scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=50)
    made.ema = averaged(made.model)
    made.loader = Position()
    return made
