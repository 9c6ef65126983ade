"""Bytes of other hosts end in one place."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.vfs.remote.content import filled

SIZE = 8 << 20


def test_what_is_filled_is_not_copied() -> None:
    pattern = bytes(range(256)) * 16

    def fill(target: memoryview) -> None:
        for offset in range(0, SIZE, len(pattern)):
            target[offset : offset + len(pattern)] = pattern

    tracemalloc.start()
    try:
        content = filled(SIZE, fill)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert content == pattern * (SIZE // len(pattern))
    assert peak < 1.5 * SIZE
    assert filled(0, lambda _: None) == b""


def test_what_fails_leaves_nothing() -> None:
    def fail(target: memoryview) -> None:
        target[:1] = b"x"
        raise OSError("broken off")

    with pytest.raises(OSError, match="broken off"):
        filled(10, fail)
