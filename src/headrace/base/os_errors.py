"""Translate errors of system calls to Headrace's errors, by a table for each kind of file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.base.errors import (
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NoSpaceError,
    NotADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    ReadOnlyError,
    StoreError,
)


class OsErrorRow(NamedTuple):
    """Says which error replaces one of the operating system. why: "" for the system's own text."""

    kind: type[HeadraceError]
    hint: str = ""
    why: str = ""


class OsErrorTable(NamedTuple):
    """Holds the rows by error number. other: the row of all numbers that have none."""

    rows: Mapping[int, OsErrorRow]
    other: OsErrorRow

    def translate(self, error: OSError, path: str) -> HeadraceError:
        row = self.rows.get(error.errno or 0, self.other)
        return row.kind(path, why=row.why or (error.strerror or str(error)).lower(), hint=row.hint)


_NO_ROOM = OsErrorRow(NoSpaceError, "free some space on the disk of the first cache directory")
_NOT_OURS = OsErrorRow(StoreError, "write as the user who runs the node")
_MODE_IS_OFF = OsErrorRow(
    ReadOnlyError,
    "start the node with --write back, or with --write PATH=MODE",
    "it is read-only: its write mode is off",
)
UPPER_LAYER = OsErrorTable(
    {
        errno.ENOENT: OsErrorRow(PathNotFoundError),
        errno.ENOTDIR: OsErrorRow(NotADirectoryPathError),
        errno.ELOOP: OsErrorRow(NotADirectoryPathError),  # a link is in the way
        errno.EISDIR: OsErrorRow(IsADirectoryPathError),
        errno.EEXIST: OsErrorRow(PathExistsError),
        errno.ENOTEMPTY: OsErrorRow(DirectoryNotEmptyError),
        errno.EINVAL: OsErrorRow(NotSupportedError),
        errno.ENAMETOOLONG: OsErrorRow(NotSupportedError),
        errno.ENOSPC: _NO_ROOM,
        errno.EDQUOT: _NO_ROOM,
        errno.EROFS: _MODE_IS_OFF,
        errno.EXDEV: OsErrorRow(
            NotSupportedError,
            "copy it, then remove the source",
            "the rename crosses mounts or write modes, or moves a large directory of an origin",
        ),
        errno.EPERM: _NOT_OURS,
        errno.EACCES: _NOT_OURS,
    },
    OsErrorRow(StoreError),
)
"""Errors of system calls on the upper layer, for callers that use paths of the namespace."""
PLAIN_FILES = OsErrorTable(
    {
        errno.ENOENT: OsErrorRow(PathNotFoundError),
        errno.ENOTDIR: OsErrorRow(NotADirectoryPathError),
    },
    OsErrorRow(StoreError),
)
"""Errors of reads on paths of the host's own file systems."""


@contextlib.contextmanager
def translating_os_errors(path: bytes | str, table: OsErrorTable = UPPER_LAYER) -> Iterator[None]:
    """Translate an OSError of the block. path: the object that the new error names."""
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        raise table.translate(error, os.fsdecode(path)) from None


def unread_error(path: bytes, error: OSError) -> StoreError:
    """Return the error for a path of the upper layer that its disk can't read or change now."""
    return StoreError(os.fsdecode(path), why=os.strerror(error.errno or 0))


def read_only(path: str) -> ReadOnlyError:
    """Return the error for a path whose write mode is off."""
    return ReadOnlyError(path, why=_MODE_IS_OFF.why, hint=_MODE_IS_OFF.hint)
