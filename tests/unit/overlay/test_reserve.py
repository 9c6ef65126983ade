"""Room that is kept on a disk that others fill: a small file system of its own, filled to the last block."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import NoSpaceError
from headrace.base.model import Version
from headrace.overlay.reserve import SPARES, Reserve
from headrace.store.index import Index
from headrace.store.room import keep_index_room, reserve_readers
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass


def rows(count: int, word: str) -> list[JournalRecord]:
    return [
        JournalRecord(f"/{word}/{n}".encode(), n, n, n, Version(n, n, "token" * 20)) for n in range(count)
    ]


def test_a_spare_is_spent_and_made_again(disk: Path) -> None:
    reserve = Reserve(str(disk))
    reserve.refill(16 * MIB)
    assert len(os.listdir(disk / "reserve")) == SPARES
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        (disk / "more").write_bytes(bytes(MIB // 4))
    reserve.spend(lambda: (disk / "more").write_bytes(bytes(MIB // 4)))
    assert len(os.listdir(disk / "reserve")) == SPARES - 1
    (disk / "ballast").unlink()
    reserve.refill(MIB)
    assert len(os.listdir(disk / "reserve")) == SPARES


def test_without_a_spare_left_it_fails(disk: Path) -> None:
    reserve = Reserve(str(disk))
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        reserve.spend(lambda: (disk / "more").write_bytes(bytes(MIB)))


def test_the_table_is_written_on_a_full_disk(disk: Path) -> None:
    reserve = Reserve(str(disk))
    reserve.refill(16 * MIB)
    table = SyncJournal(str(disk / "known.db"), reserve)
    fill(disk)
    noted = [rows(20, f"{turn}") for turn in range(100)]  # more than the log has room for at one time
    for some in noted:
        table.note_all(some)
    table.close()
    fill(disk)  # what the log had is gone
    table = reserve.spend(lambda: SyncJournal(str(disk / "known.db"), reserve))
    assert sum(1 for _ in table.rows()) == 2000
    assert table.get(noted[7][3].path) == noted[7][3]
    table.close()


def test_a_table_that_has_no_room_says_so_and_goes_on_when_it_has(disk: Path) -> None:
    table = SyncJournal(str(disk / "known.db"))
    fill(disk)
    with pytest.raises(NoSpaceError):
        table.note_all(rows(2000, "many"))
    (disk / "ballast").unlink()
    table.note_all(rows(2000, "many"))
    assert sum(1 for _ in table.rows()) == 2000
    table.close()


def test_the_index_is_opened_and_written_on_a_full_disk(disk: Path) -> None:
    reserve, folder = Reserve(str(disk)), str(disk / "index")
    reserve_readers(folder, reserve)
    index = Index.open(folder, writable=True)
    index.state.checkpoint()
    keep_index_room(folder, reserve)
    fill(disk)
    index.close(clean=False)
    for turn in range(5):
        index = Index.open(folder, writable=True)
        for name in range(20):
            index.names.put_file(1, f"{turn} {name}".encode(), Version(1, 2, "t"))  # type: ignore[arg-type]
            index.state.checkpoint()
        index.close(clean=turn % 2 == 0)
    index = Index.open(folder, writable=True)
    assert len([*index.children(1)]) == 100  # type: ignore[arg-type]
    index.close(clean=False)


def test_an_index_without_room_is_no_damaged_one(disk: Path) -> None:
    index = Index.open(str(disk / "index"), writable=True)
    fill(disk)
    with pytest.raises(NoSpaceError):
        for name in range(10_000):
            index.names.put_file(1, f"{name}".encode(), Version(1, 2, "t"))  # type: ignore[arg-type]
    (disk / "ballast").unlink()
    index.names.put_file(1, b"after", Version(1, 2, "t"))  # type: ignore[arg-type]
    index.close(clean=True)
