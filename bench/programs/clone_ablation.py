"""A small job with something of every kind of state: what happens when a kind is left out of its fork.

Prints JSON, a line a fork.

Usage: clone_ablation.py FORKS

A fork leaves out each part of the inventory once, in source and clone alike, as if nobody had thought of it. It is
caught if the digests of that part's entries, and of no others, differ from the source's afterwards. Parts that are
never set, but have to be the same in both programs (types, names), can't be lost. Each line says how many parts there
were, which were not caught, which of the five losses that follow would not have shown, and which kinds `inventory` did
not ask for when they were not mentioned.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import forebay.clone as clone
from forebay.clone._adapter import Component

STEPS_BEFORE, STEPS_AFTER = 3, 5
CLASSES = 3
Path = tuple[str, ...]


class NotedModule(nn.Module):
    """A module with state beside its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Counts."""
        self.calls += 1
        return images

    def get_extra_state(self) -> int:
        """See `nn.Module`."""
        return self.calls

    def set_extra_state(self, state: int) -> None:
        """See `nn.Module`."""
        self.calls = state


class AblationLoader:
    """A loader's position."""

    def __init__(self) -> None:
        self.consumed = 0

    def state_dict(self) -> dict[str, int]:
        """As loaders have it."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """As loaders have it."""
        self.consumed = state["consumed"]


class AblationJob:
    """Something of every kind; its data come from generators of its own and of the process."""

    def __init__(self, seed: int) -> None:
        scramble(seed)
        features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), NotedModule())
        self.model = nn.Sequential(features, nn.Flatten(), nn.Linear(288, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.loader = AblationLoader()
        self.counters: dict[str, int] = {"step": seed}
        self.metrics: dict[str, float] = {"loss": float(seed)}
        self.generator = torch.Generator().manual_seed(seed)

    def given(self) -> dict[str, Any]:
        """As `inventory` wants it."""
        kinds = {name: getattr(self, name) for name in clone.KINDS}
        return {**kinds, "generators": {"own": self.generator}, "others": {"metrics": self.metrics}}

    def step(self) -> float:
        """One step; its gradients are left, and belong to the state."""
        drawn = random.random() + np.random.rand()  # noqa: S311
        images = torch.randn(4, 1, 8, 8, generator=self.generator) + drawn
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), torch.randint(CLASSES, (4,)))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        self.loader.consumed += len(images)
        self.counters["step"] += 1
        self.metrics["loss"] = loss.item()
        return self.metrics["loss"]


def scramble(seed: int) -> None:
    """Sets the process's own generators, and a flag, to what no source has them at."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    torch.set_float32_matmul_precision("medium")


MAY_BE_EMPTY = ("attributes", "state_dict")
"""Parts that are described of every object, and that most objects have nothing in."""


def main() -> None:
    """See above."""
    torch.set_num_threads(1)
    for number in range(int(sys.argv[1])):
        print(json.dumps(fork(number)), flush=True)


def fork(number: int) -> dict[str, Any]:
    """One fork of a job whose weights and data are those of `number`, for each part that can be left out."""
    # Made first: it draws from the process's generators.
    fresh = AblationJob(1000 + number)
    source = AblationJob(number)
    torch.set_float32_matmul_precision("highest")
    for _ in range(STEPS_BEFORE):
        source.step()
    disturb(source)
    whole = inventory(source)
    manifest = whole.manifest()
    # A part that a new program has alike is empty here: a module without attributes of its own.
    unlike = inventory(fresh).manifest().differences(manifest)
    lost = [component.path for component in whole._components if can_be_lost(component, manifest)]
    paths = [path for path in lost if path[-1] not in MAY_BE_EMPTY or any(is_of(entry, path) for entry in unlike)]
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(inventory(source, path).capture()) for path in paths]
        after = [source.step() for _ in range(STEPS_AFTER)]
        found = [left_out(path, one, manifest, after, number) for path, one in zip(paths, taken, strict=True)]
    return {
        "parts": len(paths),
        "not_caught": ["/".join(path) for path, (is_caught, _) in zip(paths, found, strict=True) if not is_caught],
        "not_in_the_losses": ["/".join(path) for path, (_, is_shown) in zip(paths, found, strict=True) if not is_shown],
        "not_asked_for": [kind for kind in clone.KINDS if not is_asked_for(source, kind)],
    }


def disturb(job: AblationJob) -> None:
    """Has every part of the state be other than it is when a program begins."""
    # Dropout is held still while the rest is trained.
    job.model.get_submodule("0.3").eval()
    job.ema.get_submodule("module.0.3").eval()
    noted: Any = job.ema.get_submodule("module.0.4")
    noted.calls = 7
    for parameter in job.ema.parameters():
        parameter.grad = torch.ones_like(parameter)


def can_be_lost(component: Component, manifest: clone.Manifest) -> bool:
    """Returns True if a part is set, or written in place, rather than only compared."""
    return component.put is not None or sum(is_of(entry.path, component.path) for entry in manifest.entries) > 1


def inventory(job: AblationJob, without: Path | None = None) -> clone.Inventory:
    """All of a job's state, or all but one part."""
    described = clone.inventory(**job.given())
    described._components = [component for component in described._components if component.path != without]
    return described


def left_out(path: Path, taken: clone.Capture, whole: clone.Manifest, after: list[float], number: int) -> tuple[bool, bool]:
    """Returns two verdicts on a missing part: the digests catch it, and the losses that follow show it."""
    other = AblationJob(1000 + number)
    inventory(other, path).load(taken)
    differing = inventory(other).manifest().differences(whole)
    losses = [other.step() for _ in range(STEPS_AFTER)]
    return bool(differing) and all(is_of(entry, path) for entry in differing), losses != after


def is_of(entry: str, path: Path) -> bool:
    """Returns True if an entry belongs to a part."""
    return f"{entry}/".startswith(f"{'/'.join(path)}/")


def is_asked_for(job: AblationJob, kind: str) -> bool:
    """Returns True if a kind that is not mentioned is refused by its name."""
    given = job.given()
    del given[kind]
    try:
        clone.inventory(**given)
    except clone.MissingError as error:
        return kind in str(error)
    return False


if __name__ == "__main__":
    main()
