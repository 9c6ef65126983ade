"""Name the group of a cache file, as policies decide it and the store keeps it."""

from __future__ import annotations

from typing import NamedTuple


class EvictionGroup(NamedTuple):
    """The files that compete with each other for space. priority: groups of a lower one give way first. tenant: empty
    for files of none."""

    priority: int = 0
    tenant: str = ""
