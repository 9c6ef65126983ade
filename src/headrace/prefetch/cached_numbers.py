"""Look up in the cache what the numbers of plans stand for."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.model import FileId
from headrace.plan.file_numbers import NO_FILE
from headrace.plan.planned_files import PlannedFiles
from headrace.store.index import Index

HasBytes = Callable[[FileId, int, int], bool]
"""Takes a file id, a start and an end, and returns whether the cache has these bytes."""


class CachedNumbers:
    """The files and extents of plans, as the cache has them now. has_bytes: for a file that is not complete."""

    def __init__(self, planned: PlannedFiles, index: Index, has_bytes: HasBytes) -> None:
        self._planned = planned
        self._index = index
        self._has_bytes = has_bytes

    def has(self, number: int) -> bool:
        """Return whether a file, or an extent, needs no fetch: it is cached, or in no mount."""
        if number == NO_FILE:
            return True
        id = self._planned.numbers.id_of(number)
        cached = self._index.cached(id)
        if cached is None or cached.complete:
            return cached is not None
        extent = self._planned.numbers.extent_of(number)
        return extent is not None and self._has_bytes(id, *extent)
