"""How tensors of a GPU are cut for their way through the processor's memory; that they arrive, tests/clone/test_gpu.py shows."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.torch._staging import ALIGNED_BYTES, CUT_FROM_BYTES, END_BYTES, PART_BYTES, cuts

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
