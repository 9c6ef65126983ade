"""Know which files each sample of a data set is made of: as the job names them, or as its workers open them."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import FileId, Kind
from headrace.base.namespace_path import split
from headrace.namespace.namespace import Namespace
from headrace.plan.file_numbers import NO_FILE, FileGroup

FILES_A_SAMPLE_MAX = 8
"""Files of a sample that are kept. A sample that opens more is planned with the first ones."""
NAMES_A_TURN = 256
"""Names that are looked up before others have their turn on the loop: some 3 ms."""
_FOLDERS_KEPT = 100_000


class FileFinder:
    """Finds the ids of paths in the index. A directory is listed at its origin once, if the index does not have it."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._folders: dict[bytes, FileId | None] = {}

    async def ids_of(self, paths: Sequence[bytes]) -> list[FileId | None]:
        """Return the id of each file; None for a path without one, or whose origin can't tell."""
        ids: list[FileId | None] = []
        for count, path in enumerate(paths):
            if count % NAMES_A_TURN == NAMES_A_TURN - 1:
                await asyncio.sleep(0)
            folder, name = split(path) if path.startswith(b"/") else (b"", b"")
            directory = await self._directory(folder) if name else None
            entry = None if directory is None else self._namespace.tree.index.lookup(directory, name)
            ids.append(entry.id if entry is not None and entry.kind is Kind.FILE else None)
        return ids

    async def _directory(self, folder: bytes) -> FileId | None:
        if folder in self._folders:
            return self._folders[folder]
        if len(self._folders) >= _FOLDERS_KEPT:
            self._folders.clear()
        try:
            entry = await self._namespace.resolver.resolve(folder)
            await self._namespace.listings.list(entry.id)
            directory = entry.id if entry.kind is Kind.DIRECTORY else None
        except HeadraceError:
            directory = None
        self._folders[folder] = directory
        return directory


class SampleMap:
    """The files of the samples of one data set, by number. is_reliable: no sample has opened other files than the map
    says.

    Each sample has equally many places for files, `width`; places without a file have NO_FILE.
    """

    def __init__(self, samples: int, group: FileGroup) -> None:
        self.samples = samples
        self.is_reliable = True
        self._group = group
        self._columns = [array("I", bytes(4 * samples))]
        self._unknown = samples
        self._named = 0

    @property
    def width(self) -> int:
        return len(self._columns)

    @property
    def is_complete(self) -> bool:
        """Return whether a file is known for each sample."""
        return self._unknown == 0

    @property
    def all_named(self) -> bool:
        """Return whether the job has named the files of all samples, though some may not exist."""
        return self._named >= self.samples

    def name(self, first: int, ids: Sequence[FileId | None]) -> None:
        """Set the files of consecutive samples. Raise UsageError for samples that the data set does not have."""
        if first + len(ids) > self.samples:
            raise UsageError(f"names of samples from {first} on", why=f"the data set has {self.samples}")
        for index, id in enumerate(ids, first):
            self._named += 1
            if id is not None:
                self.learn(index, id)

    def learn(self, index: int, id: FileId) -> None:
        """Note that a sample opened a file. The map is unreliable from then on if a sample that was known, and has no
        free place, opens another one. A group that is full learns nothing."""
        number = self._group.add(id)
        if number == NO_FILE or index >= self.samples:
            return
        for column in self._columns:
            if column[index] in (NO_FILE, number):
                if column is self._columns[0] and column[index] == NO_FILE:
                    self._unknown -= 1
                column[index] = number
                return
        if self.is_complete:
            self.is_reliable = False
        elif len(self._columns) < FILES_A_SAMPLE_MAX:
            self._columns.append(array("I", bytes(4 * self.samples)))
            self._columns[-1][index] = number

    def files_of(self, samples: array[int]) -> array[int]:
        """Return the file numbers of samples, `width` for each. Raise UsageError for a sample that does not exist."""
        try:
            if self.width == 1:
                return array("I", map(self._columns[0].__getitem__, samples))
            return array("I", (column[sample] for sample in samples for column in self._columns))
        except IndexError:
            raise UsageError(
                "the order of a plan", why=f"the data set has only {self.samples} samples"
            ) from None
