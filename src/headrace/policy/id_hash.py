"""Hash file ids, which may follow each other or be random."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def hash_of(id: int) -> int:
    """Return 64 bits that depend on all bits of an id (splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (id ^ id >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
