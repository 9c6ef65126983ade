"""Compare every cached byte with its checksum, and remove what no record names.

A file or directory that its disk can't read ends nothing: it is reported, and the others are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import CorruptIndexError, NoSpaceError, StoreError
from headrace.base.model import FileId
from headrace.store.index import Index
from headrace.store.recovery import bad_blocks, orphans
from headrace.store.schema import CachedFile
from headrace.store.volume import Volume

FsckProgress = Callable[[int, int, int, int], None]
OnSound = Callable[[CachedFile], None]
Fault = tuple[FileId, str]
"""A file and its fault."""
REASONS_MAX = 1000
"""Files whose error is kept. A dead disk has millions, and a job names no more than that."""
_UNCHECKED = "it can't be checked or repaired"


@dataclass(slots=True)
class FsckReport:
    """The result of fsck. Ids are counted once for each kind of fault. All faults were repaired, but those of files
    that could not be checked. problems: errors that concern no single file."""

    files_checked: int = 0
    bytes_checked: int = 0
    records_without_file: int = 0
    files_without_record: int = 0
    files_with_bad_blocks: int = 0
    unchecked: set[FileId] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.faults and not self.problems

    @property
    def repairs(self) -> int:
        """Return how many faults were repaired."""
        return self.records_without_file + self.files_without_record + self.files_with_bad_blocks

    def note_file(self, id: FileId, blocks: list[int] | None) -> None:
        """Note the bad blocks of a file, None if all of it was lost."""
        if blocks is None:
            self.records_without_file += 1
            self.faults.append((id, "its cache file is gone or unusable; dropped"))
        elif blocks:
            self.files_with_bad_blocks += 1
            self.faults.append((id, f"{len(blocks)} blocks are not what was written; dropped"))

    def note_unchecked(self, id: FileId, error: Exception) -> None:
        """Note a file whose check or repair failed, once: its record may be gone while the disk keeps the file."""
        if isinstance(error, CorruptIndexError):
            raise error
        if id not in self.unchecked:
            self.unchecked.add(id)
            reason = f"{_UNCHECKED}: {error}" if len(self.unchecked) <= REASONS_MAX else _UNCHECKED
            self.faults.append((id, reason))


def fsck(
    index: Index,
    volumes: list[Volume],
    *,
    settle: Callable[[CachedFile, list[int] | None], list[int] | None],
    drop_stray: Callable[[Volume, FileId], bool],
    progress: FsckProgress,
    on_sound: OnSound,
    bytes_total: int,
) -> FsckReport:
    """Verify every cached byte. settle: handles the bad blocks of a file, None if all of it is lost, and returns the
    actual ones. on_sound: called with complete files without a bad block. Raises CorruptIndexError."""
    report = FsckReport()
    total = index.statistics()["files"]
    for cached in index.cached_files():
        volume = volumes[cached.volume]
        try:
            blocks = settle(cached, bad_blocks(volume, cached))
            report.note_file(cached.id, blocks)
            if blocks == [] and cached.complete:
                on_sound(cached)
        except (StoreError, NoSpaceError) as error:
            report.note_unchecked(cached.id, error)
        report.files_checked += 1
        report.bytes_checked += volume.allocated(cached.id)
        progress(report.files_checked, total, report.bytes_checked, bytes_total)
    for volume, id in orphans(index, volumes, report.problems):
        try:
            if drop_stray(volume, id):
                report.files_without_record += 1
                report.faults.append((id, "a cache file that no record names; removed"))
        except (StoreError, NoSpaceError) as error:
            report.note_unchecked(id, error)
    return report
