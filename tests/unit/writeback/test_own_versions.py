"""Another node asks for the origin's version of a file that it has replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.model import Version
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import Upper
from headrace.writeback import sync_journal
from headrace.writeback.coherence.pending_names import OwnVersions
from headrace.writeback.sync_journal import ABSENT, JournalRecord, SyncJournal

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
            self.journal.drop(path)


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


def test_few_dropped_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_journal, "DROPPED_ROWS_MAX", 2)
    table = SyncJournal(str(tmp_path / "known.db"))
    for name in (b"/a", b"/b", b"/c"):
        table.note(JournalRecord(name, 1, 1, 3, ABSENT))
    table.drop(b"/b", b"/a", b"/none")
    table.drop(b"/c")
    assert list(table.dropped) == [b"/a", b"/c"]
    table.close()
