"""Mark positions of an order, one bit each, and find the last marked one at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_BLOCK_BITS = 4096
_BLOCK_BYTES = _BLOCK_BITS // 8


class UseMarks:
    """Marks of the positions 0 to count - 1: 0.13 bytes for each position.

    Blocks have counts, so that the search for the last or the first mark passes 4,096 empty positions in one step.
    """

    def __init__(self, count: int) -> None:
        blocks = -(-count // _BLOCK_BITS)
        self._bits = bytearray(blocks * _BLOCK_BYTES)
        self._counts = array("H", bytes(2 * blocks))
        self._last_block = -1
        self._first_block = blocks

    def set(self, position: int) -> None:
        byte, bit = position >> 3, 1 << (position & 7)
        if not self._bits[byte] & bit:
            self._bits[byte] |= bit
            block = position // _BLOCK_BITS
            self._counts[block] += 1
            self._last_block = max(self._last_block, block)
            self._first_block = min(self._first_block, block)

    def clear(self, position: int) -> None:
        byte, bit = position >> 3, 1 << (position & 7)
        if self._bits[byte] & bit:
            self._bits[byte] ^= bit
            self._counts[position // _BLOCK_BITS] -= 1

    def last(self) -> int:
        """Return the last marked position; -1: none."""
        while self._last_block >= 0 and not self._counts[self._last_block]:
            self._last_block -= 1
        if self._last_block < 0:
            self._first_block = len(self._counts)
            return -1
        return self._last_block * _BLOCK_BITS + self._block(self._last_block).bit_length() - 1

    def pop_before(self, end: int) -> Iterator[int]:
        """Clear the marks before `end` and yield their positions, in order."""
        while self._first_block < len(self._counts) and self._first_block * _BLOCK_BITS < end:
            block = self._first_block
            if not self._counts[block]:
                self._first_block = block + 1
                continue
            bits = self._block(block)
            position = block * _BLOCK_BITS + (bits & -bits).bit_length() - 1
            if position >= end:
                return
            self.clear(position)
            yield position

    def _block(self, block: int) -> int:
        return int.from_bytes(self._bits[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES], "little")
