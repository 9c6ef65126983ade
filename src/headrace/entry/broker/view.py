"""The namespace as the mount shows it to a user: what was written here over what the origins have, and what the modes
of files and directories let that user see. Looks only; nothing here opens a file.
"""

from __future__ import annotations

import os
import stat
from itertools import islice
from typing import NamedTuple

import xxhash

from headrace.base.errors import (
    NotADirectoryPathError,
    NotAllowedError,
    NotSupportedError,
    PathNotFoundError,
)
from headrace.base.model import ROOT_ID, Entry, Kind
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.entry.broker.access import ENTER, READ, Modes, User, may, modes_of
from headrace.namespace.tree import Namespace
from headrace.overlay.upper import Hidden, Upper, join
from headrace.store.index import Index
from headrace.wire.broker_messages import ANSWER_BYTES_MAX, ROWS_MAX, BrokerNames, BrokerRow

TOKEN_MAX = 256
_ROW_BYTES = 80
"""Of the numbers of a row, at most."""


class StaleError(Exception):
    """The listing of a directory is too old to say: `Namespace.lookup` or `list` first, and then again."""

    def __init__(self, directory: Entry, name: bytes | None) -> None:
        self.directory, self.name = directory, name


class VisibleEntry(NamedTuple):
    """At least one is there. below: what the origins have at the path, where that shows, or is a directory that does
    beneath what was written."""

    path: bytes
    written: os.stat_result | None
    below: Entry | None

    @property
    def is_directory(self) -> bool:
        if self.written is not None:
            return stat.S_ISDIR(self.written.st_mode)
        assert self.below is not None
        return self.below.kind is Kind.DIRECTORY


class View:
    """upper: where something can be written."""

    def __init__(self, index: Index, namespace: Namespace, upper: Upper, modes: WriteModes) -> None:
        self._index = index
        self._namespace = namespace
        self._upper = upper
        self._write_modes = modes
        writes = 0o200 if modes.any else 0
        self._file_mode, self._directory_mode = 0o444 | writes, 0o555 | writes
        self._uid, self._gid = os.geteuid(), os.getegid()

    def find(self, path: bytes, user: User) -> VisibleEntry:
        """PathNotFoundError, NotADirectoryPathError, NotAllowedError; NotSupportedError for links on the way;
        StaleError."""
        top = self._written(b"/")
        here = VisibleEntry(b"/", None if isinstance(top, Hidden) else top, self._index.entry(ROOT_ID))
        for name in path[1:].split(b"/") if path != b"/" else ():
            if not here.is_directory:
                if here.written is not None and stat.S_ISLNK(here.written.st_mode):
                    raise NotSupportedError(
                        _text(here.path), why="a symbolic link", hint="read it by a mount"
                    )
                raise NotADirectoryPathError(_text(here.path), why="it is no directory")
            if not may(user, self.modes(here), ENTER):
                raise not_allowed(here.path)
            here = self._child(here, name)
        return here

    def _child(self, directory: VisibleEntry, name: bytes) -> VisibleEntry:
        path = join(directory.path, name)
        written = self._written(path)
        if isinstance(written, Hidden):
            raise _not_found(path)
        hides_below = written is not None and not stat.S_ISDIR(written.st_mode)
        below = None if hides_below else self._below(directory.below, name)
        if written is None and below is None:
            raise _not_found(path)
        return VisibleEntry(path, written, below)

    def _below(self, directory: Entry | None, name: bytes) -> Entry | None:
        if directory is None or directory.kind is not Kind.DIRECTORY:
            return None
        if not self._namespace.is_fresh(directory.id):
            raise StaleError(directory, name)
        return self._index.lookup(directory.id, name)

    def _written(self, path: bytes) -> os.stat_result | Hidden | None:
        if not self._write_modes.any or self._write_modes.of(path) is WriteMode.OFF:
            return None
        return self._upper.look(path)

    def modes(self, shown: VisibleEntry) -> Modes:
        if shown.written is not None:
            return modes_of(shown.written)
        assert shown.below is not None
        return self._modes_below(shown.below)

    def _modes_below(self, entry: Entry) -> Modes:
        if entry.kind is Kind.DIRECTORY:
            return Modes(self._directory_mode, self._uid, self._gid)
        known = entry.attributes
        if known is None or known.mode is None:
            return Modes(self._file_mode, self._uid, self._gid)
        return Modes(known.mode, known.uid or 0, known.gid or 0)

    # ------------------------------------------------------------ rows

    def row(self, shown: VisibleEntry) -> BrokerRow:
        name = shown.path.rpartition(b"/")[2]
        if shown.written is not None:
            return _written_row(name, shown.written)
        assert shown.below is not None
        return self._row_below(name, shown.below)

    def names(self, path: bytes, after: bytes, user: User) -> BrokerNames:
        """As find; also what may be entered, but not read, is refused."""
        shown = self.find(path, user)
        if not shown.is_directory:
            raise NotADirectoryPathError(_text(path), why="it is no directory")
        if not may(user, self.modes(shown), READ | ENTER):
            raise not_allowed(path)
        lower: list[Entry] = []
        if shown.below is not None:
            if not self._namespace.is_fresh(shown.below.id):
                raise StaleError(shown.below, None)
            lower = list(islice(self._index.children(shown.below.id, after=after), ROWS_MAX))
        last = lower[-1].name if len(lower) == ROWS_MAX else None
        rows = {entry.name: self._row_below(entry.name, entry) for entry in lower}
        for name in sorted(self._written_names(path)):
            if name > after and (last is None or name <= last):
                written = self._written(join(path, name))
                if isinstance(written, Hidden):
                    rows.pop(name, None)
                elif written is not None:
                    rows[name] = _written_row(name, written)
        page = _fitting(sorted(rows)[:ROWS_MAX], rows)
        is_more = len(rows) > len(page)
        return BrokerNames([rows[name] for name in page], page[-1] if is_more else last or b"")

    def may_be_long(self, path: bytes) -> bool:
        """Whether a directory may have been written to: then all its names are looked at for each page."""
        return self._write_modes.any_below(path)

    def _written_names(self, path: bytes) -> dict[bytes, bool]:
        return self._upper.names(path) if self._write_modes.any_below(path) else {}

    def _row_below(self, name: bytes, entry: Entry) -> BrokerRow:
        modes, version = self._modes_below(entry), entry.version
        kind = stat.S_IFDIR if entry.kind is Kind.DIRECTORY else stat.S_IFREG
        return BrokerRow(
            name,
            entry.id,
            kind | modes.mode,
            modes.uid,
            modes.gid,
            version.size_bytes,
            entry.mtime_ns,
            short_token(version.token),
            written=False,
        )


def _fitting(names: list[bytes], rows: dict[bytes, BrokerRow]) -> list[bytes]:
    """As many of the first ones as a packet takes."""
    left = ANSWER_BYTES_MAX // 2
    for number, name in enumerate(names):
        left -= len(name) + len(rows[name].token) + _ROW_BYTES
        if left < 0:
            return names[:number]
    return names


def short_token(token: str) -> str:
    """As it is, but for one that an origin made long, of which a packet could hold few."""
    if len(token) <= TOKEN_MAX:
        return token
    return f'"{xxhash.xxh3_128_hexdigest(token.encode(errors="surrogateescape"))}"'


def _written_row(name: bytes, found: os.stat_result) -> BrokerRow:
    return BrokerRow(
        name,
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_mtime_ns,
        str(found.st_ctime_ns),
        written=True,
    )


def not_allowed(path: bytes) -> NotAllowedError:
    return NotAllowedError(_text(path), why="its mode does not let this user read it")


def _not_found(path: bytes) -> PathNotFoundError:
    return PathNotFoundError(_text(path), why="no such file or directory")


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
