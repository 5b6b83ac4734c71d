"""States on a GPU: captured and loaded byte by byte, by way of the processor's memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from forebay.torch._staging import PART_BYTES, SMALL_BYTES
from tests.clone import jobs
from tests.clone.alike import loaded_goes_on_equally
from tests.clone.forks import CloneNode, Opened, train
from tests.clone.jobs import WIDE, StateJob, full, job

pytestmark = pytest.mark.gpu


def on_gpu(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[int], StateJob]:
    return lambda number: job(optimizer, number, WIDE, "cuda")


MAKERS = {one.__name__: on_gpu(one) for one in (jobs.sgd, jobs.momentum, jobs.adamw, jobs.fused, jobs.capturable, jobs.lbfgs)} | {
    "full": lambda number: full(number, width=WIDE, device="cuda")
}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("steps_before", [0, 2], ids=["fresh", "used"])
def test_a_loaded_state_is_equal_and_goes_on_equally(make: Callable[[int], StateJob], steps_before: int) -> None:
    loaded_goes_on_equally(make, steps_before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4)[:, :, ::2],
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j]),
        torch.empty(0, 3),
        torch.tensor(True),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.arange(6.0).to(torch.float8_e4m3fn),
        torch.arange(SMALL_BYTES, dtype=torch.uint8),
        torch.arange(PART_BYTES, dtype=torch.int32)[3:],
    ],
    ids=["gaps", "channels-last", "complex", "empty", "scalar", "transposed", "eight-bits", "not-small", "large"],
)
def test_any_layout_is_carried(tensor: torch.Tensor) -> None:
    original, other = job(device="cuda"), job(device="cuda")
    there = tensor.to("cuda")
    original.counters, other.counters = {"x": there, "conjugate": there.conj()}, {}  # type: ignore[dict-item]
    with original.inventory().capture() as capture:
        other.inventory().load(capture)
        # Once more, over what is there by now.
        other.inventory().load(capture)
    arrived: Any = other.counters["x"]
    assert (arrived.dtype, arrived.device) == (tensor.dtype, there.device)
    assert torch.equal(comparable(arrived.cpu()), comparable(tensor))
    conjugate: Any = other.counters["conjugate"]
    assert torch.equal(comparable(conjugate.cpu()), comparable(tensor.conj()))


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of tensors with eight-bit elements, since torch can't compare those, and others as they are."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def test_what_another_stream_still_writes_is_waited_for() -> None:
    """The state is what the program has queued by then, wherever it runs."""
    original, other = job(jobs.sgd, 1, WIDE, "cuda"), job(jobs.sgd, 2, WIDE, "cuda")
    weight = original.model.get_parameter("head.weight")
    matrix, stream = torch.randn(8192, 8192, device="cuda"), torch.cuda.Stream()

    def write(times: int) -> None:
        nonlocal matrix
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(times):
                matrix = torch.tanh(matrix @ matrix)
            weight.copy_(matrix[: weight.shape[0], :1].expand_as(weight))

    # What is launched for the first time may be waited for.
    write(1)
    torch.cuda.synchronize()
    state, loaded = original.inventory(), other.inventory()
    state.manifest()
    # For more than a second.
    write(100)
    with state.capture() as capture:
        loaded.load(capture)
    torch.cuda.synchronize()
    assert torch.equal(other.model.get_parameter("head.weight"), weight)


def test_a_generator_of_the_gpu_goes_on_from_where_it_was() -> None:
    original, other = job(device="cuda"), job(device="cuda")
    for made in (original, other):
        made.generators["gpu"] = torch.Generator("cuda")
    torch.rand(5, device="cuda", generator=original.generators["gpu"])
    with original.inventory().capture() as capture:
        drawn = [torch.rand(5, device="cuda"), torch.rand(5, device="cuda", generator=original.generators["gpu"])]
        torch.cuda.manual_seed(99)
        other.inventory().load(capture)
        again = [torch.rand(5, device="cuda"), torch.rand(5, device="cuda", generator=other.generators["gpu"])]
    assert all(torch.equal(one, two) for one, two in zip(drawn, again, strict=True))


def test_a_job_is_forked_and_is_told_once_that_all_is_copied(here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]) -> None:
    made, other = full(1, width=WIDE, device="cuda"), full(99, width=WIDE, device="cuda")
    session = opened(made)
    train(made, session, 3)
    with here.cloning("trunk", "--at", "7") as asked:
        train(made, session, 9, 4)
        resumed = opened(other, asked=asked)
        assert resumed.resumed == {"epoch": 0, "step": 7}
        train(other, resumed, 5, 8)
    assert other.losses == made.losses[7:]
    (fork,) = session.forks
    assert (fork.copied, fork.aside) == (fork.length, 0)
    # Each of the two jobs once.
    said = [line for line in capfd.readouterr().err.splitlines() if "while training stands still" in line]
    assert len(said) == 2
    assert said[0].endswith(
        ": model/parameters/head.weight, optimizer/state/0.4/momentum_buffer, ema/parameters/module.head.weight: on cuda"
    )
