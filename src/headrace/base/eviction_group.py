"""Name the group of a cache file, as policies decide it and the store keeps it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.priority import Priority


class EvictionGroup(NamedTuple):
    """The files that compete with each other for space. tenant: empty for files of none."""

    priority: Priority = Priority.NORMAL
    tenant: str = ""
