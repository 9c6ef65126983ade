"""What this node believed of the cluster's records, in a table beside its cache: for the next run.

By it a node that starts knows an older record from the newest, and has what somebody took away meanwhile. A table that
is lost, or is not understood, costs that and nothing else. Who reads it opens every seal again.
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
    """raw: the sealed record; b"": it is not there, or goes with the node that wrote it."""

    mark: Mark
    raw: bytes = b""


class KeptRecords:
    """path: of the table, in a folder of this user's only. Each call opens it, and blocks."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> dict[str, Kept]:
        """Empty where nothing is kept, or can be read."""
        try:
            with self._opened() as table:
                rows = table.execute("SELECT key, at_ns, signature, ends_s, raw FROM records").fetchall()
            return {_text(key): Kept(Mark(int(at_ns), bytes(signature), float(ends_s)), bytes(raw))
                    for key, at_ns, signature, ends_s, raw in rows}  # fmt: skip
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:
            log.warning("kept records can't be read, and begin anew path=%s error=%s", self._path, error)
            self._put_aside()
            return {}

    def write(self, changed: Mapping[str, Kept], gone: Iterable[str] = ()) -> None:
        """In one transaction. One that fails is logged: it costs only what it is for."""
        rows = [
            (_bytes(key), one.mark.at_ns, one.mark.signature, one.mark.ends_s, one.raw)
            for key, one in changed.items()
        ]
        try:
            with self._opened() as table, table:
                table.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", rows)
                table.executemany("DELETE FROM records WHERE key = ?", [(_bytes(key),) for key in gone])
        except (sqlite3.Error, OSError) as error:
            log.warning("records can't be kept path=%s error=%s", self._path, error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with contextlib.closing(sqlite3.connect(self._path)) as table:
            table.execute(_TABLE)
            yield table

    def _put_aside(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
