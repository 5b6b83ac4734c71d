"""Forks of Keras jobs on TensorFlow whose variables are copied while the step before the fork runs."""

import importlib.util
from typing import Any

import pytest

from tests.keras.records import check, is_equal, played

NEEDED = ("keras", "tensorflow")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")

KERNEL = 512 * 512 * 4
# Two kernels and their two moments.
MARKED = {"early": 6 * KERNEL, "early dataset between epochs": 6 * KERNEL}
MARKED_LONG = {"early steps_per_execution": 6 * KERNEL}
OTHERS = ("early jit",)
OTHERS_LONG = ("early accumulation", "early average", "early mixed_float16")
WHY = "forebay: early=True has no effect, states are copied from the step's end on: "
FALLBACKS = {
    "early without jit": f"{WHY}with jit_compile=True XLA compiles the step to one operation",
    "early without graph": f"{WHY}with run_eagerly=True there is no graph",
    "early without library": f"{WHY}libno_such_library.so.2 is not loaded",
}


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """One process of TensorFlow for all of it."""
    return played((*MARKED, *OTHERS, *FALLBACKS, "early moved", "early moved unseen"))


@pytest.mark.parametrize("name", [*MARKED, *OTHERS])
def test_f50_a_clone_has_its_parent_s_steps_to_the_last_bit(records: dict[str, Any], name: str) -> None:
    check(records[name])


@pytest.mark.parametrize("name", MARKED)
def test_all_marked_bytes_are_copied_before_the_boundary(records: dict[str, Any], name: str) -> None:
    assert records[name]["early"] == MARKED[name]


@pytest.mark.long
def test_f50_the_same_with_all_options() -> None:
    records = played((*MARKED_LONG, *OTHERS_LONG))
    for record in records.values():
        check(record)
    assert {name: records[name]["early"] for name in MARKED_LONG} == MARKED_LONG


def test_f50_a_variable_that_moved_after_its_copy_is_taken_again(records: dict[str, Any]) -> None:
    check(records["early moved"])
    assert records["early moved"]["early"] == MARKED["early"], "it was copied before it moved"


def test_f50_without_the_comparison_of_addresses_the_clone_would_differ(records: dict[str, Any]) -> None:
    """So that the test before would see it."""
    record = records["early moved unseen"]
    assert record["parent"] == record["alone"]
    assert not is_equal(record["clone"], record["parent"])


@pytest.mark.parametrize("name", FALLBACKS)
def test_f52_where_no_mark_is_possible_one_line_says_why(records: dict[str, Any], name: str) -> None:
    assert records[name] == [FALLBACKS[name]]
