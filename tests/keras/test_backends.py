"""Forks of Keras jobs on JAX and PyTorch: a clone has its parent's losses and variables to the last bit."""

import importlib.util
from typing import Any

import pytest

from tests.keras.records import check, check_loop, is_equal, played

NEEDED = ("jax", "keras", "tensorflow", "torch")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")

SHORT = {"jax": ("jit",), "torch": ("callbacks",)}
LONG = {
    "jax": (
        "plain",
        "arrays between epochs",
        "arrays in parts of an epoch",
        "dataset",
        "dataset between epochs",
        "dataset repeated",
        "dataset of unknown length",
        "loader",
        "loader between epochs",
        "steps_per_execution",
        "mixed_float16",
        "bfloat16",
        "average",
        "accumulation",
        "callbacks",
        "noise",
        "schedule",
        "shadow",
    ),
    "torch": (
        "plain",
        "arrays between epochs",
        "arrays in parts of an epoch",
        "loader",
        "loader between epochs",
        "jit",
        "mixed_float16",
        "bfloat16",
        "average",
        "accumulation",
        "noise",
        "schedule",
        "shadow",
    ),
}
DIFFERENT = {
    "jax": ("plain-model", "plain-optimizer", "plain-metrics", "plain-data", "plain-process", "callbacks-callbacks", "seed", "rate"),
    "torch": ("plain-model", "plain-optimizer", "plain-metrics", "plain-data", "plain-process", "noise-seeds", "seed", "rate"),
}
LOOPS = {"jax": ("batches loop",), "torch": ("gradients loop",)}
LOOPS_LONG = {"jax": (), "torch": ("batches loop", "gradients loop --verify shadow:2")}
REFUSED = {
    "jax": {
        "distributed": "UndescribableError: model: it is distributed by keras.distribution, and only models of one process",
        "unknown backend": "UndescribableError: Keras' backend is openvino, and only models on jax, tensorflow, torch can be forked",
        "another shape": "DifferenceError: model/variables/0 differs: float32 [6, 9], strides [9, 1], on cpu where the state was captured",
        "untrained": "forebay: no fork at step 3: optimizer: no step has changed its variables since session(): assign the state",
    },
    "torch": {
        "wrapped": "UndescribableError: model: the tensor module.running_mean of layer torch_module_wrapper",
        "tf.data": "UndescribableError: data: the place in a tf.data.Dataset can't be known on this backend, which takes a batch ahead",
        "shuffled batches": "UndescribableError: data: the order of arrays can't be known on this backend with fit(shuffle='batch')",
        "another shape": "DifferenceError: model/variables/0 differs: float32 [6, 9], strides [9, 1], on cpu where the state was captured",
    },
}
BACKENDS = tuple(SHORT)


@pytest.fixture(scope="module")
def short() -> dict[str, dict[str, Any]]:
    """One process for all of a backend, since it takes seconds to start."""
    return {backend: played((*SHORT[backend], *LOOPS[backend], *REFUSED[backend]), backend) for backend in BACKENDS}


@pytest.mark.parametrize("backend", BACKENDS)
def test_f50_a_clone_has_its_parent_s_steps_to_the_last_bit(short: dict[str, dict[str, Any]], backend: str) -> None:
    for name in SHORT[backend]:
        check(short[backend][name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f50_a_clone_of_a_loop_has_its_parent_s_steps(short: dict[str, dict[str, Any]], backend: str) -> None:
    for name in LOOPS[backend]:
        check_loop(short[backend][name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f52_f55_what_can_t_be_carried_is_refused_by_name(short: dict[str, dict[str, Any]], backend: str) -> None:
    for name, line in REFUSED[backend].items():
        assert any(said.startswith(line) for said in short[backend][name]), short[backend][name]


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_f50_the_same_with_all_options(backend: str) -> None:
    for name, record in played((*LONG[backend], *LOOPS_LONG[backend]), backend).items():
        (check_loop if name in LOOPS_LONG[backend] else check)(record)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_f55_a_kind_of_state_that_is_left_out_is_seen_in_the_steps(backend: str) -> None:
    """So that the tests above would see it, and that `--set` changes what it says."""
    for name, record in played(DIFFERENT[backend], backend).items():
        assert not is_equal(record["clone"], record["parent"]), name
