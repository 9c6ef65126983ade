"""These decisions need no I/O: chunks and slots, full or incremental, retention, compression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptCheckpointError, UsageError
from headrace.checkpoint import compression, layout, plan
from headrace.checkpoint.retention import Retention, unreferenced

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
ALIGN, CHUNK, SLOT = 4, 8, 32


@CALM
@given(st.lists(st.integers(0, 100), max_size=12))
def test_every_byte_has_one_place_and_chunks_keep_theirs(sizes: list[int]) -> None:
    """Leaves of these sizes into slots, one after the other: no overlap, no gap, chunks never cut by a slot."""
    slots: list[list[plan.LeafRange]] = []
    used = SLOT
    for leaf, size in enumerate(sizes):
        position = 0
        for piece in plan.pieces_of(leaf, size, used, slot_bytes=SLOT, chunk_bytes=CHUNK, align_bytes=ALIGN):
            if piece is None:
                slots.append([])
                continue
            assert piece.start == position and piece.end <= size
            assert piece.offset % ALIGN == 0 and piece.offset + piece.end - piece.start <= SLOT
            if slots[-1]:
                last = slots[-1][-1]
                assert piece.offset >= last.offset + last.end - last.start
            slots[-1].append(piece)
            position = piece.end
        assert position == size
        if slots and slots[-1]:
            used = slots[-1][-1].offset + slots[-1][-1].end - slots[-1][-1].start
    chunks = [chunk for slot in slots for piece in slot for chunk in plan.chunks_of(piece, CHUNK)]
    for chunk in chunks:
        assert chunk.start % CHUNK == 0
        assert chunk.end == min(chunk.start + CHUNK, sizes[chunk.leaf])
    assert sum(chunk.end - chunk.start for chunk in chunks) == sum(sizes)


def test_full_or_not() -> None:
    def full(packs: int, changed: int) -> bool:
        return plan.is_full(
            base_packs=packs, chain_max=3, total_bytes=100, changed_bytes=changed, full_share=0.6
        )

    assert [full(0, 0), full(1, 0), full(2, 60), full(2, 61), full(3, 0)] == [True, False, False, True, True]


def test_the_budget_is_two_states_but_half_of_what_is_free_at_most() -> None:
    assert plan.budget(95, slot_bytes=10, available_bytes=1000) == 220
    assert plan.budget(95, slot_bytes=10, available_bytes=300) == 150
    assert plan.budget(95, slot_bytes=10, available_bytes=0) == 20


@CALM
@given(
    st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(1, 5), st.none() | st.integers(1, 9)
)
def test_retention(steps: set[int], pinned: set[int], last: int, every: int | None) -> None:
    dropped = Retention(last, every).dropped(steps, pinned)
    kept = steps - set(dropped)
    assert dropped == sorted(dropped) and set(dropped) <= steps
    assert kept >= set(sorted(steps)[-last:]) | (steps & pinned)
    assert all(every is None or step % every for step in dropped)
    assert len(kept) <= last + len(pinned) + (61 // every + 1 if every else 0)
    assert Retention(None, every).dropped(steps, pinned) == []


@CALM
@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(1, 5), st.integers(0, 60))
def test_retention_after_a_save(steps: set[int], pinned: set[int], last: int, saved: int) -> None:
    """Checkpoints of higher steps do not exist for the training that saves."""
    steps = {*steps, saved}
    dropped = Retention(last).dropped(steps, pinned, saved=saved)
    assert dropped == Retention(last).dropped({step for step in steps if step <= saved}, pinned)
    assert saved not in dropped
    assert Retention().dropped(steps, pinned, saved=saved) == []


def test_words_of_retention() -> None:
    for words in ({"last": 0}, {"last": 1, "every": 0}):
        with pytest.raises(UsageError):
            Retention(**words)
    assert unreferenced(["a", "b", "c"], [{"a"}, set(), {"c", "d"}]) == ["b"]


@CALM
@given(st.binary(max_size=300), st.sampled_from([1, 2, 4, 8, 16]))
def test_compression_gives_the_bytes_back(data: bytes, item: int) -> None:
    chunk = np.frombuffer(data, np.uint8)
    packed = compression.compress(chunk, item)
    target = np.empty(len(chunk), np.uint8)
    compression.decompress(memoryview(packed), target, item, "x")
    assert target.tobytes() == data
    for wrong in (packed[:-1], b"", b"nonsense"):
        with pytest.raises(CorruptCheckpointError):
            compression.decompress(memoryview(wrong), np.empty(len(chunk) + 1, np.uint8), item, "x")


def test_compression_pays_where_it_is_not_slower() -> None:
    """By the sample, two threads that compress, and the disk's rate."""
    good, fast, poor = (compression.Sample(*words) for words in ((0.5, 100.0), (0.8, 1000.0), (0.95, 9e9)))
    assert [compression.pays(good, write_bytes_s=rate, threads=2) for rate in (100, 200, 201)] == [
        True,
        True,
        False,
    ]
    assert compression.pays(fast, write_bytes_s=1000, threads=2)
    assert not compression.pays(poor, write_bytes_s=1, threads=2)
    floats = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32).view(np.uint8)
    assert compression.measure(floats, 4).ratio < 0.9 < compression.measure(floats, 1).ratio
    assert compression.measure(floats[:100], 4).bytes_s > 0


def test_names() -> None:
    save = layout.save_id(70, "run1", 2)
    assert layout.save_of_pack(layout.pack_name(save, 11)) == save
    assert layout.save_of_new_manifest(layout.new_manifest_name(70, save).rpartition("/")[2]) == save
    assert layout.save_of_pack("stranger.pack") is None
    assert layout.steps_of(["000000000070", f"{save}.new", "x", "000000000009"]) == [9, 70]
    for run in ("", "A", "a-b", "a" * 41, "ü"):
        with pytest.raises(UsageError):
            layout.check_run(run)
