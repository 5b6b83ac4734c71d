"""A job of one rank and its clone, on two hosts, which MPI has started: `host_ways.py MODEL ROUNDS PLACE PLACE`.

Rank 0 trains, and gives its state at the end of a step, in each of the DeepClone paper's other ways; rank 1 takes it.
Each has a directory of its own for files, which lead to the same ones. Rank 0 prints a line for each state that was
brought over: overhead of two steps, standby and readiness in seconds, its bytes, and tensors that arrived wrong.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from clone_models import ModelJob, made
from clone_ways import Buffers, Hdf5, Pickled, State, Transfer, digests
from mpi4py import MPI

BEFORE, AFTER = 2, 2
"""Steps before the one whose state is given, and after the next one."""
LOOK_S = 0.002
WORD, TIMES = 1 << 20, 1 << 21
"""Tags of messages beside a state's."""


def main() -> int:
    """Returns exit code 0."""
    model, rounds, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3 + MPI.COMM_WORLD.rank])
    torch.set_num_threads(1)
    rank, other = MPI.COMM_WORLD.rank, 1 - MPI.COMM_WORLD.rank
    torch.manual_seed(rank)
    job = made(model, "sgd")
    job.step()
    state: State = list(job.model.named_parameters())
    ways: dict[str, Transfer] = {"HDF5": Hdf5(place, rank), "mpi4py pickled": Pickled(other), "mpi4py Send": Buffers(other)}
    for _ in range(rounds):
        for name, way in ways.items():
            if rank == 0:
                found = given(job, state, way, other)
                print(json.dumps({"way": name, **found}), flush=True)
            else:
                taken(state, way, other)
    return 0


def given(job: ModelJob, state: State, way: Transfer, other: int) -> dict[str, float]:
    """Trains, gives the state at the end of a step, and returns what that took on both sides."""
    way.clear()
    plain_s = [timed(job.step) for _ in range(BEFORE)]
    begun_at = time.monotonic()
    job.step()
    point_at = time.monotonic()
    way.give(state, lambda: None)
    MPI.COMM_WORLD.send(digests(state), other, WORD)
    given_s = time.monotonic() - begun_at
    next_s = timed(job.step)
    plain_s += [timed(job.step) for _ in range(AFTER)]
    told: tuple[float, float, int] = MPI.COMM_WORLD.recv(source=other, tag=TIMES)
    alive_at, ready_at, wrong = told
    return {
        "overhead_s": given_s + next_s - 2 * statistics.mean(plain_s),
        "standby_s": ready_at - (alive_at if way.waits_for_word else point_at),
        "readiness_s": ready_at - point_at,
        "bytes": sum(tensor.numel() * tensor.element_size() for _, tensor in state),
        "wrong": wrong,
    }


def taken(state: State, way: Transfer, other: int) -> None:
    """Takes the state into place, and tells when."""
    # A rank that waits within MPI takes the processor on which the other one trains.
    while not MPI.COMM_WORLD.Iprobe(other, MPI.ANY_TAG):
        time.sleep(LOOK_S)
    sent: list[str] | None = MPI.COMM_WORLD.recv(source=other, tag=WORD) if way.waits_for_word else None
    alive_at = time.monotonic()
    way.take(state)
    ready_at = time.monotonic()
    if sent is None:
        sent = MPI.COMM_WORLD.recv(source=other, tag=WORD)
    wrong = sum(one != mine for one, mine in zip(sent, digests(state), strict=True))
    MPI.COMM_WORLD.send((alive_at, ready_at, wrong), other, TIMES)


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds that work takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
