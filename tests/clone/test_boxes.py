"""Sharded tensors for ranks that hold other parts of them: each gets its part, to the bit, or there is no clone."""

import ctypes
import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay import _core
from forebay.clone import _parts
from forebay.clone._adapter import Component, adapter_of
from forebay.clone._boxes import Box, in_boxes, is_sharded
from forebay.clone._capture import Capture, reserve
from forebay.clone._errors import CloneError, DamagedError, DifferenceError
from forebay.clone._manifest import CapturedSection, EntryKind, Manifest, Placement, Section
from forebay.clone._values import encode
from forebay.torch import _tensors
from tests.clone.manifests import with_digests

ADAPTER = adapter_of(torch.nn.Linear(1, 1))
BOXES = ("model", "sharding")
WEIGHTS = ("model", "parameters")
WEIGHT = "model/parameters/weight"


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(box.start, box.shape, strict=True))


def local(tensor: torch.Tensor, box: Box, order: Sequence[int]) -> torch.Tensor:
    """Returns a rank's part of a tensor, in memory by this order of its dimensions."""
    back = [order.index(dimension) for dimension in range(tensor.dim())]
    return tensor[slices(box)].permute(*order).contiguous().permute(*back)


def parts_of(tensor: torch.Tensor, told: object) -> dict[str, _parts.ComponentState]:
    """Returns the components of a rank that holds this part, and tells that."""
    of_boxes = Component(BOXES, Placement.PER_RANK, dict, tells_boxes=True)
    of_weights = Component(WEIGHTS, Placement.REPLICATED, dict)
    described = ADAPTER.describe(tensor, (*WEIGHTS, "weight"))
    assert described is not None
    text = encode(told, BOXES, lambda _, __: False)
    section = Section(("model/sharding",), (EntryKind.of_values(Placement.PER_RANK, text),))
    names = b'{"$":"dict","of":[["weight",{"$":"tensor"}]]}'
    kinds = (EntryKind.of_values(Placement.REPLICATED, names), EntryKind(Placement.SHARDED, described.layout, described.length))
    return {
        "model/sharding": _parts.ComponentState(of_boxes, text, section, [], []),
        "model/parameters": _parts.ComponentState(
            of_weights, names, Section(("model/parameters", WEIGHT), kinds), [tensor], [tensor.data_ptr()]
        ),
    }


def captured(tensor: torch.Tensor, told: object, rank: int, ranks: int) -> Capture:
    """Returns the capture of a rank that holds this part."""
    parts = parts_of(tensor, told)
    texts = [part.text for part in parts.values()]
    contents = [*texts, ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""]
    held = tuple(CapturedSection(part.section, {}) for part in parts.values())
    manifest = Manifest("torch", rank, ranks, (), held, bytes(16 * len(contents)))
    memory = reserve(manifest.length)
    digests = b""
    for (entry, at), content in zip(manifest.offsets(), contents, strict=True):
        assert entry.length == len(content)
        ctypes.memmove(memory.address + at, content, len(content))
        digests += bytes.fromhex(_core.digest(memory.address + at, len(content)))
    return Capture(dataclasses.replace(manifest, digests=digests), memory.seal(manifest.length))


def told_of(box: Box) -> object:
    return {"parameters/weight": [list(box.whole), list(box.start), list(box.shape)]}


def weight_in(capture: Capture) -> torch.Tensor:
    (entry, at) = next((entry, at) for entry, at in capture.manifest.offsets() if entry.path == WEIGHT)
    content = os.pread(capture.descriptor, entry.length, at)
    room = ctypes.create_string_buffer(content, max(1, len(content)))
    assert _core.digest(ctypes.addressof(room), len(content)) == entry.digest
    made: torch.Tensor = ADAPTER.empty(entry.layout)
    ctypes.memmove(made.data_ptr(), content, len(content))
    return made


def halves(count: int = 2) -> list[tuple[torch.Tensor, Box]]:
    """Returns parts of a tensor of six rows, as many in each rank."""
    whole = torch.arange(24.0).reshape(6, 4)
    rows = 6 // count
    boxes = [Box((6, 4), (rank * rows, 0), (rows, 4)) for rank in range(count)]
    return [(whole[slices(box)].clone(), box) for box in boxes]


def cut(draw: st.DrawFn, whole: Sequence[int]) -> list[Box]:
    """Cuts a tensor into parts along each dimension; some have nothing."""
    cuts = [sorted(draw(st.lists(st.integers(0, size), max_size=2))) for size in whole]
    ranges = [list(itertools.pairwise([0, *inner, size])) for inner, size in zip(cuts, whole, strict=True)]
    return [Box(tuple(whole), tuple(a for a, _ in box), tuple(b - a for a, b in box)) for box in itertools.product(*ranges)]


@given(st.data())
def test_p14_each_rank_gets_its_part_of_a_tensor_however_it_was_cut(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex64]))
    tensor = torch.arange(torch.Size(whole).numel()).reshape(whole).to(dtype)
    order = data.draw(st.permutations(range(len(whole))))
    theirs = data.draw(st.composite(cut)(whole))
    ours = data.draw(st.composite(cut)(whole))
    # Replicas of parts, as in a mesh of several dimensions.
    theirs = [box for box in theirs for _ in range(data.draw(st.integers(1, 2)))]
    captures = [captured(local(tensor, box, order), told_of(box), rank, len(theirs)) for rank, box in enumerate(theirs)]
    try:
        assert is_sharded(captures[0])
        for box in ours:
            mine = local(tensor, box, data.draw(st.permutations(range(len(whole)))))
            with in_boxes(captures, parts_of(torch.zeros_like(mine), told_of(box)), ADAPTER, reserve) as found:
                assert torch.equal(weight_in(found), mine)
                assert [entry.path for entry in found.manifest.entries] == [entry.path for entry in captures[0].manifest.entries]
    finally:
        for capture in captures:
            capture.close()


def gathered(captures: Sequence[Capture], box: Box, told: object = None) -> torch.Tensor:
    parts = parts_of(torch.zeros(box.shape), told if told is not None else told_of(box))
    try:
        with in_boxes(captures, parts, ADAPTER, reserve) as found:
            return weight_in(found)
    finally:
        for capture in captures:
            capture.close()


def states(parts: Sequence[tuple[torch.Tensor, Box]]) -> list[Capture]:
    return [captured(tensor, told_of(box), rank, len(parts)) for rank, (tensor, box) in enumerate(parts)]


WHOLE = Box((6, 4), (0, 0), (6, 4))


def test_a_tensor_of_two_ranks_is_whole_in_one() -> None:
    assert torch.equal(gathered(states(halves()), WHOLE), torch.arange(24.0).reshape(6, 4))


def test_f53_a_byte_that_changed_on_its_way_is_found() -> None:
    first, second = states(halves())
    changed = Capture(with_digests(second.manifest, {WEIGHT: bytes(16)}), second.descriptor)
    with pytest.raises(DamagedError, match=rf"^{WEIGHT}: the bytes that arrived have the digest"):
        gathered([first, changed], WHOLE)


def test_f53_a_byte_of_what_all_hold_alike_is_looked_at_too() -> None:
    first, second = states(halves())
    changed = Capture(with_digests(first.manifest, {"model/parameters": bytes(16)}), first.descriptor)
    with pytest.raises(DamagedError, match=r"^model/parameters: the bytes that arrived have the digest"):
        gathered([changed, second], WHOLE)


def test_ranks_that_hold_the_same_part_have_to_hold_it_alike() -> None:
    (tensor, box), other = halves()
    parts = [(tensor, box), other, (tensor + 1, box)]
    with pytest.raises(DifferenceError, match=rf"^{WEIGHT} is not the same in rank 0 and rank 2 of its parent, which hold the same part"):
        gathered(states(parts), WHOLE)


def test_a_part_that_no_rank_holds_is_missed() -> None:
    with pytest.raises(DamagedError, match=rf"^{WEIGHT}: its parent's ranks hold 16 of the 24 elements of this rank's part"):
        gathered(states(halves(3)[:2]), WHOLE)


def test_parts_that_overlap_do_not_hide_a_gap() -> None:
    """Rows 0 to 2 and 2 to 4 are as many as there are."""
    (first, box), (second, other) = halves()
    with pytest.raises(DifferenceError, match=rf"^{WEIGHT}: parts that its parent's ranks hold overlap"):
        gathered(states([(first, box), (second, other._replace(start=(2, 0)))]), WHOLE)


def test_a_rank_outside_of_a_tensor_s_mesh_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharded:
        shape, placements, device_mesh = torch.Size((6, 4)), (), None

        def dim(self) -> int:
            return 2

    monkeypatch.setattr(_tensors, "is_dtensor", lambda _: True)
    monkeypatch.setattr(_tensors, "is_sharded", lambda _: True)
    monkeypatch.setattr(_tensors, "local_part", lambda _: torch.empty(0))
    told = SimpleNamespace(compute_local_shape_and_global_offset=lambda *_: ((0,), ()))
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor._utils", told)
    assert _tensors.boxes({"weight": cast("torch.Tensor", Sharded())}) == {}


def test_a_tensor_of_other_sizes_is_another_model_s() -> None:
    with pytest.raises(DifferenceError, match=re.escape(f"{WEIGHT} differs: [6, 4] where the state was captured, [8, 4] here")):
        gathered(states(halves()), Box((8, 4), (0, 0), (6, 4)))


def test_a_tensor_of_which_nobody_tells_how_it_was_cut_is_refused() -> None:
    with pytest.raises(DifferenceError, match=rf"^{WEIGHT} is sharded, and nothing tells which part of it a rank holds: start the clone"):
        gathered(states(halves()), WHOLE, told={"parameters/other": [[1], [0], [1]]})


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([1], "'' has no sizes, beginning and sizes of a part"),
        ({"parameters/weight": [[6, 4], [0, 0]]}, "'parameters/weight' has no sizes"),
        ({"parameters/weight": [[6, 4], [4, 0], [3, 4]]}, "'parameters/weight' is not a part of a tensor"),
        ({"parameters/weight": [[6, 4], [0, 0], [3, 4.0]]}, "'parameters/weight' is not a part of a tensor"),
        ({"parameters/weight": [[6, 4], [0, 0], [2, 4]]}, "rank 1 has float32 [3, 4], strides [4, 1], on cpu, which is not cut as"),
    ],
)
def test_f53_boxes_that_nobody_has_written_are_refused(told: object, why: str) -> None:
    (first, box), (second, _) = halves()
    with pytest.raises(CloneError, match=re.escape(why)):
        gathered([captured(first, told_of(box), 0, 2), captured(second, told, 1, 2)], WHOLE)


def test_copies_outside_of_memory_are_refused() -> None:
    with captured(torch.ones(4), {}, 0, 1) as capture:
        memory = reserve(16)
        target = (memory.address, 16)
        for copy in (
            ((0, 1 << 20), 4, (0, [1]), (0, [1]), [4]),
            ((0, 16), 4, (1, [1]), (0, [1]), [4]),
            ((0, 16), 4, (0, [1]), (1, [1]), [4]),
            ((0, 16), 4, (0, [1 << 62]), (0, [1]), [4]),
            ((0, 16), 4, (0, [1, 1]), (0, [1]), [4]),
        ):
            with pytest.raises(ValueError, match=r"no \d+ bytes are at|have other numbers of steps"):
                _core.copy_boxes(capture.descriptor, target, [copy])
        memory.close()
