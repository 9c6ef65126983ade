"""Bytes of other hosts end in one place."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.testing.waiting import wait_for
from headrace.vfs.remote import content
from headrace.vfs.remote.content import filled

SIZE = 8 << 20


def test_what_is_filled_is_not_copied() -> None:
    pattern = bytes(range(256)) * 16

    def fill(target: memoryview, _: int) -> None:
        for offset in range(0, SIZE, len(pattern)):
            target[offset : offset + len(pattern)] = pattern

    def peak_bytes() -> int:
        tracemalloc.start()
        try:
            data = filled(SIZE, fill)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert data == pattern * (SIZE // len(pattern))
        return peak

    wait_for(lambda: peak_bytes() < 1.5 * SIZE)  # threads that other tests left allocate too, at times
    assert filled(0, lambda *_: None) == b""


def test_what_fails_leaves_nothing() -> None:
    def fail(target: memoryview, _: int) -> None:
        target[:1] = b"x"
        raise OSError("broken off")

    with pytest.raises(OSError, match="broken off"):
        filled(10, fail)


def test_memory_grows_with_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "FIRST_PART_BYTES", 1000)
    parts: list[tuple[int, int]] = []
    pattern = bytes(range(256)) * 40

    def fill(target: memoryview, offset: int) -> None:
        parts.append((offset, len(target)))
        target[:] = pattern[offset : offset + len(target)]

    assert filled(len(pattern), fill) == pattern
    assert parts == [(0, 1000), (1000, 1000), (2000, 2000), (4000, 4000), (8000, len(pattern) - 8000)]
    assert filled(2000, fill) == pattern[:2000]


def test_a_size_that_no_memory_has_takes_no_more_than_the_first_part() -> None:
    def end(target: memoryview, _: int) -> None:
        raise OSError(f"{len(target)} bytes")

    with pytest.raises(OSError, match=f"{content.FIRST_PART_BYTES} bytes"):
        filled(1 << 62, end)
