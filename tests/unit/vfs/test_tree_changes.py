"""A change of the namespace is repeated after what it needs, ends, and is as durable as its mode promises."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from headrace.base.errors import OriginError, PathExistsError, ReadOnlyError, StoreError
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.lease_check import LeaseRequiredError
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.tree_changes import COPIES_MAX, TreeChanges
from headrace.wire import frame
from headrace.wire.messages import AcquireLease, Done, Secure
from tests.unit.client.scripted_node import ScriptedNode

OpenVfs = Callable[..., LocalVfs]


@pytest.fixture
def changes(vfs: LocalVfs) -> TreeChanges:
    return TreeChanges(vfs.client)


def test_a_change_is_repeated_after_the_copy_that_it_needs(changes: TreeChanges) -> None:
    copied: list[bytes] = []

    def work() -> str:
        if not copied:
            raise NeedsContentError(b"/whole")
        return "done"

    assert changes.apply(b"/whole", work, lambda needs: copied.append(needs.path)) == "done"
    assert copied == [b"/whole"]


def test_a_file_that_never_stays_copied_is_an_error_and_not_a_loop(changes: TreeChanges) -> None:
    attempts = 0

    def work() -> None:
        nonlocal attempts
        attempts += 1
        raise NeedsContentError(b"/whole")

    with pytest.raises(StoreError, match="it changed during each"):
        changes.apply(b"/whole", work, lambda needs: None)
    assert attempts == COPIES_MAX


def test_a_change_is_repeated_after_the_lease_that_it_needs(
    changes: TreeChanges, nodes: list[ScriptedNode]
) -> None:
    def work() -> str:
        if not nodes[0].asked(AcquireLease):
            raise LeaseRequiredError(b"/dir")
        return "done"

    assert changes.apply(b"/dir/new", work) == "done"
    assert nodes[0].asked(AcquireLease) == [AcquireLease(b"/dir")]


def test_an_error_of_the_file_system_is_headraces(changes: TreeChanges) -> None:
    def fail() -> None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    with pytest.raises(PathExistsError, match="/a"):
        changes.apply(b"/a", fail)
    with changes.tree.lock:
        pass  # it is free again


def test_nothing_is_changed_where_all_is_read_only(open_vfs: OpenVfs) -> None:
    changes = TreeChanges(open_vfs("off").client)
    with pytest.raises(ReadOnlyError):
        changes.apply(b"/a", lambda: pytest.fail("it ran"))


@pytest.mark.parametrize("write, requests", [("back", []), ("through", [Secure(b"/new")])])
def test_a_change_waits_for_what_its_mode_promises(
    open_vfs: OpenVfs, nodes: list[ScriptedNode], write: str, requests: list[Secure]
) -> None:
    vfs = open_vfs(write)
    vfs.make_directory(b"/new")
    assert nodes[0].asked(Secure) == requests
    nodes[0].answer = lambda request: [frame.failure_of(OriginError("/other", why="it broke"))]
    if requests:
        with pytest.raises(OriginError, match="it broke"):
            vfs.make_directory(b"/other")
    assert vfs.exists(b"/new")
    nodes[0].answer = lambda request: [Done()]  # else the close waits for the report
