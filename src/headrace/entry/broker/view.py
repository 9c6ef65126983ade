"""Show the namespace as the mount shows it to a user: the upper layer over the origins, limited by the permission
bits of files and directories. This module looks entries up; it opens no files."""

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
from headrace.base.namespace_path import join
from headrace.base.printable import path_text
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.entry.broker.access import ENTER, READ, Modes, User, may, modes_of
from headrace.namespace.tree import NameTree
from headrace.overlay.upper import Hidden, Upper
from headrace.wire.broker_messages import ANSWER_BYTES_MAX, ROWS_MAX, BrokerNames, BrokerRow

TOKEN_MAX = 256
_ROW_BYTES = 80
"""Bytes that the numbers of a row take at most."""


class StaleError(Exception):
    """The listing of a directory is too old. Call `Namespace.lookup` or `list` first, then try again."""

    def __init__(self, directory: Entry, name: bytes | None) -> None:
        self.directory, self.name = directory, name


class VisibleEntry(NamedTuple):
    """Describes what a path shows; at least one layer has it. lower: the origin's entry, unless the upper layer
    hides it. Both are set where a directory of the upper layer is merged with the origin's."""

    path: bytes
    upper: os.stat_result | None
    lower: Entry | None

    @property
    def is_directory(self) -> bool:
        if self.upper is not None:
            return stat.S_ISDIR(self.upper.st_mode)
        assert self.lower is not None
        return self.lower.kind is Kind.DIRECTORY


class View:
    """Looks paths up for a user. upper: used where a mount is writable."""

    def __init__(self, tree: NameTree, upper: Upper, modes: WriteModes) -> None:
        self._index = tree.index
        self._tree = tree
        self._upper = upper
        self._write_modes = modes
        writes = 0o200 if modes.any else 0
        self._file_mode, self._directory_mode = 0o444 | writes, 0o555 | writes
        self._uid, self._gid = os.geteuid(), os.getegid()

    def find(self, path: bytes, user: User) -> VisibleEntry:
        """Return what is at the path. Raise PathNotFoundError, NotADirectoryPathError, NotAllowedError, StaleError,
        and NotSupportedError for a symbolic link on the way."""
        root_stat = self._upper_stat(b"/")
        entry = VisibleEntry(
            b"/", None if isinstance(root_stat, Hidden) else root_stat, self._index.entry(ROOT_ID)
        )
        for name in path[1:].split(b"/") if path != b"/" else ():
            if not entry.is_directory:
                if entry.upper is not None and stat.S_ISLNK(entry.upper.st_mode):
                    raise NotSupportedError(
                        path_text(entry.path), why="it is a symbolic link", hint="read it through a mount"
                    )
                raise NotADirectoryPathError(path_text(entry.path), why="it is not a directory")
            if not may(user, self.modes(entry), ENTER):
                raise not_allowed(entry.path)
            entry = self._child(entry, name)
        return entry

    def _child(self, directory: VisibleEntry, name: bytes) -> VisibleEntry:
        path = join(directory.path, name)
        upper = self._upper_stat(path)
        if isinstance(upper, Hidden):
            raise _not_found(path)
        hides_lower = upper is not None and not stat.S_ISDIR(upper.st_mode)
        lower = None if hides_lower else self._lower_child(directory.lower, name)
        if upper is None and lower is None:
            raise _not_found(path)
        return VisibleEntry(path, upper, lower)

    def _lower_child(self, directory: Entry | None, name: bytes) -> Entry | None:
        if directory is None or directory.kind is not Kind.DIRECTORY:
            return None
        if not self._tree.is_fresh(directory.id):
            raise StaleError(directory, name)
        return self._index.lookup(directory.id, name)

    def _upper_stat(self, path: bytes) -> os.stat_result | Hidden | None:
        if not self._write_modes.any or self._write_modes.of(path) is WriteMode.OFF:
            return None
        return self._upper.lookup(path)

    def modes(self, entry: VisibleEntry) -> Modes:
        if entry.upper is not None:
            return modes_of(entry.upper)
        assert entry.lower is not None
        return self._lower_modes(entry.lower)

    def _lower_modes(self, entry: Entry) -> Modes:
        if entry.kind is Kind.DIRECTORY:
            return Modes(self._directory_mode, self._uid, self._gid)
        attributes = entry.attributes
        if attributes is None or attributes.mode is None:
            return Modes(self._file_mode, self._uid, self._gid)
        return Modes(attributes.mode, attributes.uid or 0, attributes.gid or 0)

    # ------------------------------------------------------------ rows

    def row(self, entry: VisibleEntry) -> BrokerRow:
        name = entry.path.rpartition(b"/")[2]
        if entry.upper is not None:
            return _upper_row(name, entry.upper)
        assert entry.lower is not None
        return self._lower_row(name, entry.lower)

    def names(self, path: bytes, after: bytes, user: User) -> BrokerNames:
        """Return a page of a directory's rows after that name. Raise the errors of `find`, and NotAllowedError for a
        directory that the user may enter but not read."""
        directory = self.find(path, user)
        if not directory.is_directory:
            raise NotADirectoryPathError(path_text(path), why="it is not a directory")
        if not may(user, self.modes(directory), READ | ENTER):
            raise not_allowed(path)
        lower = [] if directory.lower is None else self._lower_page(directory.lower, after)
        last_lower = lower[-1].name if len(lower) == ROWS_MAX else None
        rows = {entry.name: self._lower_row(entry.name, entry) for entry in lower}
        for name in sorted(self._upper_names(path)):
            if name > after and (last_lower is None or name <= last_lower):
                upper = self._upper_stat(join(path, name))
                if isinstance(upper, Hidden):
                    rows.pop(name, None)
                elif upper is not None:
                    rows[name] = _upper_row(name, upper)
        page = _fitting(sorted(rows)[:ROWS_MAX], rows)
        is_more = len(rows) > len(page)
        return BrokerNames([rows[name] for name in page], page[-1] if is_more else last_lower or b"")

    def _lower_page(self, directory: Entry, after: bytes) -> list[Entry]:
        if not self._tree.is_fresh(directory.id):
            raise StaleError(directory, None)
        return list(islice(self._index.children(directory.id, after=after), ROWS_MAX))

    def may_be_long(self, path: bytes) -> bool:
        """Return whether the directory may have names in the upper layer; then each page reads all of them."""
        return self._write_modes.any_below(path)

    def _upper_names(self, path: bytes) -> dict[bytes, bool]:
        return self._upper.names(path) if self._write_modes.any_below(path) else {}

    def _lower_row(self, name: bytes, entry: Entry) -> BrokerRow:
        modes, version = self._lower_modes(entry), entry.version
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
    """Return as many of the first names as one packet takes."""
    left_bytes = ANSWER_BYTES_MAX // 2
    for count, name in enumerate(names):
        left_bytes -= len(name) + len(rows[name].token) + _ROW_BYTES
        if left_bytes < 0:
            return names[:count]
    return names


def short_token(token: str) -> str:
    """Return the token, or its hash when it is so long that a packet would hold only a few."""
    if len(token) <= TOKEN_MAX:
        return token
    return f'"{xxhash.xxh3_128_hexdigest(token.encode(errors="surrogateescape"))}"'


def _upper_row(name: bytes, status: os.stat_result) -> BrokerRow:
    return BrokerRow(
        name,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        str(status.st_ctime_ns),
        written=True,
    )


def not_allowed(path: bytes) -> NotAllowedError:
    return NotAllowedError(path_text(path), why="its mode does not let this user read it")


def _not_found(path: bytes) -> PathNotFoundError:
    return PathNotFoundError(path_text(path), why="no such file or directory")
