"""Evict the files of a volume that other nodes own before its own ones."""

from __future__ import annotations

from dataclasses import replace

from headrace.base.model import FileId
from headrace.store.eviction import IsPinned, build_policy
from headrace.store.group_policy import GroupPolicy, SpaceRequest
from headrace.store.groups import FileGroups

BORROWED = -1
"""The number of the borrowed files where those of owned files have that of their group."""


class BorrowedFirst:
    """The files of one volume. Borrowed files, which other nodes own, have no group, and are evicted first.

    name: of build_policy. part: the volume's share of the node's capacity.
    """

    def __init__(self, name: str, groups: FileGroups, part: float) -> None:
        self.borrowed_bytes = 0
        self._owned = GroupPolicy(name, groups, part)
        self._borrowed = build_policy(name)

    def insert(self, id: FileId, size_bytes: int, *, borrowed: bool) -> None:
        self.remove(id)
        if borrowed:
            self.borrowed_bytes += size_bytes
        (self._borrowed if borrowed else self._owned).insert(id, size_bytes)

    def resize(self, id: FileId, size_bytes: int) -> None:
        """Set the size of a known file, which then counts as new again."""
        self.insert(id, size_bytes, borrowed=self._borrowed.size_of(id) > 0)

    def __contains__(self, id: FileId) -> bool:
        return self._owned.size_of(id) > 0 or self._borrowed.size_of(id) > 0

    def size_of(self, id: FileId) -> int:
        """Return the bytes of a file; 0 if it is not here."""
        return self._borrowed.size_of(id) or self._owned.size_of(id)

    def size_in(self, group: int, id: FileId) -> int:
        """Return the bytes of a file, if plans may choose it among that group; 0 for any other."""
        return self._borrowed.size_of(id) if group == BORROWED else self._owned.size_in(group, id)

    def touch(self, id: FileId) -> None:
        self._owned.touch(id)
        self._borrowed.touch(id)

    def remove(self, id: FileId) -> int:
        """Remove a file and return its size."""
        size_bytes = self._borrowed.remove(id)
        self.borrowed_bytes -= size_bytes
        return size_bytes or self._owned.remove(id)

    def victims(self, request: SpaceRequest) -> list[FileId]:
        """Return victims as in Policy. Plans choose among the borrowed files, and among those of each group: they know
        what this node reads, and not what other nodes request from it."""
        victims = self._borrowed.victims(request.bytes_needed, request.is_kept)
        if victims:
            victims = request.choose(BORROWED, victims)
        bytes_left = request.bytes_needed - sum(map(self._borrowed.size_of, victims))
        return victims + self._owned.victims(replace(request, bytes_needed=max(0, bytes_left)))

    def tenant_victims(self, request: SpaceRequest) -> list[FileId]:
        """Return victims among the owned files of the tenant that the request is within."""
        return self._owned.victims(request)

    def borrowed_victims(self, bytes_needed: int, is_pinned: IsPinned) -> list[FileId]:
        return self._borrowed.victims(bytes_needed, is_pinned)

    def regroup(self, id: FileId) -> None:
        """Move an owned file to its new group."""
        self._owned.regroup(id)
