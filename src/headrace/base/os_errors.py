"""Translates errors of system calls on the upper layer to Headrace's errors, for callers that use paths of the
namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

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


@contextlib.contextmanager
def translating_os_errors(path: bytes) -> Iterator[None]:
    """Translate an OSError of the block to an error of Headrace."""
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        raise _translated(error, os.fsdecode(path)) from None


def _translated(error: OSError, path: str) -> HeadraceError:
    why = (error.strerror or str(error)).lower()
    kinds: dict[int | None, type[HeadraceError]] = {
        errno.ENOENT: PathNotFoundError,
        errno.ENOTDIR: NotADirectoryPathError,
        errno.ELOOP: NotADirectoryPathError,  # a link is in the way
        errno.EISDIR: IsADirectoryPathError,
        errno.EEXIST: PathExistsError,
        errno.ENOTEMPTY: DirectoryNotEmptyError,
        errno.EINVAL: NotSupportedError,
        errno.ENAMETOOLONG: NotSupportedError,
    }
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(path, why=why, hint="free some space on the disk of the first cache folder")
    if error.errno == errno.EROFS:
        return read_only(path)
    if error.errno == errno.EXDEV:
        why = "the rename crosses mounts or modes of writing, or moves a large folder of an origin"
        return NotSupportedError(path, why=why, hint="copy it, then remove the source")
    if error.errno in (errno.EPERM, errno.EACCES):
        return StoreError(path, why=why, hint="write as the user who runs the node")
    return kinds.get(error.errno, StoreError)(path, why=why)


def read_only(path: str) -> ReadOnlyError:
    """Return the error for a path whose mode of writing is off."""
    return ReadOnlyError(
        path,
        why="it is read-only: its mode of writing is off",
        hint="start the node with --write back, or with --write PATH=MODE",
    )
