"""P14b, P14c: a clone has its parent's state after one step, bit for bit, and the parent trains as if never forked."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests import support
from tests.clone.forks import CloneNode, node, told, training

ON_GPU = ("--device", "cuda", "--after", "12")


def torchrun(ranks: int, *options: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "-m", "tests.clone.train", *options]


def run(node: CloneNode, ranks: int, *how: str, program: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the output of a parent's ranks, and of its clone's, which was requested with these options."""
    with training(node, torchrun(ranks, "--until-forked", "--pace", "0.2", *program)) as parent:
        done = node.type("clone", "trunk", *how, "--", *torchrun(ranks, *program))
        assert done.returncode == 0, done.stderr
        out, err = parent.communicate(timeout=support.PROGRAM_S)
        assert parent.returncode == 0, err
    parents, clones = told(out), told(done.stdout)
    assert len(parents) == len(clones) == ranks
    assert f"this is trunk.1, a clone of trunk after step {clones[0]['lineage'][1]}" in done.stderr
    return parents, clones


def run_alone(node: CloneNode, ranks: int, steps: int, *program: str) -> list[dict[str, Any]]:
    """Returns the output of the ranks of the same job when nobody can fork it."""
    command, environment = torchrun(ranks, "--steps", str(steps), *program), {**node.environment, "FOREBAY": "off"}
    done = subprocess.run(
        command, cwd=support.ROOT, env=environment, capture_output=True, text=True, timeout=support.PROGRAM_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


# Each training process takes some five seconds of processor time to import what its first step needs.
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_p14b_a_clone_goes_on_as_its_parent_does(ranks: int) -> None:
    """With three ranks sums over ranks depend on how DDP has put its buckets together.

    The clone's are made as its parent's (`warm`).
    """
    with node() as here:
        parents, clones = run(here, ranks)
        for parent, clone in zip(parents, clones, strict=True):
            assert parent["forks"] == [clone["begun"]]
            assert clone["lineage"] == ["trunk", clone["begun"], {}]
            assert clone["job"] == "trunk.1"
            assert len(clone["losses"]) == 5
            assert clone["losses"].items() <= parent["losses"].items()
            assert clone["digests"] == parent["digests"]


@pytest.mark.long
def test_p14c_a_parent_trains_as_though_nobody_had_asked() -> None:
    """Bit for bit its losses are those of a job without us, to the last step.

    Tests/clone/test_session.py shows it for one rank.
    """
    with node() as here:
        parents, _ = run(here, 2)
        alone = run_alone(here, 2, max(map(int, parents[0]["losses"])))
        assert [parent["losses"] for parent in parents] == [plain["losses"] for plain in alone]


@pytest.mark.long
def test_p14b_a_clone_is_compared_with_its_parent_three_steps_later() -> None:
    with node() as here:
        parents, clones = run(here, 2, "--verify", "shadow:3")
        for parent, clone in zip(parents, clones, strict=True):
            assert parent["forks"] == [clone["begun"]]
            assert clone["lineage"] == ["trunk", clone["begun"] + 3, {}]
            assert clone["losses"].items() <= parent["losses"].items()
            assert clone["digests"] == parent["digests"]


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2], ids=["nccl", "gloo"])
@pytest.mark.parametrize(("how", "further"), [((), 0), (("--verify", "shadow:3"), 3)], ids=["digests", "shadow"])
def test_p14b_holds_on_a_gpu(ranks: int, how: tuple[str, ...], further: int) -> None:
    """In half precision, with a scaler, an average and generators on the GPU; parent and clone share it."""
    with node() as here:
        parents, clones = run(here, ranks, *how, program=ON_GPU)
        # A step that the scaler left out for infinities is none of those that are compared.
        for parent, clone in zip(parents, clones, strict=True):
            assert parent["forks"] == [clone["begun"]]
            parent_s_name, step, changes = clone["lineage"]
            assert (parent_s_name, changes) == ("trunk", {})
            assert step == clone["begun"] if further == 0 else step >= clone["begun"] + further
            assert len(clone["losses"]) == 12
            assert clone["losses"].items() <= parent["losses"].items()
            assert clone["digests"] == parent["digests"]
        if not how:
            alone = run_alone(here, ranks, max(map(int, parents[0]["losses"])), *ON_GPU)
            assert [parent["losses"] for parent in parents] == [plain["losses"] for plain in alone]


@pytest.mark.long
def test_p14b_a_job_of_two_ranks_goes_on_with_one() -> None:
    """Under DDP, with BatchNorm. That the state is exact tests/clone/test_dealt.py shows."""
    with node() as here, training(here, torchrun(2, "--until-forked", "--pace", "0.2", "--portable")) as parent:
        words = [sys.executable, "-m", "tests.clone.train", "--portable"]
        done = here.type("clone", "trunk", "--set", "seed=7", "--", *words)
        assert done.returncode == 0, done.stderr
        out, err = parent.communicate(timeout=support.PROGRAM_S)
        assert parent.returncode == 0, err
    parents, (clone,) = told(out), told(done.stdout)
    assert len(clone["losses"]) == 5
    assert clone["begun"] in {step for one in parents for step in one["forks"]}
    assert "its parent's number of ranks is 2, and its own 1" in done.stderr
