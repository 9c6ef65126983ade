"""Decide what a path of the upper layer needs, so that its origin has the same: three states become one action.

The states are the upper layer's, the origin's as the journal and BASE record it, and the index's, which other writers
may have changed. The decision has two stages. `step_of` runs for every name of a scan, and needs no index. `reconcile`
runs when the path's turn comes, with the state of that moment, and returns the action with its precondition.

Nothing here reads or writes. docs/internals/reconcile.md has the table of all cases, which is also the unit test.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum, IntEnum

import msgspec

from headrace.base.model import Entry, Kind, Version
from headrace.origin.origin import Absent
from headrace.overlay.pending_version import is_pending
from headrace.writeback.sync_journal import JournalRecord

WRITTEN_AGAIN = "another node wrote it again"
"""Reason of a conflict that users see."""


class SyncStep(IntEnum):
    """Order the work of a round: the steps of all its paths are taken in this order."""

    CLEAR = 1
    """Remove a file at the origin in whose place the layer now has a directory, a link or a special file."""
    MAKE = 2
    PUT = 3
    REMOVE = 4
    REMOVE_DIRECTORY = 5


class UpperKind(Enum):
    """Name the kind of an upper entry. MODE_ROOT: a directory that exists because of the settings. REMOVED_DIRECTORY: a
    directory that hides the origin's. OTHER: a link, or a special file."""

    FILE = "file"
    DIRECTORY = "directory"
    MODE_ROOT = "mode's root"
    REMOVED_DIRECTORY = "removed directory"
    WHITEOUT = "whiteout"
    OTHER = "other"


class UpperEntry(msgspec.Struct, frozen=True, gc=False):
    """Hold the upper layer's entry at a path. base: the version that it replaces; None for a file and a whiteout, where
    it is not read."""

    kind: UpperKind
    status: os.stat_result
    base: Version | None = None


class WriterAnswer(Enum):
    """Name the answer of a writer about a base that it had not persisted. PERSISTED: the base is a version of the
    origin now. REPLACED: the writer replaced the file, or left the cluster."""

    PERSISTED = 1
    REPLACED = 2


class PathState(msgspec.Struct, frozen=True):
    """Hold the state of a path when its step is taken.

    row: the journal's. base: the version that the upper entry replaces or removes. entry: the index's. is_shadowed: the
    index shows another node's pending file there. status: the upper layer's entry at this moment. writer: the answer to
    AskFirst.WRITER. origin_asked: AskFirst.ORIGIN was answered, and the journal has the result.
    """

    row: JournalRecord | None
    base: Version | None = None
    entry: Entry | None = None
    is_shadowed: bool = False
    status: os.stat_result | None = None
    writer: WriterAnswer | None = None
    origin_asked: bool = False

    @property
    def listed_file(self) -> Version | None:
        """Return the version of the file that the index has; None if it has no file there."""
        return self.entry.version if self.entry is not None and self.entry.kind is Kind.FILE else None


class AskFirst(Enum):
    """Name a question that precedes the decision. WRITER: have the node that wrote the base persist it. ORIGIN: ask the
    origin what became of an upload or a removal whose answer was lost."""

    WRITER = "ask the writer"
    ORIGIN = "ask the origin"


@dataclass(frozen=True, slots=True)
class PutFile:
    """Upload the file if the origin has `condition`."""

    condition: Version | Absent


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make the directory if the origin has no file there."""


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove the origin's file if it has that version."""

    version: Version


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """Remove the origin's directory if it is empty."""


@dataclass(frozen=True, slots=True)
class RecordRemoval:
    """Record a removal without a request, as the origin has no file of this node. in_journal, in_index: where to record
    it."""

    in_journal: bool = False
    in_index: bool = False


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Drop this node's change, so that the name shows the other writer's entry. conflict: the reason that users see; ""
    if it is no conflict."""

    conflict: str = ""


@dataclass(frozen=True, slots=True)
class KeepFile:
    """Leave the origin as it is: the removed file is back, in the version that the origin has."""


Removal = RemoveFile | RemoveDirectory | RecordRemoval | GiveWay | KeepFile | AskFirst
Action = PutFile | MakeDirectory | Removal


def step_of(upper: UpperEntry, row: JournalRecord | None) -> SyncStep | None:
    """Return the step that a path needs; None if its origin has the same. row: the journal's."""
    kind = upper.kind
    if kind is UpperKind.FILE:
        return None if row is not None and row.describes(upper.status) else SyncStep.PUT
    if kind is UpperKind.WHITEOUT:
        return SyncStep.REMOVE
    if replaces_file(row, upper.base):
        return SyncStep.CLEAR
    if kind is UpperKind.OTHER:
        return SyncStep.CLEAR if row is not None and row.is_directory else None
    if kind is UpperKind.REMOVED_DIRECTORY:
        return SyncStep.REMOVE_DIRECTORY
    is_made = row is not None and row.inode == upper.status.st_ino and not row.begun
    return None if is_made or kind is UpperKind.MODE_ROOT else SyncStep.MAKE


def reconcile(step: SyncStep, state: PathState) -> Action:
    """Return the action of a step with its precondition. For AskFirst, ask, then call again with the answer."""
    match step:
        case SyncStep.PUT:
            return _upload(state)
        case SyncStep.REMOVE:
            return _removal(state)
        case SyncStep.CLEAR:
            is_directory = state.row is not None and state.row.is_directory
            return RemoveDirectory() if is_directory and state.base is None else _removal(state)
        case SyncStep.MAKE:  # a file may have been uploaded there while the path waited
            return _removal(state) if state.row is not None and state.row.is_file else MakeDirectory()
        case SyncStep.REMOVE_DIRECTORY:
            return RemoveDirectory()


def replaces_file(row: JournalRecord | None, base: Version | None) -> bool:
    """Return whether the origin has a file, or may have one, where the upper layer has none."""
    return base is not None or (row is not None and row.is_file)


def upload_condition(state: PathState) -> Version | Absent:
    """Return the condition of an upload whose questions are answered."""
    row, base = state.row, state.base
    if row is None:
        return base or Absent()
    if row.is_there and not row.is_directory:
        return row.version
    return base if base is not None and _is_newer(base, row, state) else Absent()


def version_to_remove(state: PathState) -> Version | None:
    """Return the version that a removal removes; None if the origin has none of this node's."""
    row, base = state.row, state.base
    if row is not None and row.is_there and not row.is_directory:
        return row.version
    if base is not None and (row is None or _is_newer(base, row, state)):
        return base
    return (
        None  # a file that the index has nevertheless is another writer's: the removed one did not replace it
    )


def must_hide(state: PathState) -> bool:
    """Return whether a whiteout must stay after its removal and a new listing, because the index still has the removed
    file."""
    version, row = state.listed_file, state.row
    if version is None:
        return False
    is_ours = row is None or not row.is_absent or row.was_removed(version)
    return is_ours or state.base == version


def _upload(state: PathState) -> PutFile | AskFirst:
    if is_pending(state.base):
        return AskFirst.WRITER
    if _is_unanswered(state):
        return AskFirst.ORIGIN
    return PutFile(upload_condition(state))


def _removal(state: PathState) -> Removal:
    row = state.row
    if state.writer is WriterAnswer.REPLACED:
        return GiveWay("" if state.listed_file is None else WRITTEN_AGAIN)
    if state.writer is None and is_pending(state.base):
        return AskFirst.WRITER
    if _is_unanswered(state):
        return AskFirst.ORIGIN
    if row is not None and row.begun and not row.is_there and state.base is None:
        return GiveWay()  # the upload did not happen: a file of the origin is another writer's
    if row is not None and state.status is not None and row.describes(state.status):
        return KeepFile()
    version = version_to_remove(state)
    if version is not None:
        return RemoveFile(version)
    return _record_removal(state)


def _record_removal(state: PathState) -> RecordRemoval:
    row = state.row
    if row is None or not row.is_absent:
        return RecordRemoval(in_journal=True)
    # a node died between the removal and the index's update
    return RecordRemoval(in_index=state.listed_file is not None and row.was_removed(state.listed_file))


def _is_unanswered(state: PathState) -> bool:
    """Return whether the answer to an upload or a removal of a file was lost."""
    row = state.row
    return row is not None and row.begun and not row.is_directory and not state.origin_asked


def _is_newer(base: Version, row: JournalRecord, state: PathState) -> bool:
    """Return whether another writer created the base there after this node removed the row's version. The index then
    has the base, or shows another node's pending file in its place."""
    if row.was_removed(base):
        return False
    return state.is_shadowed or (state.entry is not None and state.entry.version == base)
