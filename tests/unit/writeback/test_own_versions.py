"""Another node asks for the origin's version of a file that it has replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import NoSpaceError
from headrace.base.model import Version
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import Upper
from headrace.writeback import sync_journal
from headrace.writeback.coherence.pending_names import OwnVersions
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

pytestmark = pytest.mark.root

PATH = b"/f"
PERSISTED = Version(3, 1, "tag")


class WriterFixture:
    """A node that has written a file, and persists it when it is asked. demotes: the file leaves the layer at once."""

    def __init__(self, folder: Path, *, demotes: bool) -> None:
        self.upper = Upper(str(folder / "upper"))
        self.upper.make()
        self.journal = SyncJournal(str(folder / "known.db"))
        with open(self.upper.at(PATH).open(os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.write(b"abc")
        status = self.upper.at(PATH).lstat()
        self.pending = PendingVersion("n0", status.st_ino, status.st_ctime_ns)
        self.demotes = demotes
        self.persisted = 0

    async def resolve(self, pending: PendingVersion) -> Version | None:
        return await OwnVersions(self.upper, self.journal, self._persist).resolve_version(PATH, pending)

    async def _persist(self, path: bytes) -> None:
        self.persisted += 1
        pending = self.pending
        self.journal.note(JournalRecord(path, pending.inode, pending.ctime_ns, 3, PERSISTED))
        if self.demotes:
            self.upper.at(path).unlink()
            self.journal.drop_demoted(path)


@pytest.fixture(params=[False, True], ids=["stays", "demoted"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WriterFixture]:
    writer = WriterFixture(tmp_path, demotes=request.param)
    yield writer
    writer.journal.close()


async def test_a_file_is_persisted_and_known_also_after_its_demotion(writer: WriterFixture) -> None:
    for _ in range(2):
        assert await writer.resolve(writer.pending) == PERSISTED
    assert writer.persisted == 1


async def test_a_version_that_was_replaced_before_is_not_known(writer: WriterFixture) -> None:
    assert await writer.resolve(PendingVersion("n0", writer.pending.inode, 1)) is None
    assert await writer.resolve(writer.pending) == PERSISTED
    assert await writer.resolve(PendingVersion("n0", writer.pending.inode, 1)) is None


async def test_a_demoted_file_is_known_after_a_restart(tmp_path: Path) -> None:
    """Another node that replaced the file may ask the next run of its writer."""
    writer = WriterFixture(tmp_path, demotes=True)
    assert await writer.resolve(writer.pending) == PERSISTED
    writer.journal.close()
    writer.journal = SyncJournal(str(tmp_path / "known.db"))
    assert await writer.resolve(writer.pending) == PERSISTED
    assert await writer.resolve(PendingVersion("n0", writer.pending.inode, 1)) is None
    writer.journal.close()


def test_few_demoted_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_journal, "DEMOTED_ROWS_MAX", 2)
    table = SyncJournal(str(tmp_path / "known.db"))
    for name in (b"/b", b"/a", b"/none", b"/c", b"/a"):
        if name != b"/none":
            table.note(JournalRecord(name, 1, 1, 3, PERSISTED))
        table.drop_demoted(name)
    assert [table.demoted(name, 1, 1) for name in (b"/a", b"/b", b"/c")] == [PERSISTED, None, PERSISTED]
    assert table.get(b"/a") is None
    table.close()


def test_only_what_the_origin_has_is_known_as_demoted(tmp_path: Path) -> None:
    table = SyncJournal(str(tmp_path / "known.db"))
    begun, removed = (
        JournalRecord(b"/b", 1, 1, 3, PERSISTED, begun=True),
        JournalRecord.removed(b"/r", PERSISTED),
    )
    for row in (begun, removed, JournalRecord.made(b"/d", 1, None, begun=False)):
        table.note(row)
        table.drop_demoted(row.path)
        assert table.get(row.path) is None
        assert table.demoted(row.path, row.inode, row.ctime_ns) is None
    table.close()


def test_a_full_disk_keeps_no_row_of_a_demoted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row must not describe a later file that looks alike."""
    table = SyncJournal(str(tmp_path / "known.db"))
    table.note(JournalRecord(b"/a", 1, 1, 3, PERSISTED))
    monkeypatch.setattr(sync_journal, "_ADD_DEMOTED", "SELECT no_space(?, ?, ?, ?, ?, ?)")
    monkeypatch.setattr(sync_journal, "_translated", lambda path, error: NoSpaceError(path, why=str(error)))
    table.drop_demoted(b"/a")
    assert table.get(b"/a") is None and table.demoted(b"/a", 1, 1) is None
    table.close()


@pytest.mark.parametrize("state", ["8000000000000000-1", "-1-1", "1-8000000000000000", "1-" + "f" * 99])
def test_a_token_with_impossible_numbers_is_invalid(state: str) -> None:
    assert PendingVersion.parse(f"written-by/n0/{state}") is None


def test_a_file_of_before_1970_has_a_token() -> None:
    pending = PendingVersion("n0", 5, -7)
    assert PendingVersion.parse(pending.token) == pending
