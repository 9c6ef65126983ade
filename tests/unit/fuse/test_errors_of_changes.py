"""A mount that can be written answers with an errno when its work fails."""

from __future__ import annotations

import errno

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError, NodeUnavailableError, NoSpaceError, OriginUnavailableError
from headrace.fuse.errno_map import errno_of
from headrace.fuse.operations import Answer, DiskTask, with_errno


@pytest.mark.parametrize("error", [OriginUnavailableError("a"), NoSpaceError("a"), NodeUnavailableError("a")])
def test_our_errors_keep_their_own_errno_though_they_are_os_errors(error: HeadraceError) -> None:
    assert isinstance(error, OSError)

    def fail(*_: object) -> Answer:
        raise error

    method = with_errno(lambda *_: fail)
    deferred = method(1, 1, bytearray())
    assert callable(deferred)
    with pytest.raises(type(error)) as raised:
        deferred(Cancel())
    assert errno_of(raised.value) != errno.EIO
    on_disk = with_errno(lambda *_: DiskTask(fail))(1, 1, bytearray())
    assert isinstance(on_disk, DiskTask)
    with pytest.raises(type(error)):
        on_disk.work()
    with pytest.raises(type(error)):
        with_errno(fail)(1, 1, bytearray())


def test_errors_of_the_layer_are_answered_as_the_file_system_gave_them() -> None:
    def fail(*_: object) -> Answer:
        raise OSError(errno.EDQUOT, "quota")

    assert with_errno(fail)(1, 1, bytearray()) == errno.EDQUOT
