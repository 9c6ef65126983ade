"""What a save and a restore decide, pure: chunks of a leaf, full or incremental, how much memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
INLINE_BYTES_MAX = 256
"""A leaf up to that size lies in the manifest: optimizers keep a step count of 4 bytes for each parameter."""


@dataclass(frozen=True, slots=True)
class LeafRange:
    """A run of a leaf's chunks that goes into one slot. start, end: bytes of the leaf; offset: in the slot."""

    leaf: int
    start: int
    end: int
    offset: int


def align(size_bytes: int, to_bytes: int) -> int:
    return -(-size_bytes // to_bytes) * to_bytes


def pieces_of(
    leaf: int, size_bytes: int, used_bytes: int, *, slot_bytes: int, chunk_bytes: int, align_bytes: int
) -> Iterator[LeafRange | None]:
    """How a leaf goes into the slot in use and into following ones; None: another slot is begun.

    A chunk never lies in two slots, and begins at a multiple of align_bytes. slot_bytes is a multiple of chunk_bytes,
    and that of align_bytes.
    """
    start, offset = 0, align(used_bytes, align_bytes)
    while start < size_bytes:
        room = slot_bytes - offset
        left = size_bytes - start
        taken = left if left <= room else room // chunk_bytes * chunk_bytes
        if taken <= 0:
            yield None
            offset = 0
            continue
        yield LeafRange(leaf, start, start + taken, offset)
        start, offset = start + taken, align(offset + taken, align_bytes)


def chunks_of(piece: LeafRange, chunk_bytes: int) -> list[LeafRange]:
    """The chunks of a piece: chunk_bytes each, only a leaf's last one is shorter."""
    return [
        LeafRange(piece.leaf, start, min(start + chunk_bytes, piece.end), piece.offset + start - piece.start)
        for start in range(piece.start, piece.end, chunk_bytes)
    ]


def is_full(
    *, base_packs: int, chain_max: int, seen_bytes: int, changed_bytes: int, full_share: float
) -> bool:
    """Whether a save refers to no older pack: there is none; those referred to are too many; or so much has changed
    that referring saves little and keeps old packs alive."""
    if base_packs == 0 or base_packs >= chain_max:
        return True
    return changed_bytes > full_share * seen_bytes


def budget(state_bytes: int, *, slot_bytes: int, available_bytes: int) -> int:
    """Host memory for staging when the user gave none: two states, so that one can be written while the next is
    copied; half of what is free at most, two slots at least."""
    wanted = 2 * (align(state_bytes, slot_bytes) + slot_bytes)
    return max(min(wanted, available_bytes // 2), 2 * slot_bytes)
