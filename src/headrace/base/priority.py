"""The priorities of jobs, and of files that a policy names."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """Says who gives way: the lower one. Reads of training jobs precede jobs of all priorities."""

    HIGH = 0
    NORMAL = 1
    LOW = 2
