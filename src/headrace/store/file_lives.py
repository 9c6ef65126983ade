"""Let a policy know which files are cached and used, so that it can let them expire. It lies above the store, which is
handed this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.base.model import FileId


class FileLives(Protocol):
    """Hears of cached files. Called from any thread, under the store's lock, for each file and each use: the calls must
    be quick."""

    def note_cached(self, id: FileId) -> None:
        """Note a file that the cache has now, whole or in part."""
        ...

    def note_used(self, ids: Iterable[FileId]) -> None:
        """Note uses of files, also of such that are not cached."""
        ...


class NoLives:
    """The lives of a store whose files never expire."""

    def note_cached(self, id: FileId) -> None:
        pass

    def note_used(self, ids: Iterable[FileId]) -> None:
        pass
