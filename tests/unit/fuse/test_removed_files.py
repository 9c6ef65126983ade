"""A call that removes a large file takes its name at once; the bytes are freed in the pool, before its answer. So are
those that a file loses which is shortened."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.fuse import abi
from headrace.fuse.abi import Opcode
from headrace.fuse.namespace_ops import NamespaceOperations
from headrace.fuse.operations import DiskTask
from headrace.fuse.removed_files import FREED_AT_ONCE_BYTES
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import ROOT
from tests.unit.fuse.memory_mount import MemoryMount

OpenMount = Callable[..., MemoryMount]
LARGE_BYTES = FREED_AT_ONCE_BYTES + (1 << 20)
EXCHANGE = 2
UNIQUE = 1000


def make_file(mount: MemoryMount, name: str, size_bytes: int = LARGE_BYTES) -> Path:
    """Create a file of allocated blocks in the upper layer."""
    path = Path(mount.client.upper, "tree", name)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        file.write(name.encode())
    return path


def is_held() -> bool:
    """Return whether this process has a large file of the layer open that has no name, so that its bytes are not
    free."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            status, path = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
            is_large = status.st_blocks * 512 > FREED_AT_ONCE_BYTES
            if "/tree/" in path and not status.st_nlink and is_large:
                return True
    return False


def openings(path: Path) -> int:
    """Return how many descriptors of a file this process has."""
    wanted, count = path.stat(), 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            count += os.path.samestat(wanted, os.fstat(fd))
    return count


def unlink(mount: MemoryMount, name: str) -> object:
    return mount.begin(Opcode.UNLINK, ROOT, name.encode() + b"\0", unique=UNIQUE)


def rename(mount: MemoryMount, old: str, new: str, flags: int = 0) -> object:
    body = layout.Rename2In(ROOT, flags)
    return mount.begin(Opcode.RENAME2, ROOT, body, f"{old}\0{new}\0".encode(), unique=UNIQUE)


# ------------------------------------------------------------ which files are held


@pytest.mark.parametrize("name", ["new", "small"])
def test_a_large_file_is_freed_in_the_pool_before_the_answer(writable: MemoryMount, name: str) -> None:
    """The origin has `small`, too: there a whiteout takes the place of the file."""
    make_file(writable, name)
    answer = unlink(writable, name)
    assert isinstance(answer, DiskTask)
    assert writable.kernel.lookup(name.encode()).nodeid == 0, "its name is gone before"
    assert is_held()
    assert writable.finish(answer) == 0
    assert not is_held()


@pytest.mark.parametrize("name", ["new", "small"])
def test_a_large_file_that_a_rename_replaces_is_freed_likewise(writable: MemoryMount, name: str) -> None:
    make_file(writable, name)
    make_file(writable, "other", 5)
    answer = rename(writable, "other", name)
    assert isinstance(answer, DiskTask)
    node = writable.kernel.node(name)
    assert writable.kernel.read(node, size=5) == b"other"
    assert is_held()
    assert writable.finish(answer) == 0
    assert not is_held()


def test_small_files_are_freed_at_once(writable: MemoryMount) -> None:
    for name in ("new", "small", "replaced"):
        make_file(writable, name, 1 << 20)
    assert unlink(writable, "new") == unlink(writable, "small") == 0
    make_file(writable, "other", 1 << 20)
    assert rename(writable, "other", "replaced") == 0


def test_a_hole_is_not_freed(writable: MemoryMount) -> None:
    os.truncate(make_file(writable, "new", 5), 1 << 40)
    assert unlink(writable, "new") == 0


def test_a_file_with_another_name_is_not_freed(writable: MemoryMount) -> None:
    path = make_file(writable, "new")
    for name in ("second", "third"):
        os.link(path, path.with_name(name))
    assert unlink(writable, "second") == 0
    assert rename(writable, "third", "new") == 0, "both are names of one file, so nothing happens"
    make_file(writable, "other", 5)
    assert rename(writable, "other", "third") == 0
    assert path.stat().st_nlink == 1
    assert path.read_bytes()[:3] == b"new"


def test_an_exchange_removes_nothing(writable: MemoryMount) -> None:
    make_file(writable, "new")
    make_file(writable, "other")
    assert rename(writable, "other", "new", EXCHANGE) == 0
    assert not is_held()


def test_a_rename_to_its_own_name_removes_nothing(writable: MemoryMount) -> None:
    path = make_file(writable, "new")
    answer = rename(writable, "new", "new")
    assert isinstance(answer, DiskTask)
    assert writable.finish(answer) == 0
    assert path.read_bytes()[:3] == b"new"


# ------------------------------------------------------------ other calls meanwhile


def test_another_file_of_the_name_is_not_touched(writable: MemoryMount) -> None:
    make_file(writable, "new")
    old = writable.kernel.lookup(b"new").nodeid
    answer = unlink(writable, "new")
    assert isinstance(answer, DiskTask)
    writable.kernel.write_file(b"new", b"other bytes")
    node = writable.kernel.lookup(b"new").nodeid
    assert node != old, "the inode number is in use until the file is freed"
    assert writable.finish(answer) == 0
    assert writable.kernel.read(node) == b"other bytes"
    assert not is_held()


def test_an_open_file_is_freed_by_its_last_release(writable: MemoryMount) -> None:
    make_file(writable, "new")
    node = writable.kernel.node("new")
    first, second = writable.kernel.open(node, os.O_RDWR), writable.kernel.open(node)
    answer = unlink(writable, "new")
    assert isinstance(answer, DiskTask)
    assert writable.finish(answer) == 0
    assert writable.kernel.read(node, size=3) == b"new"
    writable.kernel.release(node, first.fh)
    assert writable.deferrals == []
    assert writable.kernel.read(node, size=3) == b"new"
    writable.kernel.release(node, second.fh)
    assert writable.deferrals == [DiskTask]
    assert not is_held()


def test_a_file_that_is_not_removed_is_closed_at_once(writable: MemoryMount) -> None:
    make_file(writable, "new")
    node = writable.kernel.node("new")
    writable.kernel.release(node, writable.kernel.open(node).fh)
    assert writable.deferrals == []


def test_a_call_that_waits_for_others_frees_before_it_waits(open_mount: OpenMount) -> None:
    mount = open_mount(write="through")
    make_file(mount, "new")
    answer = unlink(mount, "new")
    assert isinstance(answer, DiskTask)
    waiting = answer.work()
    assert callable(waiting)
    assert not is_held()
    assert mount.client.secured == []
    assert waiting(Cancel()) == 0
    assert mount.client.secured == [b"/new"]


def test_a_rename_after_a_copy_up_frees_in_its_own_thread(writable: MemoryMount) -> None:
    make_file(writable, "new")
    answer = rename(writable, "small", "new")
    assert callable(answer), "only the origin has its source"
    assert writable.finish(answer) == 0
    assert not is_held()
    assert writable.kernel.read(writable.kernel.node("new")) == b"0123456789"


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_change_that_fails_holds_nothing(
    writable: MemoryMount, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    assert isinstance(writable.operations, NamespaceOperations)
    path = make_file(writable, "new")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    target = writable.operations.tree if step == "before" else writable.operations._nodes
    monkeypatch.setattr(target, "remove" if step == "before" else "removed", fail)
    assert unlink(writable, "new") == errno.EIO
    assert openings(path) == 0 if step == "before" else not is_held()


def test_a_rename_that_is_refused_holds_nothing(writable: MemoryMount) -> None:
    path = make_file(writable, "new")
    body = layout.MkdirIn(0o755)
    writable.kernel.call(Opcode.MKDIR, ROOT, body, b"made\0")
    assert rename(writable, "made", "new") == errno.ENOTDIR
    assert openings(path) == 0
    assert path.read_bytes()[:3] == b"new"


def test_without_a_descriptor_the_change_frees_the_file(
    writable: MemoryMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(writable, "new")
    monkeypatch.setattr("headrace.fuse.removed_files._pinned", lambda path: -1)
    assert unlink(writable, "new") == 0
    assert not path.exists()


# ------------------------------------------------------------ files that are shortened


def truncating_open(mount: MemoryMount, node: int) -> object:
    return mount.begin(Opcode.OPEN, node, layout.OpenIn(os.O_WRONLY | os.O_TRUNC), unique=UNIQUE)


def set_size(mount: MemoryMount, node: int, size_bytes: int) -> object:
    body = layout.SetattrIn(valid=abi.FATTR_SIZE, size=size_bytes)
    return mount.begin(Opcode.SETATTR, node, body, unique=UNIQUE)


@pytest.mark.parametrize("opened", [False, True])
def test_an_open_that_empties_a_large_file_does_so_in_the_pool(writable: MemoryMount, opened: bool) -> None:
    path = make_file(writable, "new")
    node = writable.kernel.node("new")
    held = [writable.kernel.open(node, os.O_RDWR)] if opened else []
    answer = truncating_open(writable, node)
    assert isinstance(answer, DiskTask)
    assert path.stat().st_size == LARGE_BYTES, "it is not emptied in the hot thread"
    reply = writable.finish(answer)
    assert isinstance(reply, bytes)
    assert (path.stat().st_size, path.stat().st_blocks) == (0, 0)
    fh = layout.OpenOut.from_buffer_copy(reply, 16).fh
    writable.kernel.write(node, b"again")
    assert path.read_bytes() == b"again"
    for handle in (fh, *(out.fh for out in held)):
        writable.kernel.release(node, handle)
    assert openings(path) == 0


@pytest.mark.parametrize("size_bytes", [0, 2, 4096])
def test_an_open_large_file_is_shortened_in_the_pool(writable: MemoryMount, size_bytes: int) -> None:
    path = make_file(writable, "new")
    node = writable.kernel.node("new")
    opened = writable.kernel.open(node, os.O_RDWR)
    answer = set_size(writable, node, size_bytes)
    assert isinstance(answer, DiskTask)
    assert path.stat().st_size == LARGE_BYTES
    assert isinstance(writable.finish(answer), bytes)
    assert path.read_bytes() == b"new".ljust(size_bytes, b"\0")[:size_bytes]
    assert writable.kernel.attributes(node).size == size_bytes
    writable.kernel.release(node, opened.fh)
    assert openings(path) == 0


def test_what_loses_few_bytes_is_shortened_at_once(writable: MemoryMount) -> None:
    path = make_file(writable, "new", 1 << 20)
    node = writable.kernel.node("new")
    assert isinstance(truncating_open(writable, node), bytes)
    os.truncate(path, 10 * LARGE_BYTES)  # a hole
    assert isinstance(set_size(writable, node, 5), bytes)
    assert path.stat().st_size == 5
    os.posix_fallocate(descriptor := os.open(path, os.O_RDWR), 0, LARGE_BYTES)
    os.close(descriptor)
    assert isinstance(set_size(writable, node, LARGE_BYTES - 4096), bytes)
    assert path.stat().st_size == LARGE_BYTES - 4096


@pytest.mark.parametrize("replaced", [False, True])
def test_a_large_file_that_is_gone_is_not_emptied(writable: MemoryMount, replaced: bool) -> None:
    path = make_file(writable, "new")
    node = writable.kernel.node("new")
    kept = Path(writable.client.folder, "kept")
    path.rename(kept)
    if replaced:
        make_file(writable, "new")
    assert truncating_open(writable, node) == errno.ESTALE
    assert kept.stat().st_size == LARGE_BYTES
    assert not replaced or path.stat().st_size == LARGE_BYTES


def test_an_error_of_the_disk_is_that_of_the_open(
    writable: MemoryMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(writable, "new")
    node = writable.kernel.node("new")
    answer = truncating_open(writable, node)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("headrace.fuse.shortened_files.os.ftruncate", fail)
        assert isinstance(answer, DiskTask)
        assert writable.finish(answer) == errno.EIO
    assert openings(path) == 0
    assert path.stat().st_size == LARGE_BYTES
