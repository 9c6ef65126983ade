"""Substitute samples within an epoch: a sample that is cached and was not read yet is read before one that is not.

An epoch is a list of positions in its seeded order. Ranks share the positions as without substitution, and each rank
chooses the order within its share. Each position is read once, also when a run is resumed from its state, and when it
is resumed with another number of ranks from the states of all ranks. No I/O: the caller says what is cached.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.base.errors import UsageError

AreCached = Callable[[Sequence[int]], Sequence[bool]]
"""Takes positions of the epoch's order, and returns for each whether its sample is cached."""

CHECKED_A_SAMPLE = 8
"""Positions that are checked for each sample that is taken. A search so passes an epoch within an eighth of its
time, while a cache of a quarter of the data keeps a sample for a quarter of it."""

STATE_BYTES_MAX = 1 << 28


class CachedFirstOrder:
    """The order in which one rank reads its share of one epoch.

    count: the positions of the epoch. drop_last: leave out what can't be shared equally; otherwise repeat up to
    world - 1 positions. before: the bitmap of positions that were read before the present ranks began, as
    `merged_state` returns it.
    """

    def __init__(
        self, count: int, *, rank: int = 0, world: int = 1, drop_last: bool = True, before: bytes = b""
    ) -> None:
        self._count, self._rank, self._world, self._before = count, rank, world, before
        left = array("I", range(count))
        if before.strip(b"\0"):
            left = array("I", (position for position in left if not _has(before, position)))
        if drop_last:
            del left[len(left) // world * world :]
        elif left:
            left.extend((left * world)[: -len(left) % world])
        self.share = left[rank::world]
        """The positions of this rank. Its other methods name them by their offsets in this list."""
        self._taken = bytearray(len(self.share))
        self._read = bytearray(-(-len(self.share) // 8))
        self._front = self._cursor = 0
        self._taken_count = 0

    def __len__(self) -> int:
        """Return how many positions of the share are not taken yet."""
        return len(self.share) - self._taken_count

    def take(self, count: int, are_cached: AreCached) -> list[int]:
        """Return the offsets that are to be read next: cached ones, and then those that are first in the order.

        Fewer than `count` only at the end of the share. They do not count as read before `mark_read`.
        """
        count = min(count, len(self))
        offsets = self._take_cached(count, are_cached)
        while len(offsets) < count:
            self._front = self._taken.index(0, self._front)
            self._take(self._front, offsets)
        return offsets

    def mark_read(self, offsets: Sequence[int]) -> None:
        """Note that samples were handed to the training: states have them from now on."""
        for offset in offsets:
            self._read[offset >> 3] |= 1 << (offset & 7)

    def state(self) -> dict[str, Any]:
        """Return what was read so far, as values of JSON: two bits a sample at most."""
        return {
            "count": self._count,
            "rank": self._rank,
            "world": self._world,
            "before": _to_text(self._before),
            "read": _to_text(self._read),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of this rank. Raises UsageError for a state of another rank, world or epoch."""
        before, read = _checked(state)
        expected = (self._count, self._rank, self._world, _stripped(self._before))
        if (state["count"], state["rank"], state["world"], _stripped(before)) != expected:
            raise UsageError(
                "state of a loader",
                why=f"it is of rank {state['rank']} of {state['world']}, not of rank {self._rank} of {self._world}",
                hint="at another world size, give the states of all ranks",
            )
        for offset in _numbers_in(read):
            if offset < len(self.share) and not self._taken[offset]:
                self._take(offset, [])
                self.mark_read([offset])

    def _take_cached(self, count: int, are_cached: AreCached) -> list[int]:
        """Take cached positions, from where the last search ended."""
        offsets: list[int] = []
        checked = self._untaken(CHECKED_A_SAMPLE * count)
        cached = are_cached([self.share[offset] for offset in checked])
        for offset, is_cached in zip(checked, cached, strict=True):
            if len(offsets) == count:
                break
            self._cursor = offset + 1
            if is_cached:
                self._take(offset, offsets)
        return offsets

    def _untaken(self, count: int) -> list[int]:
        """Return offsets that are not taken, from the cursor to the end and on from the begin."""
        offsets: list[int] = []
        for start, end in ((self._cursor, len(self.share)), (self._front, self._cursor)):
            offset = self._taken.find(0, start, end)
            while offset >= 0 and len(offsets) < count:
                offsets.append(offset)
                offset = self._taken.find(0, offset + 1, end)
        return offsets

    def _take(self, offset: int, offsets: list[int]) -> None:
        self._taken[offset] = 1
        self._taken_count += 1
        offsets.append(offset)


def merged_state(states: Sequence[dict[str, Any]], *, drop_last: bool) -> bytes:
    """Return the bitmap of all positions that ranks have read, for `CachedFirstOrder(before=)` at any world size.

    states: of all ranks, taken at one time. Raises UsageError where one is missing or is of another run.
    """
    if not states:
        raise UsageError("states of a loader", why="there are none")
    checked = [_checked(state) for state in states]
    count, world, before = states[0]["count"], states[0]["world"], checked[0][0]
    if sorted(state["rank"] for state in states) != list(range(world)) or any(
        (state["count"], state["world"], state_before) != (count, world, before)
        for state, (state_before, _) in zip(states, checked, strict=True)
    ):
        raise UsageError("states of a loader", why=f"they are not those of all {world} ranks of one run")
    merged = bytearray(before.ljust(-(-count // 8), b"\0"))
    for state, (_, read) in zip(states, checked, strict=True):
        order = CachedFirstOrder(count, rank=state["rank"], world=world, drop_last=drop_last, before=before)
        for offset in _numbers_in(read):
            if offset < len(order.share):
                position = order.share[offset]
                merged[position >> 3] |= 1 << (position & 7)
    return bytes(merged)


def before_of(state: dict[str, Any]) -> bytes:
    """Return the bitmap of what was read before the ranks of a state began. Raises UsageError for what is no state."""
    return _checked(state)[0]


def _checked(state: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the bitmaps of a state: read before, and read by this rank. Raises UsageError for what is no state."""
    numbers = [state.get(key) for key in ("count", "rank", "world")]
    texts = [state.get(key) for key in ("before", "read")]
    if not all(isinstance(number, int) for number in numbers) or not all(
        isinstance(text, str) for text in texts
    ):
        raise UsageError("state of a loader", why="it has no state of an epoch that is read cached-first")
    return _from_text(state["before"]), _from_text(state["read"])


def _has(bitmap: bytes | bytearray, number: int) -> bool:
    return number >> 3 < len(bitmap) and bool(bitmap[number >> 3] >> (number & 7) & 1)


def _numbers_in(bitmap: bytes) -> Iterator[int]:
    for index, byte in enumerate(bitmap):
        if byte:
            yield from (8 * index + bit for bit in range(8) if byte >> bit & 1)


def _stripped(bitmap: bytes | bytearray) -> bytes:
    return bytes(bitmap).rstrip(b"\0")


def _to_text(bitmap: bytes | bytearray) -> str:
    return base64.b64encode(zlib.compress(_stripped(bitmap))).decode()


def _from_text(text: str) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        return unpacker.decompress(base64.b64decode(text, validate=True), STATE_BYTES_MAX)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise UsageError("state of a loader", why=f"its bitmap is damaged: {error}") from None
