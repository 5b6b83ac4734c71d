"""Shared storage: tensors that lie in shared memory are the same tensors, and who takes one out of it is found out."""

import faulthandler
import gc
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay import _core
from forebay.clone._adapter import adapter_of
from forebay.clone._shared import FROM_BYTES, MOVES_MAX, Storage
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, drop, taking, train, train_until, wait_for_state
from tests.clone.jobs import WIDE, StateJob, full, job

WEIGHT = "model/parameters/head.weight"


def storage() -> Storage:
    return Storage(adapter_of(nn.Identity()))


def shared(made: StateJob) -> tuple[Storage, dict[str, str]]:
    """A job's storage, and what stays out of it."""
    there = storage()
    return there, there.share(made.inventory().steady())


def places(there: Storage, made: StateJob) -> dict[str, tuple[int, int]]:
    found = {path: there.place(tensor) for path, tensor in made.inventory().steady().items()}
    return {path: place for path, place in found.items() if place}


def memories() -> set[int]:
    """Shared memory of which this process has a descriptor, by inode.

    What earlier tests have left may go at any time.
    """
    return {one.stat().st_ino for one in Path("/proc/self/fd").iterdir() if one.is_symlink() and "forebay-shared" in str(one.readlink())}


def test_p14_where_tensors_lie_by_now_the_next_capture_says() -> None:
    made = job(jobs.adamw, 1, WIDE)
    made.step()
    known, there = made.inventory(), storage()

    def placed() -> set[str]:
        with known.capture(storage=there) as capture:
            whole = {entry.path: entry for entry in made.inventory().manifest().entries}
            assert list(whole) == [entry.path for entry in capture.manifest.entries]
            assert all(entry.place or entry == whole[entry.path] for entry in capture.manifest.entries)
            return {entry.path for entry in capture.manifest.in_place}

    assert placed() == set()
    there.share(known.steady())
    assert placed() == places(there, made).keys()
    assert WEIGHT in placed()
    there.change([WEIGHT])
    assert placed() == places(there, made).keys() - {WEIGHT}
    made.model.get_parameter("head.weight").data = made.model.get_parameter("head.weight").data.clone()
    there.change([])
    assert WEIGHT not in placed()
    with known.capture() as capture:
        assert capture.manifest.in_place == []


@pytest.mark.parametrize("optimizer", [jobs.sgd, jobs.momentum, jobs.adamw, jobs.fused, jobs.lbfgs], ids=lambda one: one.__name__)
def test_a_job_trains_the_same_in_shared_memory(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    made, plain = (job(optimizer, 1, WIDE) for _ in range(2))
    for one in (made, plain):
        jobs.seed(5)
        for _ in range(2):
            one.step()
    before, parameters = made.inventory().manifest(), list(made.model.parameters())
    there, left = shared(made)
    assert WEIGHT not in left
    assert WEIGHT in places(there, made)
    assert made.inventory().manifest().differences(before) == []
    assert all(one is other for one, other in zip(made.model.parameters(), parameters, strict=True))
    for one in (made, plain):
        jobs.seed(6)
        for _ in range(5):
            one.step()
    assert made.losses == plain.losses
    assert made.inventory().manifest().differences(plain.inventory().manifest()) == []


def test_only_what_is_large_and_steady_is_moved() -> None:
    made = full(1, width=WIDE)
    made.step()
    there, _ = shared(made)
    assert set(places(there, made)) == {WEIGHT, "ema/parameters/module.head.weight", "optimizer/state/0.4/momentum_buffer"}
    assert all(tensor.nbytes >= FROM_BYTES for path, tensor in made.inventory().steady().items() if there.place(tensor))
    gradient = made.model.get_parameter("head.weight").grad
    assert gradient is not None
    assert gradient.nbytes >= FROM_BYTES
    assert there.place(gradient) is None, "it is another one after each step"


def replaced_data(made: StateJob) -> None:
    weight = made.model.get_parameter("head.weight")
    weight.data = weight.data.clone()


def assigned(made: StateJob) -> None:
    copies = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.model.load_state_dict(copies, assign=True)


def loaded(made: StateJob) -> None:
    made.optimizer.load_state_dict(made.optimizer.state_dict())


def doubled(made: StateJob) -> None:
    made.model.double().float()


def channels_last(made: StateJob) -> None:
    made.model.to(memory_format=torch.channels_last)
    made.model.get_parameter("head.weight").data = made.model.get_parameter("head.weight").data.T.contiguous().T


@pytest.mark.parametrize("take_away", [replaced_data, assigned, loaded, doubled, channels_last], ids=lambda one: one.__name__)
def test_a_tensor_that_was_taken_out_is_put_back(take_away: Callable[[StateJob], None]) -> None:
    made = job(jobs.momentum, 1, WIDE)
    made.step()
    there, _ = shared(made)
    was = places(there, made)
    # Made before: what is assigned the optimizer knows nothing of, and a new one would be refused.
    known = made.inventory()

    def placed() -> dict[str, tuple[int, int]]:
        return {path: place for path, tensor in known.steady().items() if (place := there.place(tensor))}

    take_away(made)
    now = known.manifest()
    assert placed().items() <= was.items()
    assert there.share(known.steady()) == {}
    assert placed().keys() == was.keys()
    assert known.manifest().differences(now) == []


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (lambda weight: weight.detach().numpy(), "NumPy, another library or another process uses its memory"),
        (lambda weight: weight.detach(), "another tensor uses its memory"),
        (lambda weight: weight.detach().flatten()[5:], "another tensor uses its memory"),
    ],
    ids=["numpy", "alias", "slice"],
)
def test_a_tensor_whose_memory_somebody_else_uses_stays_and_is_named(view: Callable[[torch.Tensor], Any], why: str) -> None:
    made = job(jobs.sgd, 1, WIDE)
    weight = made.model.get_parameter("head.weight")
    other = view(weight)
    address = weight.data_ptr()
    _, left = shared(made)
    assert left == {WEIGHT: why}
    assert weight.data_ptr() == address
    with torch.no_grad():
        weight.fill_(7)
    assert (other == 7).all()


def test_a_tensor_that_is_made_anew_all_the_time_is_left_alone() -> None:
    made = job(jobs.sgd, 1, WIDE)
    there = storage()
    for _ in range(MOVES_MAX):
        assert there.share(made.inventory().steady()) == {}
        replaced_data(made)
    assert there.share(made.inventory().steady()) == {WEIGHT: "the program replaces it all the time"}


def test_shared_memory_goes_with_its_tensors() -> None:
    before = memories()
    made = job(jobs.sgd, 1, WIDE)
    there, _ = shared(made)
    weight = made.model.get_parameter("head.weight")
    kept = weight.detach()
    value = kept.clone()
    (first,) = memories() - before
    replaced_data(made)
    there.share(made.inventory().steady())
    (second,) = memories() - before - {first}
    assert first in memories(), "somebody still has the tensor that lay there"
    assert torch.equal(kept, value)
    del kept
    gc.collect()
    assert memories() - before == {second}
    del there, made, weight
    gc.collect()
    assert memories() <= before


def test_shared_memory_is_read_and_not_written_to_by_others() -> None:
    memory = _core.Shared(8192)
    assert os.fstat(memory.descriptor).st_size == 8192
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(memory.descriptor, b"x")
    again = os.open(f"/proc/self/fd/{memory.descriptor}", os.O_RDWR)
    for forbidden in (lambda: os.write(again, b"x"), lambda: os.ftruncate(again, 100), lambda: os.ftruncate(again, 1 << 20)):
        with pytest.raises(PermissionError):
            forbidden()
    os.close(again)
    with pytest.raises(OSError, match="Errno"):
        _core.Shared(0)


def test_what_a_forked_child_writes_is_its_own() -> None:
    made = job(jobs.sgd, 1, WIDE)
    there, _ = shared(made)
    weight = made.model.get_parameter("head.weight")
    value = weight.detach().clone()
    assert memories()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with torch.no_grad():
                weight.fill_(3)
            status = 0 if (weight == 3).all() and not memories() else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0) == (child, 0)
    assert torch.equal(weight, value)
    assert there.place(weight) is not None


def test_a_forked_child_that_has_no_memory_of_its_own_can_not_write_to_its_parent_s() -> None:
    made = job(jobs.sgd, 1, WIDE)
    there, _ = shared(made)
    weight = made.model.get_parameter("head.weight")
    value = weight.detach().clone()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 12, hard))
    try:
        child = os.fork()
    finally:
        # In the child, too.
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    if child == 0:
        try:
            # It is meant to end so, and need not tell where.
            faulthandler.disable()
            with torch.no_grad():
                weight.fill_(3)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert torch.equal(weight, value)
    assert there.place(weight) is not None


def test_when_tensors_are_moved_is_the_program_s_choice(here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="prepare='now': write one of 'start', 'fork', 'never'"):
        opened(full(1), prepare="now")
    made, lazy = full(1, width=WIDE), full(1, width=WIDE)
    alias = lazy.model.get_parameter("head.weight").detach()
    session, other = opened(made), opened(lazy, job="lazy", prepare="fork")
    train(made, session, 1)
    train(lazy, other, 1)
    assert session._source
    assert other._source
    assert session._source._storage.place(made.model.get_parameter("head.weight"))
    assert other._source._storage.arenas == []
    assert capfd.readouterr().err == ""
    with here.cloning("lazy", "--at", "3"):
        train(lazy, other, 3, 2)
    assert other._source._storage.place(lazy.optimizer.state[lazy.model.get_parameter("head.weight")]["momentum_buffer"])
    assert other._source._storage.place(alias) is None
    told = capfd.readouterr().err
    assert told.count("can't be in shared memory") == 1
    assert f"{WEIGHT}: another tensor uses its memory" in told
    assert [fork.step for fork in other.forks] == [3]


def test_f54_what_there_is_no_shared_memory_for_stays_until_there_is(
    here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]
) -> None:
    made = full(1, width=WIDE)
    weight = made.model.get_parameter("head.weight")
    session = opened(made)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FROM_BYTES, hard))
    try:
        train(made, session, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused = f"no memory for shared storage of {3 * weight.nbytes:,} bytes of state: File too large"
    assert f"all that are not there yet: {refused}" in capfd.readouterr().err
    assert session._source
    assert session._source._storage.place(weight) is None
    with here.cloning("trunk", "--at", "4"):
        train(made, session, 3, 2)
    assert session._source._storage.place(weight)
    assert capfd.readouterr().err == ""


def test_what_could_not_be_shared_is_tried_again(here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]) -> None:
    made = full(1, width=WIDE)
    weight = made.model.get_parameter("head.weight")
    alias = weight.detach()
    session = opened(made)
    # Twice, so that the second finds all as the first has left it.
    train(made, session, 2)
    assert session._source
    assert session._source._storage.place(weight) is None
    assert capfd.readouterr().err.count(f"{WEIGHT}: another tensor uses its memory") == 1
    del alias
    with here.cloning("trunk", "--at", "4"):
        train(made, session, 3, 3)
    assert session._source._storage.place(weight) is not None
    assert capfd.readouterr().err == ""


def test_a_program_may_keep_its_tensors_where_they_are(here: CloneNode, opened: Opened) -> None:
    made = full(1, width=WIDE)
    addresses = [parameter.data_ptr() for parameter in made.model.parameters()]
    session = opened(made, prepare="never")
    with here.cloning("trunk") as asked:
        mine = taking(asked)
        train_until(made, session, lambda: bool(session.forks))
        state = wait_for_state(mine)
        assert len(state[2]) == 2, "what describes it, and what was copied"
        drop(state)
    (fork,) = session.forks
    assert (fork.copied, fork.aside) == (fork.length, 0)
    assert [parameter.data_ptr() for parameter in made.model.parameters()] == addresses


def test_what_was_added_since_is_moved_before_the_fork_after_the_next(here: CloneNode, opened: Opened) -> None:
    """A fork looks only whether those that were moved lie still; it copies what is new."""
    made = job(jobs.momentum)
    session = opened(made)
    step = train(made, session, 2)
    more = torch.nn.Parameter(torch.rand(FROM_BYTES // 4))
    made.model.register_parameter("more", more)
    made.optimizer.add_param_group({"params": [more]})
    assert session._source
    for number in (1, 2):
        with here.cloning("trunk", "--at", str(step + 2)) as asked:
            mine = taking(asked)
            step = train_until(made, session, lambda wanted=number: len(session.forks) == wanted, step)  # type: ignore[misc]
            drop(wait_for_state(mine))
            step = train(made, session, 1, step)
    assert session._source._storage.place(more) is not None
    copied, then = (fork.copied for fork in session.forks)
    assert copied - then >= FROM_BYTES
