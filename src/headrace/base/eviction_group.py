"""Name the group of a cache file, as policies decide it and the store keeps it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.priority import Priority


class EvictionGroup(NamedTuple):
    """The files that compete with each other for space. tenants: the one that they belong to comes last, after its
    parents; empty for files of none."""

    priority: Priority = Priority.NORMAL
    tenants: tuple[str, ...] = ()
