"""Know of which files or extents each sample is made: as the job names them, or as its workers open them."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import FileId, Kind
from headrace.base.namespace_path import split
from headrace.namespace.namespace import Namespace
from headrace.plan.extent_map import ExtentMap
from headrace.plan.file_numbers import NO_FILE, FileNumbers
from headrace.plan.mapped import mapped_numbers

FILES_A_SAMPLE_MAX = 8
"""Files of a sample that are kept. A sample that opens more is planned with the first ones."""
NAMES_A_TURN = 256
"""Names that are looked up before others have their turn on the loop: some 3 ms."""
_FOLDER_BYTES_KEPT = 16 << 20
_PATH_BYTES_MAX = 4096


class FileFinder:
    """Finds the ids of paths in the index. A directory is listed at its origin once, if the index does not have it."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._folders: dict[bytes, FileId] = {}
        self._folder_bytes = 0

    def forget(self) -> None:
        """Forget which directories were listed: the next plans list them again."""
        self._folders.clear()
        self._folder_bytes = 0

    async def ids_of(self, paths: Sequence[bytes]) -> list[FileId | None]:
        """Return the id of each file; None for a path without one, or whose origin can't tell."""
        ids: list[FileId | None] = []
        missing: set[bytes] = set()  # directories that this call looks up once
        for count, path in enumerate(paths):
            if count % NAMES_A_TURN == NAMES_A_TURN - 1:
                await asyncio.sleep(0)
            is_path = path.startswith(b"/") and len(path) <= _PATH_BYTES_MAX
            folder, name = split(path) if is_path else (b"", b"")
            directory = await self._directory(folder, missing) if name else None
            entry = None if directory is None else self._namespace.tree.index.lookup(directory, name)
            ids.append(entry.id if entry is not None and entry.kind is Kind.FILE else None)
        return ids

    async def _directory(self, folder: bytes, missing: set[bytes]) -> FileId | None:
        if folder in self._folders or folder in missing:
            return self._folders.get(folder)
        try:
            entry = await self._namespace.resolver.resolve(folder)
            await self._namespace.listings.list(entry.id)
        except HeadraceError:
            missing.add(folder)
            return None
        if self._folder_bytes > _FOLDER_BYTES_KEPT:
            self.forget()
        self._folder_bytes += len(folder)
        self._folders[folder] = entry.id
        return entry.id


class SampleMap:
    """The files of the samples of one data set, by number. is_reliable: no sample has opened other files than the map
    says. extents: of samples that are parts of files; empty if they are whole files.

    Each sample has equally many places for files, `width`; places without a file have NO_FILE. Their memory is used
    as they are written: whoever announces many samples and names none takes none.
    """

    def __init__(self, samples: int, numbers: FileNumbers) -> None:
        self.samples = samples
        self.is_reliable = True
        self._numbers = numbers
        self._columns = [mapped_numbers(samples)]
        self._unknown = samples
        self._named = 0  # samples before it are named
        self.extents = ExtentMap(numbers)

    @property
    def width(self) -> int:
        return max(len(self._columns), self.extents.width)

    @property
    def is_complete(self) -> bool:
        """Return whether a file is known for each sample."""
        return self._unknown == 0

    @property
    def has_files(self) -> bool:
        """Return whether a file or an extent of the data set is known."""
        return self._unknown < self.samples or len(self.extents) > 0

    @property
    def all_named(self) -> bool:
        """Return whether the job has named the files of all samples, though some may not exist."""
        return self._samples_named >= self.samples

    @property
    def _samples_named(self) -> int:
        return max(self._named, self.extents.samples)

    def is_named(self, first: int, count: int) -> bool:
        """Return whether these samples are named already: processes of a job name the same data set at once. Raise
        UsageError for samples that the data set does not have, or that do not follow those which are named."""
        if first + count > self.samples:
            raise UsageError(f"names of samples from {first} on", why=f"the data set has {self.samples}")
        if first > self._samples_named:
            raise UsageError(
                f"names of samples from {first} on", why=f"those from {self._samples_named} on come next"
            )
        return first + count <= self._samples_named

    def name(self, first: int, ids: Sequence[FileId | None]) -> None:
        """Set the files of consecutive samples. What was named first stays."""
        for index, id in enumerate(ids, first):
            if index >= self._named:
                self._named = index + 1
                if id is not None:
                    self.learn(index, id, width_max=1)

    @property
    def sample_bytes(self) -> float:
        """Return the mean bytes of a sample, if samples are parts of files."""
        return self.extents.bytes / max(1, self.samples)

    def learn(self, index: int, id: FileId, *, width_max: int = FILES_A_SAMPLE_MAX) -> None:
        """Note that a sample opened a file. width_max: files of a sample for which there is memory.

        The map is unreliable from then on if a sample that was known, and has no free place, opens another one. Without
        numbers for more files nothing is learned.
        """
        is_whole = index < self.samples and not len(
            self.extents
        )  # else the same file is opened for many samples
        number = self._numbers.add(id) if is_whole else NO_FILE
        if number == NO_FILE:
            return
        for column in self._columns:
            if column[index] in (NO_FILE, number):
                if column is self._columns[0] and column[index] == NO_FILE:
                    self._unknown -= 1
                column[index] = number
                return
        if self.is_complete:
            self.is_reliable = False
        elif len(self._columns) < width_max:
            self._columns.append(mapped_numbers(self.samples))
            self._columns[-1][index] = number

    def files_of(self, samples: array[int], width: int) -> array[int]:
        """Return the file numbers of samples, `width` for each. Raise UsageError for a sample that does not exist."""
        columns = self._columns[:width]
        try:
            if width == 1:
                return array("I", map(columns[0].__getitem__, samples))
            return array("I", (column[sample] for sample in samples for column in columns))
        except IndexError:
            raise self._beyond() from None

    def check_order(self, samples: array[int]) -> None:
        """Raise UsageError for a sample that does not exist."""
        if max(samples, default=0) >= max(1, self.samples):
            raise self._beyond()

    def _beyond(self) -> UsageError:
        return UsageError("the order of a plan", why=f"the data set has only {self.samples} samples")
