"""Bound the times of files: databases and messages store 64 bits of nanoseconds, and file systems have other times."""

from __future__ import annotations

TIME_NS_MIN, TIME_NS_MAX = -(1 << 63), (1 << 63) - 1
"""The years 1677 and 2262. ext4 has times up to 2446, XFS up to 2486, and btrfs of any 64 bits of seconds."""


def stored_ns(time_ns: int) -> int:
    """Return a file's time in nanoseconds, or the nearest one that can be stored."""
    return min(max(time_ns, TIME_NS_MIN), TIME_NS_MAX)
