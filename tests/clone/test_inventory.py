"""A state captured in one job and loaded into another is equal there, entry by entry, and trains on equally."""

import contextlib
import json
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import forebay.clone as clone
from forebay.torch import _flags, _state
from tests.clone import jobs
from tests.clone.alike import loaded_goes_on_equally
from tests.clone.jobs import WIDE, StateJob, full, job, seed

OPTIMIZERS = [jobs.sgd, jobs.momentum, jobs.adamw, jobs.fused, jobs.lbfgs]


def with_optimizer(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[int], StateJob]:
    return lambda number: job(optimizer, number)


def with_scheduler(name: str) -> Callable[[int], StateJob]:
    return lambda number: full(number, name)


MAKERS = {optimizer.__name__: with_optimizer(optimizer) for optimizer in OPTIMIZERS} | {
    f"full-{name}": with_scheduler(name) for name in jobs.SCHEDULERS
}


def test_p14b_a_state_that_was_not_taken_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory asks a component for its state even where it was set to the expected value."""
    original, other = job(jobs.adamw, 1), job(jobs.adamw, 2)
    original.step()
    loaded = other.inventory()
    kept = [replace(one, put=lambda _: None) if one.path == ("optimizer", "state") else one for one in loaded._components]
    monkeypatch.setattr(loaded, "_components", kept)
    with (
        original.inventory().capture() as capture,
        pytest.raises(clone.DamagedError, match="not as it was captured after loading: optimizer/state"),
    ):
        loaded.load(capture)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("steps_before", [0, 2], ids=["fresh", "used"])
def test_a_loaded_state_is_equal_and_goes_on_equally(make: Callable[[int], StateJob], steps_before: int) -> None:
    loaded_goes_on_equally(make, steps_before)


@pytest.mark.parametrize("has_gradients", [False, True])
def test_what_gradients_a_pass_leaves_are_forgotten(*, has_gradients: bool) -> None:
    original = job(jobs.sgd, 1)
    original.step()
    original.optimizer.zero_grad(set_to_none=not has_gradients)
    described = original.inventory()
    before = described.manifest()
    left: list[weakref.ref[torch.Tensor]] = []
    with described.gradients_kept():
        for parameter in original.model.parameters():
            parameter.grad = torch.ones_like(parameter)
            left.append(weakref.ref(parameter.grad))
    assert described.manifest() == before
    assert [one() for one in left] == [None] * len(left)


def test_another_process_goes_on_equally() -> None:
    original = full(1)
    for _ in range(3):
        original.step()
    state = original.inventory()
    with state.capture() as capture:
        command = [sys.executable, "-m", "tests.clone.other_process", str(capture.descriptor)]
        given = {"input": capture.manifest.to_json(), "pass_fds": [capture.descriptor], "cwd": Path(__file__).parents[2]}
        other = subprocess.run(command, check=True, capture_output=True, timeout=600, **given)  # type: ignore[call-overload]
    for _ in range(5):
        original.step()
    assert json.loads(other.stdout) == {"losses": original.losses[-5:], "manifest": state.manifest().to_json().decode()}


def test_entries_have_paths_classes_and_layouts() -> None:
    made = full()
    made.step()
    entries = {entry.path: entry for entry in made.inventory().manifest().entries}
    weight = entries["model/parameters/features.0.weight"]
    assert weight.layout == clone.Layout("float32", (8, 1, 3, 3), (9, 1, 3, 1), "cpu")
    assert (weight.placement, weight.length) == (clone.Placement.REPLICATED, 288)
    assert entries["model/buffers/features.1.running_mean"].placement is clone.Placement.PER_RANK
    assert entries["model/buffers/scratch"].length == 8
    assert entries["model/gradients/head.bias"].placement is clone.Placement.PER_RANK
    assert entries["optimizer/state/0.0/momentum_buffer"].placement is clone.Placement.REPLICATED
    assert entries["ema/buffers/n_averaged"].layout.dtype == "int64"
    assert entries["generators/process/torch/cpu"].placement is clone.Placement.PER_RANK
    for values in ("scheduler/state", "scaler/state", "loader/state", "counters", "flags", "generators/named/numpy"):
        assert entries[values].layout.dtype == "value"


def test_the_digest_is_xxh3_of_the_bytes() -> None:
    made = job()
    entries = {entry.path: entry.digest for entry in made.inventory().manifest().entries}
    bias = made.model.get_parameter("head.bias").detach().numpy()
    assert entries["model/parameters/head.bias"] == xxhash.xxh3_128_hexdigest(bias.tobytes())


@pytest.mark.parametrize("kind", [kind for kind in clone.KINDS if kind not in ("model", "scheduler")])
def test_f55_what_one_kind_left_out_would_lose_is_seen(kind: str) -> None:
    """Loads all but one kind: the digests of that kind's entries, and no others, differ afterwards."""
    original, other = full(1), full(2)
    for _ in range(3):
        original.step()
    with original.inventory(**{kind: None}).capture() as capture:
        whole = original.inventory().manifest()
        other.inventory(**{kind: None}).load(capture)
        differing = other.inventory().manifest().differences(whole)
    assert differing != []
    assert {path.partition("/")[0] for path in differing} == {kind}


@pytest.mark.parametrize("path", ["buffers", "gradients", "eval", "extra"])
def test_f55_what_one_part_of_the_model_left_out_would_lose_is_seen(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for parts of the model that no caller can leave out."""

    def changed(number: int) -> StateJob:
        made = job(number=number)
        made.model.add_module("noted", Noted())
        return made

    def without(made: StateJob) -> clone.Inventory:
        state = made.inventory()
        kept = [component for component in state._components if component.path != ("model", path)]
        monkeypatch.setattr(state, "_components", kept)
        return state

    original, other = changed(1), changed(2)
    original.step()
    original.model.get_submodule("features.1").eval()
    noted = original.model.get_submodule("noted")
    assert isinstance(noted, Noted)
    noted.note = ("seen", 3)
    with without(original).capture() as capture:
        whole = original.inventory().manifest()
        without(other).load(capture)
    differing = other.inventory().manifest().differences(whole)
    assert differing != []
    assert all(f"{entry}/".startswith(f"model/{path}/") for entry in differing)
    with original.inventory().capture() as capture:
        other.inventory().load(capture)
    assert other.model.get_submodule("features.1").training is False
    assert other.model.get_submodule("features.0").training is True


class Noted(nn.Module):
    """A module with state beside its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.note: tuple[str, int] = ("", 0)

    def get_extra_state(self) -> tuple[str, int]:
        return self.note

    def set_extra_state(self, state: tuple[str, int]) -> None:
        self.note = state


@pytest.mark.parametrize(
    "draw", [torch.randperm, np.random.permutation, lambda n: random.sample(range(n), n)], ids=["torch", "numpy", "python"]
)
def test_the_process_s_generators_go_on_from_where_they_were(draw: Callable[[int], Any]) -> None:
    made = job()
    with made.inventory().capture() as capture:
        drawn = list(draw(50))
        seed(9)
        assert list(draw(50)) != drawn
        made.inventory().load(capture)
        assert list(draw(50)) == drawn


def test_flags_are_carried() -> None:
    made = job()
    state = made.inventory()
    threads = torch.get_num_threads()
    with state.capture() as capture:
        try:
            torch.set_num_threads(threads + 1)
            torch.set_autocast_dtype("cpu", torch.float16)
            torch.set_float32_matmul_precision("medium")
            assert capture.manifest.differences(state.manifest()) == ["flags"]
        finally:
            state.load(capture)
    assert torch.get_num_threads() == threads
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


class MpiWorld:
    """MPI as mpi4py has it, of rank 1 of 3: refusals, and ranks without starting them.

    Real `mpiexec` is in test_launchers.py.
    """

    COMM_WORLD = SimpleNamespace(Get_rank=lambda: 1, Get_size=lambda: 3, bcast=lambda number, root: number + root)
    is_finalized = False

    def Is_initialized(self) -> bool:
        return True

    def Is_finalized(self) -> bool:
        return self.is_finalized


def test_ranks_are_mpis_where_the_program_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = MpiWorld()
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(clone.CloneError, match=r"ranks='mpi': this program does not use MPI: import mpi4py\.MPI before"):
        job().inventory(ranks="mpi")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", world)
    assert job().inventory().rank == (0, 1), "it may have been imported for something else"
    described = job().inventory(ranks="mpi")
    assert described.rank == (1, 3)
    manifest = described.manifest()
    assert (manifest.rank, manifest.ranks) == (1, 3)
    assert 0 <= described.shared_number() < 1 << 31
    described.change("seed", 7)
    assert torch.initial_seed() == 8
    with single_rank(tmp_path):
        assert job().inventory().rank == (0, 1)
        assert job().inventory(ranks="mpi").rank == (1, 3), "whatever torch's are"
    world.is_finalized = True
    with pytest.raises(clone.CloneError, match="does not use MPI"):
        job().inventory(ranks="mpi")
    assert described.rank == (1, 3)


def test_a_truth_value_is_set_to_0_or_1() -> None:
    made = job()
    described, groups = made.inventory(), made.optimizer.param_groups
    with pytest.raises(clone.DifferenceError, match=r"^maximize can't be set to 0\.5: it is a truth value, 0 or 1$"):
        described.change("maximize", 0.5)
    assert [group["maximize"] for group in groups] == [False]
    described.change("maximize", 1.0)
    assert [group["maximize"] for group in groups] == [True]
    with pytest.raises(clone.DifferenceError, match=r"^nosuch can't be set: .*; there are .*lr, maximize \(0 or 1\), .*seed"):
        described.change("nosuch", 3.0)


@pytest.mark.parametrize("ranks", ["", "MPI", "torch", 2])
def test_ranks_of_nobody_are_refused(ranks: object) -> None:
    with pytest.raises(ValueError, match=r"^ranks=.*: write 'mpi', or leave it out: then they are those of torch\.distributed$"):
        job().inventory(ranks=ranks)


FLAGS: list[Callable[[], object]] = [
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    lambda: setattr(torch.backends.cudnn, "deterministic", True),
    lambda: setattr(torch.backends.cudnn, "enabled", False),
    lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    lambda: setattr(torch.backends.mkldnn, "deterministic", True),
    lambda: torch.backends.cuda.enable_flash_sdp(False),
    lambda: torch.set_float32_matmul_precision("high"),
    lambda: torch.set_autocast_enabled("cuda", True),
    lambda: torch.set_autocast_cache_enabled(False),
    lambda: torch.set_default_dtype(torch.float64),
]


@pytest.mark.parametrize("change", FLAGS)
def test_f55_each_flag_that_changes_results_is_carried(change: Callable[[], object]) -> None:
    before = _flags.flags()
    try:
        change()
        changed = _flags.flags()
        assert changed != before
        _flags.set_flags(before)
        assert _flags.flags() == before
        _flags.set_flags(changed)
        assert _flags.flags() == changed
    finally:
        _flags.set_flags(before)


def test_f55_precision_that_was_set_in_torchs_newer_way_is_carried() -> None:
    """In a process of its own: from then on torch refuses to tell of it in the older way."""
    program = (
        "import torch; from forebay.torch._flags import flags, set_flags; before = flags(); "
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'; changed = flags(); assert changed != before; "
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'; assert flags() != changed; set_flags(changed); assert flags() == changed"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_tensors_that_are_alike_stay_where_they_lie() -> None:
    """Tensors that share storage must go on doing so: loading writes in place."""
    original, other = job(jobs.adamw, 1), job(jobs.adamw, 2)
    original.step()
    other.step()

    def places(made: StateJob) -> list[int]:
        states = [value for state in made.optimizer.state.values() for value in state.values()]
        return [tensor.data_ptr() for tensor in (*made.model.parameters(), *made.model.buffers(), *states)]

    before = places(other)
    with original.inventory().capture() as capture:
        other.inventory().load(capture)
    assert places(other) == before


class Meddler:
    """Has no state, and changes a model when it is loaded."""

    def __init__(self, made: StateJob) -> None:
        self.weight = made.model.get_parameter("head.weight")

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, _: dict[str, int]) -> None:
        with torch.no_grad():
            self.weight.add_(1)


def test_what_is_written_to_after_it_was_loaded_is_seen() -> None:
    """Though a tensor that was read into its own place is not read once more."""
    original, other = job(), job()
    states = [made.inventory(others={"meddler": Meddler(made)}) for made in (original, other)]
    with (
        states[0].capture() as capture,
        pytest.raises(clone.DamagedError, match=r"^not as it was .*: model/parameters/head.weight: does its"),
    ):
        states[1].load(capture, survey=states[1].survey())


@pytest.mark.parametrize("has_gaps", [False, True])
def test_what_was_filled_by_way_of_a_copy_is_read_once_more(monkeypatch: pytest.MonkeyPatch, *, has_gaps: bool) -> None:
    """Where the copy lay, the next one may lie, whatever has become of the tensor."""
    original, other = job(jobs.sgd, 1, WIDE), job(jobs.sgd, 2, WIDE)
    weight = other.model.get_parameter("head.weight")
    if has_gaps:
        weight.data = torch.stack([weight.data, weight.data], dim=-1)[..., 0]
    read: list[torch.Tensor] = []
    outward = _state.outward

    def noting(tensors: list[torch.Tensor]) -> Any:  # noqa: ANN401
        read.extend(tensors)
        return outward(tensors)

    with original.inventory().capture() as capture:
        monkeypatch.setattr(_state, "outward", noting)
        other.inventory().load(capture)
    assert any(one is weight for one in read) is has_gaps
    assert torch.equal(weight, original.model.get_parameter("head.weight"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4)[:, :, ::2],
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j]).conj(),
        (torch.arange(24.0).reshape(4, 6) * 1j)[:, ::2].T.conj(),
        torch.empty(0, 3),
        torch.tensor(True),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
    ],
    ids=["gaps", "channels-last", "conjugate", "conjugate-with-gaps", "empty", "scalar", "transposed"],
)
def test_any_layout_is_carried(tensor: torch.Tensor) -> None:
    original, other = job(), job()
    original.counters, other.counters = {"x": tensor}, {}  # type: ignore[dict-item]
    with original.inventory().capture() as capture:
        other.inventory().load(capture)
        # Once more, over what is there by now; and back to where it came from.
        other.inventory().load(capture)
        original.inventory().load(capture)
    arrived: Any = other.counters["x"]
    assert arrived.dtype == tensor.dtype
    assert torch.equal(arrived, tensor)


def test_a_manifest_may_be_of_what_ranks_hold_alike_alone() -> None:
    made = full(1)
    made.step()
    whole = made.inventory().manifest()
    alike = made.inventory().manifest(alike=True)
    assert alike.entries == tuple(entry for entry in whole.entries if entry.placement is clone.Placement.REPLICATED)
    assert {"model/parameters/head.weight", "optimizer/groups"} <= {entry.path for entry in alike.entries}
    assert len(alike.entries) < len(whole.entries)


def test_wrappers_are_looked_through(tmp_path: Path) -> None:
    made = job()
    plain = made.inventory().manifest()
    assert made.inventory(model=torch.compile(made.model, backend="eager")).manifest() == plain
    with single_rank(tmp_path):
        wrapped = nn.parallel.DistributedDataParallel(made.model)
        assert made.inventory(model=wrapped).manifest().differences(plain) == []


def test_several_of_a_kind_have_names() -> None:
    one, two = job(number=1), job(number=2)
    both = one.inventory(model={"g": one.model, "d": two.model}, optimizer={"g": one.optimizer, "d": two.optimizer})
    paths = {entry.path for entry in both.manifest().entries}
    assert {"model/g/parameters/head.bias", "model/d/parameters/head.bias", "optimizer/d/groups"} <= paths


def test_sharded_tensors_are_classed_and_loaded(tmp_path: Path) -> None:
    with single_rank(tmp_path):
        mesh = init_device_mesh("cpu", (1,))
        made = []
        for number in (1, 2):
            seed(number)
            model = nn.Linear(4, 3)
            fully_shard(model, mesh=mesh)
            made.append(StateJob(model, torch.optim.AdamW(model.parameters(), lr=0.1)))
        original, other = made
        original.model(torch.ones(2, 4)).sum().backward()
        original.optimizer.step()
        with original.inventory().capture() as capture:
            other.inventory().load(capture)
        placements = {entry.path: entry.placement for entry in capture.manifest.entries}
        assert placements["model/parameters/weight"] is placements["optimizer/state/0.0/exp_avg"] is clone.Placement.SHARDED
        for one in made:
            one.optimizer.zero_grad()
            one.model(torch.ones(2, 4)).sum().backward()
            one.optimizer.step()
        assert other.inventory().manifest() == original.inventory().manifest()


@contextlib.contextmanager
def single_rank(place: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=(place / "store").as_uri(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
