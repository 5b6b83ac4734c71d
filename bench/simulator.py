"""Asks the simulator: scenarios as plain dictionaries with the keys of a plan file, answers as they come."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.report import ROOT

Scenario = Mapping[str, Mapping[str, Any]]
Epoch = dict[str, Any]


def programs() -> Path:
    """Where Cargo puts the examples of a release build, if the simulator is there, else those of a debug build."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    release = target / "release" / "examples"
    return release if (release / "simulate").exists() else target / "debug" / "examples"


class SimulationError(Exception):
    """A scenario that cannot be."""


class Simulator:
    """A process that answers one scenario a line."""

    def __init__(self) -> None:
        self.program = programs() / "simulate"

    def __enter__(self) -> Simulator:
        self._process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()

    def answer(self, scenario: Scenario) -> dict[str, Any]:
        """All that is told of one scenario."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise SimulationError("the simulator is not running")
        stdin.write(json.dumps(scenario) + "\n")
        stdin.flush()
        told: dict[str, Any] = json.loads(stdout.readline())
        if "error" in told:
            raise SimulationError(f"{told['error']} (in {scenario})")
        return told

    def epochs(self, scenario: Scenario) -> list[Epoch]:
        """The figures of each epoch; the first is the cold one."""
        epochs: list[Epoch] = self.answer(scenario)["epochs"]
        return epochs


def changed(scenario: Scenario, **changes: Any) -> dict[str, dict[str, Any]]:
    """The scenario with other values: `loader_policy="lru"` is the key `loader.policy`."""
    result = {section: dict(values) for section, values in scenario.items()}
    for name, value in changes.items():
        section, key = name.split("_", 1)
        result.setdefault(section, {})[key] = value
    return result


def warm(epochs: Sequence[Epoch]) -> Epoch:
    """The last epoch, which is as all later ones would be."""
    return epochs[-1]


def total(epochs: Iterable[Epoch], key: str) -> float:
    """A figure of some epochs together."""
    return sum(float(epoch[key]) for epoch in epochs)
