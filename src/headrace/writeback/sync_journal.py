"""Record what the origins have of the upper layer, in a table beside the layer that only the node uses.

A row says that the origin has the file at this path, with this inode number, size and ctime, as this version. The file
is clean while it still looks like that. The node writes a row as `begun` before an upload. After a crash such a row
means that the origin may have that file, although no result was recorded.

The table is SQLite in WAL mode. Recorded rows survive kill -9 and, after `sync`, a power loss. The node syncs the rows
of a change before it makes the change at the origin. It does not sync the rows of results, so a power loss may leave
them begun.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.base.beneath import SafePath
from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.model import Version
from headrace.base.printable import printable
from headrace.base.sync_folder import sync_folder
from headrace.overlay.reserve import Reserve
from headrace.overlay.syscalls import flush_file_system

_TABLES = """
CREATE TABLE IF NOT EXISTS known (
    path BLOB PRIMARY KEY, inode INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, version_bytes INTEGER NOT NULL, version_mtime_ns INTEGER NOT NULL,
    version_token TEXT NOT NULL, begun INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told_conflicts (
    path BLOB NOT NULL, kept BLOB NOT NULL, why TEXT NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (path, kept)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums (
    path BLOB PRIMARY KEY, inode INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, blocks BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS demoted (
    number INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, inode INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    version_bytes INTEGER NOT NULL, version_mtime_ns INTEGER NOT NULL, version_token TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS conflicts (
    path BLOB PRIMARY KEY, kept BLOB NOT NULL, why TEXT NOT NULL, at_s REAL NOT NULL
) WITHOUT ROWID;
INSERT OR IGNORE INTO told_conflicts SELECT path, kept, why, at_s FROM conflicts;
DROP TABLE conflicts;
"""
"""The statements that create the tables. `conflicts` is the table of older releases, which kept only the last conflict
of a path."""


JOURNAL_FILE = "known.db"
"""Name of the table in the directory of its layer."""
ABSENT = Version(-1, 0)
"""The version of a path without an entry at the origin, if no earlier version is known."""
DEMOTED_ROWS_MAX = 100_000
"""Most rows of demoted files. Older ones are deleted."""
CACHED_ROWS_MAX = 10_000
"""Most rows in memory. Each row is read several times around its upload, and a query takes 25 µs."""
CHECKPOINT_ROWS = 2_000
"""Recorded rows after which the log is copied into the table."""
REMOVED_ROWS_MAX = 100_000
"""Most rows of removed paths. Older ones are deleted."""


_ADD_DEMOTED = (
    "INSERT OR REPLACE INTO demoted (path, inode, ctime_ns, version_bytes, version_mtime_ns, version_token) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_DROP_OLD_DEMOTED = "DELETE FROM demoted WHERE number <= (SELECT max(number) FROM demoted) - ?"
_Change = tuple[str, Sequence[tuple[object, ...]]]
"""A statement, and the values of each time that it is executed."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """Hold a row: the origin's state of one path of the upper layer.

    version: the last one at the origin, as far as this node knows. A version of -1 bytes, like ABSENT, means that the
    origin has no entry there. If such a row is not begun, this node removed the path: a later upload to it replaces
    nothing, whatever its BASE says. The row then keeps the mtime and token of the removed version, because a late
    listing may still show it.

    A directory's version keeps those of the file that was removed before it, too. Otherwise only the directory's inode
    number counts. size_bytes -1 and begun: the node is removing the path.
    """

    path: bytes
    inode: int
    ctime_ns: int
    size_bytes: int
    version: Version
    begun: bool = False
    mtime_ns: int = 0

    @property
    def is_there(self) -> bool:
        """Return whether the origin has an entry at the path, as far as this node knows. If begun, it may be another
        one."""
        return self.version.size_bytes >= 0

    @property
    def is_directory(self) -> bool:
        """Return whether the row describes a directory."""
        return self.ctime_ns == 0 and self.is_there

    @property
    def is_file(self) -> bool:
        """Return whether the origin has a file at the path, or may have one."""
        return not self.is_directory and (self.is_there or self.begun)

    @property
    def is_absent(self) -> bool:
        """Return whether the path was removed at the origin."""
        return not self.is_there and not self.begun

    @property
    def is_removal(self) -> bool:
        """Return whether the node is removing the path at the origin; version is the one to remove."""
        return self.begun and self.size_bytes < 0

    @property
    def last_removed(self) -> Version:
        """Return the version that this node removed at the path before the present entry; ABSENT if unknown."""
        is_recorded = self.is_directory or not self.is_there
        return Version(-1, self.version.mtime_ns, self.version.token) if is_recorded else ABSENT

    def was_removed(self, version: Version) -> bool:
        """Return whether this node removed that version there."""
        last = self.last_removed
        return last != ABSENT and last == Version(-1, version.mtime_ns, version.token)

    @classmethod
    def removal(cls, path: bytes, version: Version) -> JournalRecord:
        """Return the row of a removal that is about to begin."""
        return cls(path, 0, time.time_ns(), -1, version, begun=True)

    @classmethod
    def removed(cls, path: bytes, last: Version = ABSENT) -> JournalRecord:
        """Return the row of a completed removal. last: the removed version."""
        return cls(path, 0, time.time_ns(), -1, Version(-1, last.mtime_ns, last.token))

    @classmethod
    def made(cls, path: bytes, inode: int, previous: JournalRecord | None, *, begun: bool) -> JournalRecord:
        """Return the row of a directory. previous: the row of the path before."""
        last = ABSENT if previous is None else previous.last_removed
        return cls(path, inode, 0, 0, Version(0, last.mtime_ns, last.token), begun)

    @property
    def put_id(self) -> str:
        """Return the id by which an uploaded object is recognized if the origin stores it."""
        return f"{self.inode:x}-{self.ctime_ns:x}"

    def describes(self, status: os.stat_result) -> bool:
        """Return whether a file still looks like the row. It is clean then."""
        return not self.begun and (self.inode, self.ctime_ns, self.size_bytes) == (
            status.st_ino,
            status.st_ctime_ns,
            status.st_size,
        )

    def open(self, safe_path: SafePath) -> int | None:
        """Open the file that the row describes, for reading; None if the path has another file, or none. The caller
        closes the descriptor."""
        try:
            fd = safe_path.open(os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        if self.describes(os.fstat(fd)):
            return fd
        os.close(fd)
        return None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Describe a name that another writer changed, too. kept: the path of this node's version now; b"" if only a
    removal was dropped."""

    path: bytes
    kept: bytes
    why: str
    at_s: float


class SyncJournal:
    """Read and write the journal's table. Only one thread at a time writes, and no other process. reserve: space for
    the table on a disk that becomes full."""

    def __init__(self, path: str, reserve: Reserve | None = None) -> None:
        self._path = path
        self._reserve = reserve
        self._cached: dict[bytes, JournalRecord | None] = {}
        self._notes = 0
        # open as long as SQLite: closing any descriptor of a file releases its locks (fcntl(2))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=0")
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            os.close(self._fd)
            raise _translated(self._path, error) from error
        try:
            self._log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            sync_folder(os.path.dirname(path))
        except OSError as error:
            self._db.close()
            os.close(self._fd)
            raise StoreError(f"table {path} can't be used", why=os.strerror(error.errno or 0)) from error
        self.reserve_space()
        self.unsure = {row.path for row in self.begun()}
        """Paths whose row is begun."""

    def get(self, path: bytes) -> JournalRecord | None:
        """Return the row of a path; None if there is none."""
        try:
            return self._cached[path]
        except KeyError:
            pass
        values = self._db.execute("SELECT * FROM known WHERE path = ?", (path,)).fetchone()
        row = None if values is None else _row(values)
        self._cache(path, row)
        return row

    def _cache(self, path: bytes, row: JournalRecord | None) -> None:
        if len(self._cached) >= CACHED_ROWS_MAX:
            self._cached.clear()
        self._cached[path] = row

    def note(self, row: JournalRecord) -> None:
        """Record a row."""
        self.note_all([row])

    def note_all(self, rows: list[JournalRecord]) -> None:
        """Record rows in one transaction."""
        self._notes += len(rows)
        values = [*map(_values, rows)]
        self._write(("INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values))
        for row in rows:
            self._cache(row.path, row)
            (self.unsure.add if row.begun else self.unsure.discard)(row.path)

    def _write(self, *changes: _Change) -> None:
        """Execute statements, each for all its values, in one transaction. Raises NoSpaceError if the log cannot grow
        even after a checkpoint."""
        try:
            _transact(self._db, self._path, changes)
        except NoSpaceError:
            self.checkpoint()
            _transact(self._db, self._path, changes)

    def reserve_space(self) -> None:
        """Allocate blocks before the table needs them, and all blocks that its log needs between two checkpoints."""
        if self._reserve is None:
            return
        with contextlib.suppress(OSError):  # another error of the disk appears when the table is used
            ahead_bytes = self._reserve.ahead_bytes
            self._reserve.allocate(self._fd, os.fstat(self._fd).st_size + ahead_bytes)
            log_fd = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._reserve.allocate(log_fd, ahead_bytes)
            finally:
                os.close(log_fd)

    def drop(self, *paths: bytes, also: Sequence[_Change] = ()) -> None:
        """Delete the rows of paths, in one transaction. also: further statements of it."""
        self._write(("DELETE FROM known WHERE path = ?", [(path,) for path in paths]), *also)
        for path in paths:
            self._cache(path, None)
            self.unsure.discard(path)

    def drop_demoted(self, path: bytes) -> None:
        """Delete the row of a demoted file. `demoted` knows its version from then on: another node may have replaced
        that file before it was persisted, and ask later. On a full disk the row is deleted all the same."""
        row = self.get(path)
        if row is not None and row.is_there and not row.begun and not row.is_directory:
            version = row.version
            values = path, row.inode, row.ctime_ns, version.size_bytes, version.mtime_ns, version.token
            with contextlib.suppress(NoSpaceError):
                self.drop(path, also=[(_ADD_DEMOTED, [values]), (_DROP_OLD_DEMOTED, [(DEMOTED_ROWS_MAX,)])])
                return
        self.drop(path)

    def demoted(self, path: bytes, inode: int, ctime_ns: int) -> Version | None:
        """Return the origin's version of a file that was demoted, by the file's state in the layer; None if no such
        file is known."""
        values = self._db.execute(
            "SELECT version_bytes, version_mtime_ns, version_token FROM demoted "
            "WHERE path = ? AND inode = ? AND ctime_ns = ?",
            (path, inode, ctime_ns),
        ).fetchone()
        return None if values is None else Version(*values)

    def sync(self) -> None:
        """Make all recorded rows durable, with all earlier changes, by any process, of names and attributes on the
        table's file system. Blocks for the disk. May run in any thread while others record rows. Raises OSError."""
        flush_file_system(self._log)

    @property
    def wants_checkpoint(self) -> bool:
        """Return whether the log is long enough for a checkpoint."""
        return self._notes >= CHECKPOINT_ROWS

    def checkpoint(self) -> None:
        """Copy the log into the table, with two flushes of the disk. May run in any thread while others record rows."""
        self._notes = 0
        try:
            with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise _translated(self._path, error) from error
        self.reserve_space()

    def rows(self, below: bytes | None = None) -> Iterator[JournalRecord]:
        """Return all rows, or those below a path, and read them one by one. The caller may change rows
        meanwhile, and may receive them as they were."""
        if below is None:
            return map(_row, self._db.execute("SELECT * FROM known"))
        top = below.rstrip(b"/")
        limits = top + b"/", top + b"0"
        return map(_row, self._db.execute("SELECT * FROM known WHERE path > ? AND path < ?", limits))

    def below(self, path: bytes) -> dict[bytes, JournalRecord]:
        """Return the rows below a path, by path, in a tenth of the time of as many calls of `get`."""
        return {row.path: row for row in self.rows(path)}

    def clean_files(self, after: bytes, most: int) -> list[JournalRecord]:
        """Return up to `most` rows of files that the origin has, as far as this node knows. They are sorted by path and
        follow `after`."""
        selected = self._db.execute(
            "SELECT * FROM known WHERE path > ? AND NOT begun AND version_bytes >= 0 AND ctime_ns != 0 "
            "ORDER BY path LIMIT ?",
            (after, most),
        )
        return [*map(_row, selected.fetchall())]

    def sums(self, row: JournalRecord) -> list[int] | None:
        """Return the checksums of the blocks of exactly that state of a file; None if none were recorded."""
        selected = self._db.execute(
            "SELECT blocks FROM sums WHERE path = ? AND inode = ? AND ctime_ns = ?",
            (row.path, row.inode, row.ctime_ns),
        ).fetchone()
        return None if selected is None else [sum for (sum,) in struct.iter_unpack("<Q", selected[0])]

    def note_sums(self, row: JournalRecord, sums: list[int]) -> None:
        """Record the checksums of a file's blocks."""
        blocks = struct.pack(f"<{len(sums)}Q", *sums)
        self._notes += 1
        values = row.path, row.inode, row.ctime_ns, blocks
        self._write(("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", [values]))

    def forget_old_sums(self) -> None:
        """Delete the checksums of paths without a row."""
        self._write(("DELETE FROM sums WHERE path NOT IN (SELECT path FROM known) AND path >= ?", [(b"",)]))

    def forget_old_removals(self) -> None:
        """Delete all but the newest REMOVED_MAX rows of removed paths."""
        self._cached.clear()
        statement = (
            "DELETE FROM known WHERE path IN (SELECT path FROM known WHERE version_bytes = -1 AND NOT begun "
            "ORDER BY ctime_ns DESC LIMIT -1 OFFSET ?)"
        )
        self._write((statement, [(REMOVED_ROWS_MAX,)]))

    def begun(self) -> list[JournalRecord]:
        """Return the rows that are begun."""
        return [_row(values) for values in self._db.execute("SELECT * FROM known WHERE begun").fetchall()]

    def add_conflict(self, conflict: Conflict) -> None:
        """Record a conflict until the user clears the list."""
        why = printable(conflict.why)  # an origin's error may name a key that is not UTF-8
        values = conflict.path, conflict.kept, why, conflict.at_s
        self._write(("INSERT OR REPLACE INTO told_conflicts VALUES (?, ?, ?, ?)", [values]))

    def conflicts(self) -> list[Conflict]:
        return [
            Conflict(*values)
            for values in self._db.execute("SELECT * FROM told_conflicts ORDER BY at_s").fetchall()
        ]

    def forget_conflicts(self, paths: Iterable[bytes]) -> None:
        self._write(("DELETE FROM told_conflicts WHERE path = ?", [(path,) for path in paths]))

    def close(self) -> None:
        os.close(self._log)
        self._db.close()
        os.close(self._fd)


def _transact(database: sqlite3.Connection, path: str, changes: Sequence[_Change]) -> None:
    """Execute statements in one transaction of the table at a path."""
    try:
        database.execute("BEGIN")
        for statement, values in changes:
            database.executemany(statement, values)
        database.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise _translated(path, error) from error
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _translated(path: str, error: sqlite3.Error) -> StoreError | NoSpaceError:
    """Return the error of a table at a path."""
    disk = os.statvfs(os.path.dirname(path))
    is_reported = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
    full = is_reported or not disk.f_bavail or not disk.f_favail
    return (NoSpaceError if full else StoreError)(f"table {path} can't be used", why=str(error))


def _values(row: JournalRecord) -> tuple[bytes, int, int, int, int, int, int, str, bool]:
    version = row.version
    return (
        *(row.path, row.inode, row.ctime_ns, row.size_bytes, row.mtime_ns),
        *(version.size_bytes, version.mtime_ns, version.token, row.begun),
    )


def _row(values: tuple[bytes, int, int, int, int, int, int, str, int]) -> JournalRecord:
    path, inode, ctime_ns, size_bytes, mtime_ns, version_bytes, version_mtime_ns, token, begun = values
    version = Version(version_bytes, version_mtime_ns, token)
    return JournalRecord(path, inode, ctime_ns, size_bytes, version, bool(begun), mtime_ns)
