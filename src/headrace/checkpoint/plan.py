"""Decide, as pure functions: the chunks of a leaf, full or incremental saves, the staging memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
INLINE_BYTES_MAX = 256
"""Largest leaf that the manifest contains. Optimizers keep a step count of 4 bytes for each parameter."""


@dataclass(frozen=True, slots=True)
class LeafRange:
    """Describe a run of a leaf's chunks in one slot. start, end: bytes of the leaf; offset: in the slot."""

    leaf: int
    start: int
    end: int
    offset: int


def align(size_bytes: int, to_bytes: int) -> int:
    """Return the size, rounded up to a multiple."""
    return -(-size_bytes // to_bytes) * to_bytes


def pieces_of(
    leaf: int, size_bytes: int, used_bytes: int, *, slot_bytes: int, chunk_bytes: int, align_bytes: int
) -> Iterator[LeafRange | None]:
    """Yield the pieces of a leaf for the current slot and the next ones; None requests a new slot.

    A chunk never spans two slots, and begins at a multiple of align_bytes. slot_bytes is a multiple of chunk_bytes,
    which is a multiple of align_bytes.
    """
    start, offset = 0, align(used_bytes, align_bytes)
    while start < size_bytes:
        free_bytes = slot_bytes - offset
        remaining_bytes = size_bytes - start
        piece_bytes = (
            remaining_bytes if remaining_bytes <= free_bytes else free_bytes // chunk_bytes * chunk_bytes
        )
        if piece_bytes <= 0:
            yield None
            offset = 0
            continue
        yield LeafRange(leaf, start, start + piece_bytes, offset)
        start, offset = start + piece_bytes, align(offset + piece_bytes, align_bytes)


def chunks_of(piece: LeafRange, chunk_bytes: int) -> list[LeafRange]:
    """Return the chunks of a piece: chunk_bytes each, except for the last chunk of a leaf."""
    return [
        LeafRange(piece.leaf, start, min(start + chunk_bytes, piece.end), piece.offset + start - piece.start)
        for start in range(piece.start, piece.end, chunk_bytes)
    ]


def is_full(
    *, base_packs: int, chain_max: int, total_bytes: int, changed_bytes: int, full_share: float
) -> bool:
    """Return whether a save should refer to no older pack.

    That is so without a base, or if the save would refer to too many packs. It is also so if so much has changed that
    references would save little and keep old packs alive.
    """
    if base_packs == 0 or base_packs >= chain_max:
        return True
    return changed_bytes > full_share * total_bytes


def budget(state_bytes: int, *, slot_bytes: int, available_bytes: int) -> int:
    """Return the default host memory for staging, in bytes.

    Two states fit, so that one can be written while the next is copied. It is at most half of the free memory, and at
    least two slots.
    """
    two_states = 2 * (align(state_bytes, slot_bytes) + slot_bytes)
    return max(min(two_states, available_bytes // 2), 2 * slot_bytes)
