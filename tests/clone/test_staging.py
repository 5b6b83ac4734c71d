"""The way of a GPU's tensors through pinned memory, here without a GPU: its memory is the processor's.

Tests/clone/test_gpu.py has one.
"""

import ctypes

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from forebay import _core
from forebay.torch import DataLoader, TrainCrop, _staging, _state
from forebay.torch._staging import ALIGNED_BYTES, CUT_FROM_BYTES, END_BYTES, PART_BYTES, cuts, inward, outward
from tests.clone.jobs import job


class GpuOnCpu(_staging.Gpu):
    """The processor in a GPU's place."""

    TYPE = "cpu"
    waits = 0

    def wait(self) -> None:
        GpuOnCpu.waits += 1

    def pinned(self, length: int) -> torch.Tensor:
        return torch.full((length,), 255, dtype=torch.uint8)

    def event(self) -> torch.cuda.Event:
        return Done()  # type: ignore[return-value]

    def record(self, event: torch.cuda.Event) -> None:
        pass


class Done:
    def synchronize(self) -> None:
        pass


def tensors() -> list[torch.Tensor]:
    numbers = torch.arange(PART_BYTES // 2, dtype=torch.int32)
    complexes = torch.randn(6, 4, dtype=torch.complex64)
    return [
        torch.empty(0, 3),
        torch.tensor(True),
        numbers,
        torch.nn.Parameter(torch.randn(300, 7)),
        numbers[5:70_000],
        torch.randn(5, 6)[:, ::2],
        complexes.conj(),
        complexes[:, ::2].T.conj(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(7).to(torch.float8_e4m3fn),
        *(torch.randn(number) for number in range(50)),
        numbers[: (PART_BYTES + 5 * ALIGNED_BYTES) // 4],
    ]


def test_tensors_arrive_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_staging, "Gpu", GpuOnCpu)
    sources = tensors()
    found = [_state.describe(one, ("x",)) for one in sources]
    layouts = [one.layout for one in found if one]
    lengths = [one.length for one in found if one]
    memories = [ctypes.create_string_buffer(max(length, 1)) for length in lengths]
    addresses = [ctypes.addressof(memory) for memory in memories]
    out, back = _core.Pieces(lengths), _core.Pieces(lengths)
    for batch in outward(sources):
        out.copy([(piece.number, piece.address, piece.length, addresses[piece.number] + piece.start) for piece in batch])
    assert out.digests() == [xxhash.xxh3_128_digest(memory.raw[:length]) for memory, length in zip(memories, lengths, strict=True)]
    # Into tensors that lie as the layout says; and into one with gaps, and one that is a conjugate.
    targets: list[torch.Tensor] = [_state.empty(layout) for layout in layouts]
    targets[5] = torch.zeros(5, 6)[:, ::2]
    targets[6] = torch.zeros(6, 4, dtype=torch.complex64).conj()
    for batch in inward(targets, layouts):
        back.copy([(piece.number, addresses[piece.number] + piece.start, piece.length, piece.address) for piece in batch])
    assert back.digests() == out.digests()
    for source, target in zip(sources, targets, strict=True):
        if source.element_size() == 1:
            source, target = source.view(torch.uint8), target.view(torch.uint8)
        assert torch.equal(source, target), (source.dtype, source.shape)


def test_what_is_queued_is_waited_for_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_staging, "Gpu", GpuOnCpu)
    for way in (outward([torch.ones(3)]), inward([torch.ones(3)], [_state.describe(torch.ones(3), ("x",)).layout])):  # type: ignore[union-attr]
        before = GpuOnCpu.waits
        next(way)
        assert GpuOnCpu.waits == before + 1
    list(way)
    assert GpuOnCpu.waits == before + 2, "and what was written, before it is used"


def test_programs_may_have_set_another_default_device() -> None:
    """As to a GPU, on which what is made without a word of where it goes would then lie."""
    made, other = job(number=1), job(number=2)
    for one, number in ((made, 1.0), (other, 2.0)):
        weight = one.model.get_parameter("head.weight")
        weight.data = torch.full((*weight.shape, 2), number)[..., 0]
    plain = made.inventory().manifest()
    image = Image.new("RGB", (50, 40))
    torch.set_default_device("meta")
    try:
        with made.inventory().capture() as capture:
            other.inventory().load(capture)
        assert _state.why_fixed(made.model.get_parameter("head.bias")) == ""
        assert TrainCrop(8)(image, rng=torch.Generator().manual_seed(1)).device.type == "cpu"
        state = DataLoader([1, 2, 3], 1, shuffle=True, generator=torch.Generator(), report=False).state_dict()
        DataLoader([1, 2, 3], 1, shuffle=True, generator=torch.Generator(), report=False).load_state_dict(state)
    finally:
        torch.set_default_device(None)
    assert other.inventory().manifest() == plain


LENGTHS = st.one_of(
    st.integers(0, 5 * CUT_FROM_BYTES),
    st.integers(-3, 3).map(lambda more: PART_BYTES + more),
    st.integers(-3, 3).map(lambda more: 3 * PART_BYTES + END_BYTES + more),
    st.integers(0, 4 * PART_BYTES),
)


@given(st.lists(LENGTHS, max_size=12))
def test_each_byte_goes_once_and_in_order(lengths: list[int]) -> None:
    had = [0] * len(lengths)
    come = set()
    for part in cuts(lengths):
        end = 0
        for cut in part:
            assert cut.at == end, "side by side"
            end += cut.length
            assert cut.start == had[cut.staged], "in order"
            had[cut.staged] += cut.length
            is_last = had[cut.staged] == lengths[cut.staged]
            assert is_last or cut.length % ALIGNED_BYTES == 0
            assert cut.start == 0 or cut.length >= END_BYTES
            come.add(cut.staged)
        assert 0 <= end <= PART_BYTES
    assert had == lengths
    assert come == set(range(len(lengths))), "those without a byte, too"


@given(st.lists(st.integers(0, 2 * CUT_FROM_BYTES), min_size=1, max_size=200))
def test_parts_are_filled(lengths: list[int]) -> None:
    parts = [sum(cut.length for cut in part) for part in cuts(lengths)]
    assert all(PART_BYTES - part < CUT_FROM_BYTES + END_BYTES + ALIGNED_BYTES for part in parts[:-1])
