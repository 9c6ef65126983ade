"""Decide what a path of the upper layer needs, so that its origin has the same: three states become one action.

The states are the upper layer's, the origin's as the journal and BASE record it, and the index's, which others may have
changed. The decision has two stages. `step_of` is asked of every name by the scan, and needs no index. `reconcile` is
asked when it is the path's turn, with what is known by then, and returns the action with its precondition.

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


class SyncStep(IntEnum):
    """Order the work of a round: the steps of all its paths are taken in this order."""

    CLEAR = 1
    """Remove a file at the origin whose place a directory, a link or a special file has now."""
    MAKE = 2
    PUT = 3
    REMOVE = 4
    REMOVE_DIRECTORY = 5


class UpperKind(Enum):
    """Name what the upper layer has at a path. MODE_ROOT: a directory that exists because of the settings.
    REMOVED_DIRECTORY: one that hides the origin's. OTHER: a link, or a special file."""

    FILE = "file"
    DIRECTORY = "directory"
    MODE_ROOT = "mode's root"
    REMOVED_DIRECTORY = "removed directory"
    WHITEOUT = "whiteout"
    OTHER = "other"


class UpperEntry(msgspec.Struct, frozen=True, gc=False):
    """The entry of the upper layer at a path. base: the version that it replaces; not read, so None, for a file and for
    a whiteout."""

    kind: UpperKind
    status: os.stat_result
    base: Version | None = None


class WriterAnswer(Enum):
    """The answer of a writer for a base that it had not persisted. PERSISTED: the base is an origin's version now.
    REPLACED: the writer wrote the file again, or is gone."""

    PERSISTED = 1
    REPLACED = 2


class PathState(msgspec.Struct, frozen=True):
    """State of a path when its step is taken.

    row: of the journal. base: the version that the upper entry replaces, or removes. entry: of the index. is_shadowed:
    the index shows another node's write there. status: of what the upper layer has there by now. writer: the answer to
    AskFirst.WRITER. origin_asked: AskFirst.ORIGIN was answered, and the journal has what came of it.
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
    """Ask before deciding. WRITER: have the node that wrote the base persist it. ORIGIN: learn from the origin what
    became of an upload or a removal whose answer was lost."""

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
    """Remove the origin's directory if nothing is in it."""


@dataclass(frozen=True, slots=True)
class RecordRemoval:
    """Ask nothing of the origin, which has no file of ours. in_journal, in_index: where that is to be recorded."""

    in_journal: bool = False
    in_index: bool = False


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Drop our change: the name means what somebody else has there. conflict: the reason that users see; "": no
    conflict."""

    conflict: str = ""


@dataclass(frozen=True, slots=True)
class KeepFile:
    """Leave the origin as it is: the removed file is back, as the origin has it."""


Removal = RemoveFile | RemoveDirectory | RecordRemoval | GiveWay | KeepFile | AskFirst
Action = PutFile | MakeDirectory | Removal


def step_of(upper: UpperEntry, row: JournalRecord | None) -> SyncStep | None:
    """Return the step that a path needs; None if its origin has the same. row: of the journal."""
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
    """Return how a step is taken, and under which precondition. AskFirst: ask, then call again with the answer."""
    match step:
        case SyncStep.PUT:
            return _upload(state)
        case SyncStep.REMOVE:
            return _removal(state)
        case SyncStep.CLEAR:
            is_directory = state.row is not None and state.row.is_directory
            return RemoveDirectory() if is_directory and state.base is None else _removal(state)
        case SyncStep.MAKE:  # a file may have come there while the path waited for its turn
            return _removal(state) if state.row is not None and state.row.is_file else MakeDirectory()
        case SyncStep.REMOVE_DIRECTORY:
            return RemoveDirectory()


def replaces_file(row: JournalRecord | None, base: Version | None) -> bool:
    """Return whether the origin has a file, or may have one, where the upper layer has none now."""
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
    """Return the version that a removal is about; None if the origin has none of ours."""
    row, base = state.row, state.base
    if row is not None and row.is_there and not row.is_directory:
        return row.version
    if base is not None and (row is None or _is_newer(base, row, state)):
        return base
    if row is not None and row.is_absent:
        return None  # removed already; what the name means since then is somebody else's
    return None if is_pending(state.listed_file) else state.listed_file


def must_hide(state: PathState) -> bool:
    """Return whether a whiteout must stay after its removal and a new listing: the index has the removed file still."""
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
        return GiveWay()  # our upload did not happen: the origin's file, if any, is somebody else's
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
    # a node that removed it died before the index said so
    return RecordRemoval(in_index=state.listed_file is not None and row.was_removed(state.listed_file))


def _is_unanswered(state: PathState) -> bool:
    """Return whether the answer to an upload or a removal of a file was lost."""
    row = state.row
    return row is not None and row.begun and not row.is_directory and not state.origin_asked


def _is_newer(base: Version, row: JournalRecord, state: PathState) -> bool:
    """Return whether somebody put the base there after this node removed what the row describes. Then the index has it,
    unless it shows another node's write instead."""
    if row.was_removed(base):
        return False
    return state.is_shadowed or (state.entry is not None and state.entry.version == base)
