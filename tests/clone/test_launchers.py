"""P14b with the real launchers: ranks of `mpiexec`, and FSDP2 over two ranks of torchrun."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.clone.forks import node, told, training

RANKS = 2
PROGRAM = ["-m", "tests.clone.train_ranks"]


def mpiexec() -> list[str]:
    found = Path(sys.executable).with_name("mpiexec")
    if not found.exists():
        pytest.skip("needs mpiexec: uv sync --group mpi")
    # MPI's ranks wait on the processor, and two jobs of two share two cores.
    return [str(found), "-launcher", "fork", "-n", str(RANKS), sys.executable, *PROGRAM, "mpi"]


def torchrun(ranks: int = RANKS) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *PROGRAM, "fsdp"]


def forked(
    command: Sequence[str], of_clone: Sequence[str] | None = None, *options: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns what the ranks of a parent say, and those of its clone."""
    with node() as here, training(here, list(command)) as parent:
        done = here.type("clone", "trunk", *options, "--", *(of_clone or command))
        assert done.returncode == 0, done.stderr
        out, err = parent.communicate(timeout=support.PROGRAM_S)
        assert parent.returncode == 0, err
    return told(out), told(done.stdout)


@pytest.mark.parametrize("launcher", [mpiexec, torchrun], ids=["mpiexec", "fsdp2"])
def test_p14b_a_clone_goes_on_as_its_parent_does_whoever_started_the_ranks(launcher: Any) -> None:  # noqa: ANN401
    parents, clones = forked(launcher())
    assert len(parents) == len(clones) == RANKS
    for parent, clone in zip(parents, clones, strict=True):
        assert parent["forks"] == [clone["begun"]]
        assert len(clone["losses"]) == 5
        assert clone["losses"].items() <= parent["losses"].items()
        assert clone["digests"] == parent["digests"]
    # The ranks have data of their own.
    assert parents[0]["losses"] != parents[1]["losses"]


def test_p14_a_sharded_state_is_whole_on_another_number_of_ranks() -> None:
    parents, (alone,) = forked(torchrun(), torchrun(1), "--set", "seed=7")
    assert parents[0]["forks"] == [alone["begun"]]
    assert alone["wholes"][str(alone["begun"])] == parents[0]["wholes"][str(alone["begun"])]
    assert len(alone["losses"]) == 5
