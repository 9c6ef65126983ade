"""Let plans say which files of a volume are evicted. The plans lie above the store, which is handed this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.base.model import FileId


class PlannedChoice(Protocol):
    """Knows which files are read when. Called from any thread, under the store's lock."""

    def add_volume(self, volume: int, size_of: Callable[[FileId], int]) -> None:
        """Add a volume before its first victims are chosen. Each group of files on a disk is a volume here, and so are
        its borrowed files, by a negative number: they go before all others. size_of: bytes of a file on it; 0 if it is
        not there."""
        ...

    def note_resident(self, id: FileId) -> None:
        """Note a file that is complete in the cache now."""
        ...

    def choose(self, volume: int, ids: Sequence[FileId], is_kept: Callable[[FileId], bool]) -> list[FileId]:
        """Return the files to evict instead of those that the policy of a volume chose. is_kept: whether a file must
        stay."""
        ...


class NoPlans:
    """The choice of a store without plans: the policy's."""

    def add_volume(self, volume: int, size_of: Callable[[FileId], int]) -> None:
        pass

    def note_resident(self, id: FileId) -> None:
        pass

    def choose(self, volume: int, ids: Sequence[FileId], is_kept: Callable[[FileId], bool]) -> list[FileId]:
        return list(ids)
