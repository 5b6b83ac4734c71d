"""The example trains, and goes on from its state in the middle of an epoch."""

import sys
from pathlib import Path

import pytest
import torch

from examples import train_forebay
from testbed.datasets import digits

# The machine is busy: threads that look for work would take the processors from those that have some.
torch.set_num_threads(1)


def test_the_example_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    digits(tmp_path / "digits", limit=60)

    def train(epochs: int) -> tuple[list[str], list[str]]:
        program = ["train_forebay.py", str(tmp_path / "digits"), "--epochs", str(epochs), "--batch-size", "1"]
        monkeypatch.setattr(sys, "argv", [*program, "--state", str(tmp_path / "state"), "--state-every", "50"])
        train_forebay.main()
        said = capfd.readouterr()
        return [line.partition(",")[0] for line in said.out.splitlines()], [
            line.partition(" samples in ")[0] for line in said.err.splitlines()
        ]

    assert train(2) == (["epoch 0: 60 images", "epoch 1: 60 images"], ["forebay: epoch 0: 60", "forebay: epoch 1: 60"])
    # Its state was kept after the 50th batch of the second epoch.
    assert train(3) == (["epoch 1: 10 images", "epoch 2: 60 images"], ["forebay: epoch 1: 10", "forebay: epoch 2: 60"])
