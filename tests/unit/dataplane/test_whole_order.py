"""In which order a whole file is fetched: nothing twice, nothing left out, all lanes at one time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.model import BLOCK_SIZE_BYTES, block_count
from headrace.dataplane.readahead import SEGMENTS_MAX, whole_order

MIB = BLOCK_SIZE_BYTES


@given(
    size_bytes=st.integers(0, 60 * MIB),
    from_block=st.integers(0, 70),
    range_blocks=st.integers(1, 9),
    lane_blocks=st.integers(0, 20),
)
def test_every_block_once_and_no_range_in_two_lanes(
    size_bytes: int, from_block: int, range_blocks: int, lane_blocks: int
) -> None:
    ranges = list(
        whole_order(size_bytes, from_block, range_blocks=range_blocks, segment_bytes=lane_blocks * MIB)
    )
    blocks = [block for span in ranges for block in span]
    assert sorted(blocks) == list(range(block_count(size_bytes)))
    assert all(0 < len(span) <= range_blocks for span in ranges)
    if lane_blocks:
        assert all(span[0] // lane_blocks == span[-1] // lane_blocks for span in ranges)
    if from_block < block_count(size_bytes):
        assert blocks[0] == from_block


def test_one_lane_goes_on_from_the_reader_and_then_from_the_beginning() -> None:
    order = list(whole_order(10 * MIB, 5, range_blocks=2, segment_bytes=0))
    assert order == [range(5, 7), range(7, 9), range(9, 10), range(2), range(2, 4), range(4, 5)]


def test_lanes_take_turns() -> None:
    order = list(whole_order(12 * MIB, 5, range_blocks=2, segment_bytes=4 * MIB))
    first = [range(5, 7), range(8, 10), range(2)]
    assert order == [*first, range(7, 8), range(10, 12), range(2, 4), range(4, 5)]


def test_of_a_huge_file_some_lanes_at_a_time_are_fetched() -> None:
    order = whole_order(100 * 1024 * MIB, 0, range_blocks=8, segment_bytes=1024 * MIB)
    lanes = [next(order)[0] // 1024 for _ in range(4 * SEGMENTS_MAX)]
    assert lanes == list(range(SEGMENTS_MAX)) * 4
