"""Keep the files that other nodes own within their share of the cache."""

from __future__ import annotations

from headrace.base.model import FileId
from headrace.store.borrowed_first import BORROWED
from headrace.store.usage import Accounts
from headrace.store.volume import Volume


class BorrowedSpace:
    """The space of borrowed files. share: of the capacity of each disk."""

    def __init__(self, accounts: Accounts, disks: list[Volume], share: float) -> None:
        self.share = share
        self._accounts = accounts
        self._disks = disks

    @property
    def room_bytes(self) -> int | None:
        """Return the bytes of borrowed files that fit beside those that are here; negative if some must go. None
        without borrowed files."""
        if not any(policy.borrowed_bytes for policy in self._accounts.policies):
            return None
        return sum(map(self.room_on, self._disks))

    def room_on(self, volume: Volume) -> int:
        """Return the bytes of borrowed files that fit on a volume; negative if some must go."""
        borrowed_bytes = self._accounts.policies[volume.number].borrowed_bytes
        return int(self.share * volume.capacity_bytes) - borrowed_bytes

    def can_keep(self, size_bytes: int) -> bool:
        """Return whether a borrowed file of that size fits in the share of a disk that has no other."""
        return any(size_bytes <= int(self.share * volume.capacity_bytes) for volume in self._disks)

    def victims(self, volume: Volume, bytes_needed: int) -> list[FileId]:
        """Return borrowed files of a volume to evict. Plans choose which."""
        accounts = self._accounts
        ids = accounts.policies[volume.number].borrowed_victims(bytes_needed, accounts.is_kept)
        return accounts.choose(volume.number, accounts.is_kept, BORROWED, ids)
