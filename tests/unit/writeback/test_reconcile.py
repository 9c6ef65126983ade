"""Every case of the decision on a path, against the tables of docs/internals/reconcile.md."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from headrace.base.model import Entry, FileId, Kind, Version
from headrace.origin.origin import Absent
from headrace.overlay.pending_version import PendingVersion
from headrace.writeback.reconcile import (
    Action,
    AskFirst,
    GiveWay,
    KeepFile,
    MakeDirectory,
    PathState,
    PutFile,
    RecordRemoval,
    RemoveDirectory,
    RemoveFile,
    SyncStep,
    UpperEntry,
    UpperKind,
    WriterAnswer,
    must_hide,
    reconcile,
    step_of,
)
from headrace.writeback.sync_journal import ABSENT, JournalRecord

PAGE = Path(__file__).resolve().parents[3] / "docs/internals/reconcile.md"
PATH = b"/data/file"
INODE, CTIME_NS, SIZE = 7, 70, 5
J, B, X = (Version(SIZE, 10, '"j"'), Version(6, 20, '"b"'), Version(8, 30, '"x"'))
PENDING = Version(6, 40, PendingVersion("writer", 3, 4).token)

OTHER_FILE = JournalRecord(PATH, INODE + 1, CTIME_NS, SIZE, J)
NEW_UPLOAD = JournalRecord(PATH, INODE, CTIME_NS, SIZE, ABSENT, begun=True)
DIRECTORY = JournalRecord.made(PATH, INODE, None, begun=False)
JOURNAL: dict[str, JournalRecord | None] = {
    "none": None,
    "file": OTHER_FILE,
    "this file": replace(OTHER_FILE, inode=INODE),
    "begun": NEW_UPLOAD,
    "begun over J": replace(NEW_UPLOAD, version=J),
    "removing J": JournalRecord.removal(PATH, J),
    "directory": replace(DIRECTORY, inode=INODE + 1),
    "making": replace(DIRECTORY, begun=True),
    "removed": JournalRecord.removed(PATH, Version(9, 50, '"r"')),
}
ANSWERED = {f"{name}, answered": JOURNAL[name] for name in ("begun", "begun over J", "removing J")}
JOURNAL_OF_STEPS = {**JOURNAL, "this directory": DIRECTORY}
JOURNAL_OF_ACTIONS = {**JOURNAL, "removed B": JournalRecord.removed(PATH, B)}
BASES = {"none": None, "B": B, "pending": PENDING, "pending, replaced": PENDING}
INDEX = {
    "none": None,
    "B": Entry(FileId(1), FileId(2), b"file", Kind.FILE, B),
    "X": Entry(FileId(1), FileId(2), b"file", Kind.FILE, X),
    "pending": Entry(FileId(1), FileId(2), b"file", Kind.FILE, PENDING),
    "directory": Entry(FileId(1), FileId(2), b"file", Kind.DIRECTORY, Version(0, 1)),
}
ACTIONS: dict[str, Action] = {
    "ask the writer": AskFirst.WRITER,
    "ask the origin": AskFirst.ORIGIN,
    "upload if absent": PutFile(Absent()),
    "upload over B": PutFile(B),
    "upload over J": PutFile(J),
    "give way": GiveWay(),
    "give way, conflict": GiveWay("another node wrote it again"),
    "keep the file": KeepFile(),
    "remove J": RemoveFile(J),
    "remove B": RemoveFile(B),
    "remove X": RemoveFile(X),
    "record in journal": RecordRemoval(in_journal=True),
    "record in index": RecordRemoval(in_index=True),
    "nothing": RecordRemoval(),
    "remove the directory": RemoveDirectory(),
    "make the directory": MakeDirectory(),
}


def status_of(mode: int) -> os.stat_result:
    values = (mode | 0o644, INODE, 1, 1, 0, 0, SIZE, 0, 0, 0)
    return os.stat_result(values, {"st_ctime_ns": CTIME_NS, "st_rdev": 0})


FILE_STATUS = status_of(stat.S_IFREG)


@cache
def section(title: str) -> list[tuple[str, ...]]:
    """Return the rows of the table below a heading."""
    text = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[1:]]


def matches(cell: str, value: str) -> bool:
    return cell == "*" or value in [word.strip() for word in cell.split(";")]


def rows_with(title: str, values: Sequence[str]) -> list[tuple[str, ...]]:
    return [row for row in section(title) if all(map(matches, row[:-1], values))]


def outcome(title: str, values: Sequence[str]) -> str:
    """Return the outcome of the only row of a table that has these values."""
    rows = rows_with(title, values)
    assert len(rows) == 1, f"{title}: {values} is in {len(rows)} rows"
    return rows[0][-1]


def state_of(journal: str, base: str, index: str) -> PathState:
    is_answered = journal.endswith(", answered")
    return PathState(
        row=ANSWERED[journal] if is_answered else JOURNAL_OF_ACTIONS[journal],
        base=BASES[base],
        entry=INDEX[index],
        is_shadowed=index == "pending",
        status=FILE_STATUS,
        writer=WriterAnswer.REPLACED if base == "pending, replaced" else None,
        origin_asked=is_answered,
    )


FACTS = list(itertools.product([*JOURNAL_OF_ACTIONS, *ANSWERED], BASES, INDEX))
MODES = {UpperKind.FILE: stat.S_IFREG, UpperKind.WHITEOUT: stat.S_IFCHR, UpperKind.OTHER: stat.S_IFLNK}


def test_the_step_of_a_path() -> None:
    for kind, journal, base in itertools.product(UpperKind, JOURNAL_OF_STEPS, ("none", "B")):
        entry = UpperEntry(kind, status_of(MODES.get(kind, stat.S_IFDIR)), BASES[base])
        step = step_of(entry, JOURNAL_OF_STEPS[journal])
        case = (kind.value, journal, base)
        assert ("—" if step is None else step.name) == outcome("What a path needs", case), case


@pytest.mark.parametrize(
    ("step", "title"), [(SyncStep.PUT, "Upload a file"), (SyncStep.REMOVE, "Remove a file")]
)
def test_the_action_and_its_precondition(step: SyncStep, title: str) -> None:
    for case in FACTS:
        assert reconcile(step, state_of(*case)) == ACTIONS[outcome(title, case)], case


@pytest.mark.parametrize("step", [SyncStep.CLEAR, SyncStep.MAKE, SyncStep.REMOVE_DIRECTORY])
def test_what_is_in_the_way_is_removed_like_a_file(step: SyncStep) -> None:
    for case in FACTS:
        journal, base, _ = case
        rows = rows_with("Make room at the origin", (step.name, journal, base))
        expected = rows[0][-1] if rows else outcome("Remove a file", case)
        assert len(rows) <= 1
        assert reconcile(step, state_of(*case)) == ACTIONS[expected], case


def test_when_a_whiteout_has_done_its_work() -> None:
    for case in itertools.product(JOURNAL_OF_ACTIONS, BASES, INDEX):
        expected = outcome("Drop a whiteout", case)
        assert ("keep" if must_hide(state_of(*case)) else "drop") == expected, case


def test_a_base_that_its_writer_persisted_is_removed_as_an_origins() -> None:
    state = PathState(row=None, base=B, writer=WriterAnswer.PERSISTED)
    assert reconcile(SyncStep.REMOVE, state) == RemoveFile(B)
