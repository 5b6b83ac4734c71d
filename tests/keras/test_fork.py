"""Forks of Keras jobs on TensorFlow: a clone has its parent's losses and variables to the last bit."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.clone.forks import node, told, training
from tests.keras.records import STEPS_LEAST, check, check_loop, is_equal, played

BACKENDS = (pytest.param("jax", marks=pytest.mark.long), "tensorflow", pytest.param("torch", marks=pytest.mark.long))
NEEDED = ("keras", "tensorflow")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")

SHORT = ("dataset", "dataset between epochs", "callbacks", "noise")
LONG = (
    "plain",
    "arrays between epochs",
    "dataset with a seed",
    "dataset repeated",
    "dataset of unknown length",
    "arrays in parts of an epoch",
    "loader",
    "loader between epochs",
    "jit",
    "steps_per_execution",
    "mixed_float16",
    "bfloat16",
    "average",
    "accumulation",
    "eager",
    "shadow",
    "schedule",
)
LOOPS = ("tape loop", "batches loop", "forgetful loop")
LOOPS_LONG = ("tape loop --verify shadow:2", "tape loop --set seed=7")
DIFFERENT = ("plain-model", "plain-optimizer", "plain-metrics", "dataset-data", "callbacks-callbacks", "noise-seeds", "seed", "rate")
CANT = "forebay: this job can't be forked: "
DATA = f"{CANT}data: the place in this tf.data can't be saved: "
REFUSED = {
    "unseeded": "UndescribableError: data: the order of arrays differs in each process: call keras.utils.set_random_seed(SEED) before",
    "python data": "UndescribableError: data: the place in what Keras reads by PyDatasetAdapter can't be known: give fit arrays",
    "callback": "UndescribableError: callback StepsSeen: its state is unknown: give it state_dict() and load_state_dict(), or",
    "restored": "UndescribableError: callback BackupAndRestore: it sets the state when fit begins",
    "strategy": "UndescribableError: model: it is distributed by MirroredStrategy, and only models of one process",
    "from_generator": f"{DATA}PyFunc is stateful. Use neither Python (from_generator, py_function)",
    "random map": f"{DATA}RandomStandardNormal is stateful. Use neither Python",
    "random op": f"{CANT}train step: the operation RandomStandardNormal keeps its random numbers where they can't be read",
    "variable": f"{CANT}train step: the variable hidden:0 belongs neither to the model nor to its optimizer or metrics",
    "second fit": "forebay: this job can't be forked any more: forebay.keras.Fork serves the first fit",
    "another shape": "DifferenceError: model/variables/0 differs: float32 [6, 9], strides [9, 1], on cpu where the state was captured",
    "a number": "DifferenceError: momentum can't be set: Keras compiles it into the train step; there are lr and seed",
    "loop unbuilt model": "UndescribableError: model: it has no variables yet: call model.build(shape), or the model once, before",
    "loop unbuilt optimizer": "UndescribableError: optimizer: it has no variables yet: call optimizer.build(model.trainable_variables)",
    "loop no optimizer": "MissingError: model is compiled with an optimizer that is not given: pass optimizer=model.optimizer",
    "loop ranks": "UndescribableError: ranks='mpi': only models of one process and device can be forked with Keras",
    "loop list": "UndescribableError: loader: the state of a list is unknown: give a layer, metric or variable",
    "loop batches": "CloneError: batches(loader): the place in it can't be known with a model of Keras: give session(loader=)",
}
REFUSED_LONG = {
    "another model": "DifferenceError: model/trained differs: [0,1,2,3,7,8] where the state was captured, [0,1,2,3,7,8,9,10] here",
    "other data": 'DifferenceError: data/read by differs: "ArrayDataAdapter" where the state was captured',
    "other callbacks": "DifferenceError: the captured state lacks callbacks/ReduceLROnPlateau",
    "a rate of a schedule": "DifferenceError: lr can't be set: with each step CosineDecay computes it again",
}


@pytest.fixture(scope="module")
def short() -> dict[str, Any]:
    """One process of TensorFlow for all of it."""
    return played((*SHORT, *REFUSED, "ended agent", "held reads", "never seeded", *LOOPS))


@pytest.mark.parametrize("name", SHORT)
def test_f50_a_clone_has_its_parent_s_steps_to_the_last_bit(short: dict[str, Any], name: str) -> None:
    check(short[name])


@pytest.mark.parametrize("name", LOOPS)
def test_f50_f55_a_clone_of_a_loop_has_its_parent_s_steps_if_all_is_carried(short: dict[str, Any], name: str) -> None:
    check_loop(short[name], is_carried=not name.startswith("forgetful"))


@pytest.mark.parametrize("name", REFUSED)
def test_f52_f55_what_can_t_be_carried_is_refused_by_name(short: dict[str, Any], name: str) -> None:
    (line,) = short[name]
    assert line.startswith(REFUSED[name])


def test_a_process_that_sets_no_seed_can_be_forked(short: dict[str, Any]) -> None:
    assert short["never seeded"] == []


def test_the_versions_that_forks_are_tested_with_are_those_that_the_guide_names() -> None:
    """Forks read private parts of Keras and its backends: with other versions run these tests, the long ones too."""
    packages = {"Keras": "keras", "TensorFlow": "tensorflow-cpu", "JAX": "jax", "PyTorch": "torch"}
    versions = {name: importlib.metadata.version(package).partition("+")[0] for name, package in packages.items()}
    keras, *backends = (f"{name} {version}" for name, version in versions.items())
    assert f"{keras} with {backends[0]}, {backends[1]} and {backends[2]}" in " ".join((support.ROOT / "docs/fork.md").read_text().split())


def test_f51_the_end_of_the_agent_leaves_training_as_it_is(short: dict[str, Any]) -> None:
    record = short["ended agent"]
    assert record["forked"] == [14]
    assert record["parent"] == record["alone"]


def test_f50_no_update_changes_a_read_that_is_held(short: dict[str, Any]) -> None:
    assert set(short["held reads"].values()) == {0.0}, short["held reads"]


@pytest.mark.long
def test_f52_clones_that_differ_are_refused_by_name() -> None:
    for name, lines in played(REFUSED_LONG).items():
        assert [line.startswith(REFUSED_LONG[name]) for line in lines] == [True], lines


@pytest.mark.long
def test_f50_the_same_with_all_options() -> None:
    for record in played(LONG).values():
        check(record)
    for name, record in played(LOOPS_LONG).items():
        check_loop(record, is_carried="seed" not in name)


@pytest.mark.long
def test_f55_a_kind_of_state_that_is_left_out_is_seen_in_the_steps() -> None:
    """So that the tests above would see it, and that `--set` changes what it says."""
    for name, record in played(DIFFERENT).items():
        assert not is_equal(record["clone"], record["parent"]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_f50_the_command_forks_an_unmodified_program(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}: uv sync --group frameworks")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    stop = tmp_path / "stop"
    with node() as place:
        program = [sys.executable, "-m", "tests.keras.train", str(stop)]
        with training(place, program) as parent:
            clone = place.type("clone", "trunk", "--", *program)
            assert clone.returncode == 0, clone.stderr
            assert "forebay: this is trunk.1, a clone of trunk after step" in clone.stderr
            (one,) = told(clone.stdout)
            stop.write_text(max(one["epochs"], key=int))
            output, _ = parent.communicate(timeout=support.PROGRAM_S)
    (source,) = told(output)
    assert len(one["steps"]) > STEPS_LEAST
    assert is_equal(one, source)
    assert one["lineage"]["parent"] == "trunk"
