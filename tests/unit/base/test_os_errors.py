"""Errors of system calls become Headrace's, keep their meaning, and lead back to the errno that a mount answers."""

from __future__ import annotations

import errno
import os

import pytest

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
from headrace.base.os_errors import PLAIN_FILES, UPPER_LAYER, OsErrorTable, read_only, translating_os_errors
from headrace.fuse.errno_map import errno_of

EXPECTED: dict[int, tuple[type[HeadraceError], int]] = {
    errno.ENOENT: (PathNotFoundError, errno.ENOENT),
    errno.ENOTDIR: (NotADirectoryPathError, errno.ENOTDIR),
    errno.ELOOP: (NotADirectoryPathError, errno.ENOTDIR),
    errno.EISDIR: (IsADirectoryPathError, errno.EISDIR),
    errno.EEXIST: (PathExistsError, errno.EEXIST),
    errno.ENOTEMPTY: (DirectoryNotEmptyError, errno.ENOTEMPTY),
    errno.EINVAL: (NotSupportedError, errno.ENOTSUP),
    errno.ENAMETOOLONG: (NotSupportedError, errno.ENOTSUP),
    errno.EXDEV: (NotSupportedError, errno.ENOTSUP),
    errno.ENOSPC: (NoSpaceError, errno.ENOSPC),
    errno.EDQUOT: (NoSpaceError, errno.ENOSPC),
    errno.EROFS: (ReadOnlyError, errno.EROFS),
    errno.EPERM: (StoreError, errno.EIO),
    errno.EACCES: (StoreError, errno.EIO),
}
"""The error of each errno of the upper layer, and the errno that a mount would answer with for that error."""


def translated(number: int, table: OsErrorTable = UPPER_LAYER) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised, translating_os_errors(b"/a/b\xff", table):
        raise OSError(number, os.strerror(number), "/host/path")
    return raised.value


def test_the_table_has_these_rows() -> None:
    assert set(UPPER_LAYER.rows) == set(EXPECTED)


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_each_errno_of_the_upper_layer_has_its_error_and_leads_back(number: int) -> None:
    kind, back = EXPECTED.get(number, (StoreError, errno.EIO))
    error = translated(number)
    assert type(error) is kind
    assert errno_of(error) == back
    assert error.what == "/a/b\udcff" and error.why, "the path of the namespace, not the host's"
    assert error.__cause__ is None and "/host/path" not in str(error)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EPERM, errno.EACCES, errno.EROFS, errno.EXDEV]
)
def test_an_error_that_a_user_can_end_says_how(number: int) -> None:
    assert translated(number).hint


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_each_errno_of_a_plain_file_has_its_error(number: int) -> None:
    kinds: dict[int, type[HeadraceError]] = {
        errno.ENOENT: PathNotFoundError,
        errno.ENOTDIR: NotADirectoryPathError,
    }
    assert type(translated(number, PLAIN_FILES)) is kinds.get(number, StoreError)


def test_an_error_of_headrace_keeps_its_kind_though_it_is_an_os_error() -> None:
    error = NoSpaceError("/c", hint="free some")
    with pytest.raises(NoSpaceError) as raised, translating_os_errors("/a"):
        raise error
    assert raised.value is error


def test_an_os_error_without_a_number_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match="broken off"), translating_os_errors("/a"):
        raise OSError("Broken off")


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), translating_os_errors("/a"):
        raise KeyError("a")


def test_a_path_that_is_read_only_by_its_mode_says_as_the_file_system_would() -> None:
    error = translated(errno.EROFS)
    assert (error.why, error.hint) == (read_only("/a").why, read_only("/a").hint)
