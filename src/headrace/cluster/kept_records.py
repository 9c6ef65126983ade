"""Store the records that this node accepted in a table beside its cache, for the next run.

With it a starting node can distinguish an older record from the newest, and can restore records that were deleted
meanwhile. A lost or damaged table costs only that. Readers verify every seal again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.identity.seals import Mark

log = logging.getLogger(__name__)

_TABLE = (
    "CREATE TABLE IF NOT EXISTS records"
    " (key BLOB PRIMARY KEY, at_ns INTEGER, signature BLOB, ends_s REAL, raw BLOB) WITHOUT ROWID"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold a kept record. raw: the sealed record; b"" if it was deleted, or is deleted with the node that wrote it."""

    mark: Mark
    raw: bytes = b""


class KeptRecords:
    """Reads and writes the table. path: the table, in a directory of this user only. Each call opens it, and blocks."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> dict[str, Kept]:
        """Return the records; empty when none are kept or the table can't be read."""
        try:
            with self._opened() as table:
                rows = table.execute("SELECT key, at_ns, signature, ends_s, raw FROM records").fetchall()
            return {_text(key): Kept(Mark(int(at_ns), bytes(signature), float(ends_s)), bytes(raw))
                    for key, at_ns, signature, ends_s, raw in rows}  # fmt: skip
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:
            log.warning(
                "the kept records can't be read and are discarded path=%s error=%s", self._path, error
            )
            self._discard()
            return {}

    def write(self, changed: Mapping[str, Kept], removed: Iterable[str] = ()) -> None:
        """Write in one transaction. A failure is logged, because only the next run needs the table."""
        rows = [
            (_bytes(key), record.mark.at_ns, record.mark.signature, record.mark.ends_s, record.raw)
            for key, record in changed.items()
        ]
        try:
            with self._opened() as table, table:
                table.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", rows)
                table.executemany("DELETE FROM records WHERE key = ?", [(_bytes(key),) for key in removed])
        except (sqlite3.Error, OSError) as error:
            log.warning("the kept records can't be written path=%s error=%s", self._path, error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with contextlib.closing(sqlite3.connect(self._path)) as table:
            table.execute(_TABLE)
            yield table

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
