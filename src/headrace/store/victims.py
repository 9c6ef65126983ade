"""Which files go when room is needed, kind by kind; the order is `steps`, and the policy's part is `eviction.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.base.model import FileId
from headrace.store.index import Index
from headrace.store.usage import Accounts
from headrace.store.volume import Volume

Step = Callable[[Volume, int, FileId | None], list[FileId]]
"""Volume, bytes needed, a file that must not go: files that together have so much, or all there are."""


class Victims:
    """is_open: whether somebody fills a file just now. Called under the store's lock."""

    def __init__(self, index: Index, accounts: Accounts, is_open: Callable[[FileId], bool]) -> None:
        self._index = index
        self._accounts = accounts
        self._is_open = is_open
        self.superseded: deque[FileId] = deque()
        self.steps: tuple[Step, ...] = (
            self.superseded_on,
            self.partial_idle,
            self.of_policy,
            self.partial_open,
        )
        """Superseded files first, then those nobody fills any more, then the policy's, then those being filled."""

    def superseded_on(self, volume: Volume, _: int, keep: FileId | None = None) -> list[FileId]:
        found: dict[FileId, None] = {}
        others: list[FileId] = []
        while self.superseded:
            id = self.superseded.popleft()
            cached = self._index.cached(id)
            if cached is None:
                continue
            # pinned or not: nobody can name it any more to unpin it
            if cached.volume == volume.number and id != keep:
                found[id] = None
            else:
                others.append(id)
        self.superseded.extend(others)
        return list(found)

    def partial_idle(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        return self._partials(volume, bytes_needed, keep, opened=False)

    def partial_open(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        return self._partials(volume, bytes_needed, keep, opened=True)

    def all_idle(self, volume: Volume) -> list[FileId]:
        """Return every file of a volume that nobody fills."""
        return self.of_policy(volume, volume.used_bytes) + self.partial_idle(volume, volume.used_bytes)

    def of_policy(self, volume: Volume, bytes_needed: int, _: FileId | None = None) -> list[FileId]:
        return self._accounts.policies[volume.number].victims(
            bytes_needed, lambda id: id in self._accounts.pinned or self._is_open(id)
        )

    def _partials(
        self, volume: Volume, bytes_needed: int, keep: FileId | None, *, opened: bool
    ) -> list[FileId]:
        found: list[FileId] = []
        pinned, policy = self._accounts.pinned, self._accounts.policies[volume.number]
        for id, number, size_bytes in self._accounts.partials():
            if bytes_needed <= 0:
                break
            if id == keep or id in pinned or number != volume.number or (not opened and id in policy):
                continue
            if self._is_open(id) == opened:
                found.append(id)
                bytes_needed -= size_bytes
        return found
