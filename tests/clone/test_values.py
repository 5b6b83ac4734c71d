"""Typed JSON: values are read back with their types, and those that can't be written are refused by their path."""

import collections
import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clone import DamagedError, UndescribableError
from forebay.clone._values import DEPTH_MAX, Path, decode, encode

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.dictionaries(st.integers(), inner),
    max_leaves=20,
)
# What JSON can say that begins like one of ours.
HOSTILE = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.sampled_from(["dict", "tuple", "numpy", "tensor", "<u4", "|O", "O"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["$", "of", "type", "shape"]), inner),
    max_leaves=20,
)


def no_tensor(path: Path, value: object) -> bool:
    return False


def round_trip(value: object) -> Any:  # noqa: ANN401
    return decode(encode(value, ("x",), no_tensor), ("x",), lambda path: pytest.fail(f"{path} is not a tensor"))


def same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    assert same(round_trip(value), value)


@given(VALUES)
def test_what_is_no_value_is_named_by_where_it_stands(value: object) -> None:
    marks = [Mark(), Mark()]
    named: list[tuple[Path, object]] = []

    def note(path: Path, leaf: object) -> bool:
        named.append((path, leaf))
        return isinstance(leaf, Mark)

    nested = {"a": [value, marks[0]], "b": ({1: marks[1]},)}
    encode(nested, ("x",), note)
    assert named == [(("x", "a", "1"), marks[0]), (("x", "b", "0", "1"), marks[1])]


class Mark:
    """An object that is not a value."""


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 << 127, "\ud800", True, 1.0])
def test_odd_numbers_and_texts_are_read_back(value: object) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.Counter, dict])
def test_kinds_of_dictionaries_are_read_back(kind: type[dict[Any, Any]]) -> None:
    value = kind({3: 1, 1: 2, "1 ": 3})
    assert same(round_trip(value), value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", ">u4"])
def test_arrays_and_their_scalars_are_read_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = round_trip([array, array[1, 1], array[:, ::2], array[:0], np.array(array[0, 0])])
    for there, here in zip(back, [array, array[1, 1], array[:, ::2], array[:0], np.array(array[0, 0])], strict=True):
        assert type(there) is type(here)
        assert there.dtype == here.dtype
        assert np.array_equal(there, here)


class StrSubclass(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [object(), StrSubclass("x"), lambda: 1, np.array([object()]), np.datetime64("2026-01-01"), 1j, Exception])
def test_what_would_need_a_pickle_is_refused_by_its_path(value: object) -> None:
    with pytest.raises(UndescribableError, match=r"^optimizer/groups/0/a~1b: a .* can't be described"):
        encode([{"a/b": value}], ("optimizer", "groups"), no_tensor)


def test_keys_that_are_written_alike_or_not_at_all_are_refused() -> None:
    with pytest.raises(UndescribableError, match="written alike"):
        encode({1: 0, "1": 0}, ("x",), no_tensor)
    with pytest.raises(UndescribableError, match="is not a valid key"):
        encode({frozenset(): 0}, ("x",), no_tensor)


def test_depth_is_bounded() -> None:
    deep: list[Any] = []
    for _ in range(DEPTH_MAX):
        deep = [deep]
    assert round_trip(deep) == deep
    with pytest.raises(UndescribableError, match="deeper"):
        round_trip([deep])
    with pytest.raises(DamagedError, match="deeper"):
        decode(b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2), ("x",), print)
    with pytest.raises(DamagedError):
        decode(b"[" * 100_000 + b"]" * 100_000, ("x",), print)


@given(HOSTILE)
def test_f53_hostile_values_are_values_or_refused(value: object) -> None:
    with contextlib.suppress(DamagedError):
        decode(json.dumps(value).encode(), ("x",), lambda path: path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x80\x04.",
        b"NaN",
        b'{"$":"code","of":"x"}',
        b'{"of":[]}',
        b'{"$":"tuple"}',
        b'{"$":"tuple","of":"ab"}',
        b'{"$":"dict","of":[[{"$":"tensor"},1]]}',
        b'{"$":"dict","of":[[[],1]]}',
        b'{"$":"numpy","type":"|O","shape":[1],"of":"0000000000000000"}',
        b'{"$":"numpy","type":"<u4","shape":[2],"of":"00000000"}',
        b'{"$":"numpy","type":"<u4","shape":null,"of":""}',
        b'{"$":["tuple"],"of":[]}',
    ],
)
def test_f53_what_is_not_ours_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^x: not a value"):
        decode(text, ("x",), lambda path: path)
