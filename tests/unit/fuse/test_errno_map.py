"""Each error of Headrace has the errno that a program expects of a local file system."""

from __future__ import annotations

import errno

import pytest

from headrace.base.errors import HeadraceError, PathNotFoundError, error_classes
from headrace.fuse.errno_map import ERRNO, errno_of

BUILTINS = {
    FileNotFoundError: {errno.ENOENT, errno.ESTALE, errno.ENXIO},
    FileExistsError: {errno.EEXIST},
    NotADirectoryError: {errno.ENOTDIR},
    IsADirectoryError: {errno.EISDIR},
    PermissionError: {errno.EACCES, errno.EPERM, errno.EHOSTUNREACH},
    TimeoutError: {errno.ETIMEDOUT},
}
"""The errnos that fit the builtin which an error also is. ESTALE has the kernel look the name up again."""


def test_no_row_is_of_an_error_that_does_not_exist() -> None:
    assert set(ERRNO) <= set(error_classes())


@pytest.mark.parametrize("code, kind", error_classes().items())
def test_every_error_has_an_errno_that_fits_its_kind(code: str, kind: type[HeadraceError]) -> None:
    number = errno_of(kind("a"))
    assert number == ERRNO[code] and number in errno.errorcode
    for builtin, numbers in BUILTINS.items():
        assert not issubclass(kind, builtin) or number in numbers


def test_an_error_without_a_row_is_an_input_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No class is defined for it: it would be in the tables of other tests until the garbage collector runs."""
    monkeypatch.delitem(ERRNO, PathNotFoundError.code)
    assert errno_of(PathNotFoundError("a")) == errno.EIO
