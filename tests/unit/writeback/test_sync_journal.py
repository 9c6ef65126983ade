"""The table of what origins have."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from headrace.base.model import Version
from headrace.overlay.dirty_throttle import PAUSE_S_MAX, DirtyThrottle
from headrace.writeback import sync_journal
from headrace.writeback.sync_journal import ABSENT, Conflict, JournalRecord, SyncJournal

PATH = b"/a/\xff name"


def test_rows_survive(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    row = JournalRecord(PATH, 7, 1_700_000_000_000_000_001, 5, Version(5, 6, '"tag"'))
    table.note(row)
    table.note(JournalRecord(b"/b", 8, 9, 10, ABSENT, begun=True, mtime_ns=11))
    table.close()
    table = SyncJournal(str(tmp_path / "known.db"))
    assert table.get(PATH) == row
    assert [(record.path, record.mtime_ns, record.put_id) for record in table.begun()] == [(b"/b", 11, "8-9")]
    table.drop(PATH)
    assert table.get(PATH) is None
    assert [record.path for record in table.rows()] == [b"/b"]
    table.close()


def test_rows_come_out_of_memory_and_out_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_journal, "CACHED_ROWS_MAX", 3)
    monkeypatch.setattr(sync_journal, "CHECKPOINT_ROWS", 8)
    path = str(tmp_path / "known.db")
    table = SyncJournal(path)
    assert table.get(b"/0") is None
    rows = [JournalRecord(b"/%d" % n, n, n + 1, n, Version(n, n)) for n in range(8)]
    for row in rows:
        assert not table.wants_checkpoint
        table.note(row)
    assert [table.get(row.path) for row in rows] == rows
    table.drop(b"/7")
    assert table.get(b"/7") is None
    assert table.wants_checkpoint
    log = tmp_path / "known.db-wal"
    before = (tmp_path / "known.db").stat().st_size
    table.checkpoint()
    assert not table.wants_checkpoint
    assert (tmp_path / "known.db").stat().st_size > before or log.stat().st_size == 0
    table.close()
    table = SyncJournal(path)
    assert [table.get(row.path) for row in rows] == [*rows[:7], None]
    table.close()


def test_what_a_row_describes(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"12345")
    status = os.stat(file)
    row = JournalRecord(PATH, status.st_ino, status.st_ctime_ns, 5, Version(5, 6))
    assert row.describes(status)
    assert not JournalRecord(PATH, status.st_ino, status.st_ctime_ns, 5, Version(5, 6), begun=True).describes(
        status
    )
    file.write_bytes(b"54321")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not row.describes(os.stat(file))


def test_removed_paths_are_remembered_and_the_oldest_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_journal, "REMOVED_ROWS_MAX", 2)
    table = SyncJournal(str(tmp_path / "known.db"))
    table.note(JournalRecord(b"/kept", 1, 1, 1, Version(1, 1)))
    table.note(JournalRecord(b"/begun", 1, 1, 1, ABSENT, begun=True))
    for number in range(5):
        table.note(JournalRecord(b"/%d" % number, 0, number + 1, -1, ABSENT))
    assert JournalRecord.removed(b"/x").is_absent
    assert not JournalRecord.removed(b"/x").is_directory
    table.forget_old_removals()
    assert sorted(record.path for record in table.rows()) == [b"/3", b"/4", b"/begun", b"/kept"]
    table.close()


def test_conflicts(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    table.add_conflict(Conflict(PATH, b"/kept", "why", 2.0))
    table.add_conflict(Conflict(b"/b", b"", "why", 1.0))
    assert [conflict.path for conflict in table.conflicts()] == [b"/b", PATH]
    table.forget_conflicts([b"/b"])
    assert table.conflicts() == [Conflict(PATH, b"/kept", "why", 2.0)]
    table.close()


def test_a_second_conflict_of_a_path_hides_no_first_one(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    table.add_conflict(Conflict(PATH, b"/kept", "why", 2.0))
    table.add_conflict(Conflict(PATH, b"/kept-1", "why", 3.0))
    assert [conflict.kept for conflict in table.conflicts()] == [b"/kept", b"/kept-1"]
    table.close()


def test_conflicts_of_an_earlier_release_are_kept(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "known.db")) as db:
        db.execute("CREATE TABLE conflicts (path BLOB PRIMARY KEY, kept BLOB, why TEXT, at_s REAL)")
        db.execute("INSERT INTO conflicts VALUES (?, ?, ?, ?)", (PATH, b"/kept", "why", 2.0))
        db.commit()
    for _ in range(2):
        table = SyncJournal(str(tmp_path / "known.db"))
        assert table.conflicts() == [Conflict(PATH, b"/kept", "why", 2.0)]
        table.close()


def test_pressure_grows_from_half_of_the_limit(tmp_path: Path) -> None:
    node, session = (DirtyThrottle(str(tmp_path / "pressure")) for _ in range(2))
    for waiting, pause_s in (
        (0, 0.0),
        (50, 0.0),
        (75, PAUSE_S_MAX / 2),
        (100, PAUSE_S_MAX),
        (900, PAUSE_S_MAX),
    ):
        node.set(waiting, 100)
        assert session.pause_s == pytest.approx(pause_s, abs=0.002)
    node.close()
    session.close()


def test_rows_of_a_folder(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    paths = (b"/a", b"/a/1", b"/a/2/3", b"/a-b", b"/a0", b"/b")
    rows = [JournalRecord(path, number, 1, 2, Version(3, 4)) for number, path in enumerate(paths)]
    table.note_all(rows)
    assert table.below(b"/a") == {b"/a/1": rows[1], b"/a/2/3": rows[2]}
    assert table.below(b"/") == {row.path: row for row in rows}
    assert [table.get(path) for path in paths] == rows


def test_rows_of_one_transaction_are_all_noted_or_none(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    broken = JournalRecord(b"/b", None, 1, 1, Version(1, 1))  # type: ignore[arg-type]
    with pytest.raises(sqlite3.Error):
        table.note_all([JournalRecord(b"/a", 1, 1, 1, Version(1, 1)), broken])
    assert table.get(b"/a") is None
    table.note(JournalRecord(b"/c", 1, 1, 1, Version(1, 1)))
    assert [row.path for row in table.rows()] == [b"/c"]
