"""Files of a writable mount: the upper layer has the bytes, attributes and times that the kernel's requests give."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.fuse import abi
from headrace.fuse.abi import Opcode
from headrace.fuse.file_ops import FALLOCATED_AT_ONCE_BYTES, FH_UPPER, WritableOperations
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.node_ids import UPPER
from headrace.fuse.operations import DiskTask, Mode
from headrace.overlay.dirty_throttle import DirtyThrottle
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import ROOT, Reply
from tests.unit.fuse.memory_mount import MemoryMount

OpenMount = Callable[..., MemoryMount]
NOTE = b"user.note"


def upper_file(mount: MemoryMount, path: str) -> Path:
    return Path(mount.client.upper, "tree", path)


# ------------------------------------------------------------ create, write, read


def test_create_replies_with_an_entry_and_an_open_file(writable: MemoryMount) -> None:
    created = writable.kernel.create(b"new", mode=0o100640)
    status = upper_file(writable, "new").stat()
    node = UPPER | status.st_ino
    assert (created.entry.nodeid, created.entry.attr.ino) == (node, node)
    assert (created.entry.entry_valid, created.entry.attr_valid, created.entry.generation) == (1, 1, 1)
    attr = created.entry.attr
    assert (attr.mode, attr.size, attr.nlink) == (stat.S_IFREG | 0o640, 0, 1)
    assert (attr.uid, attr.gid) == (os.geteuid(), os.getegid())
    assert (created.open.fh, created.open.backing_id) == (FH_UPPER, 0)
    assert writable.kernel.lookup(b"new").nodeid == node


@pytest.mark.parametrize("chunk", [1, 4096, 100_000])
def test_written_bytes_are_on_disk_and_are_read_back(writable: MemoryMount, chunk: int) -> None:
    data = os.urandom(3 * chunk + chunk // 2)
    created = writable.kernel.create(b"new")
    node = created.entry.nodeid
    for offset in range(0, len(data), chunk):
        piece = data[offset : offset + chunk]
        assert writable.kernel.write(node, piece, offset=offset) == len(piece)
    assert writable.deferrals == [DiskTask]
    assert upper_file(writable, "new").read_bytes() == data
    for offset, size in ((0, len(data)), (1, 5), (len(data) - 1, 10), (len(data), 10), (1 << 30, 1)):
        assert writable.kernel.read(node, offset=offset, size=size) == data[offset : offset + size]
    assert writable.kernel.attributes(node).size == len(data)


def test_create_of_an_existing_file_opens_it(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"bytes")
    opened = writable.kernel.create(b"new", mode=0o100600)
    assert (opened.entry.nodeid, opened.entry.attr.size) == (node, 5)
    assert stat.S_IMODE(opened.entry.attr.mode) == 0o644
    truncated = writable.kernel.create(b"new", flags=os.O_RDWR | os.O_TRUNC)
    assert truncated.entry.attr.size == 0


def test_create_of_a_file_that_another_user_made_meanwhile_is_looked_up_again(writable: MemoryMount) -> None:
    """The kernel checks no rights of a file that it takes for new: it would let the user write the file of another."""
    if os.geteuid() != 0:
        pytest.skip("only root's layer has files of others")
    writable.user = 4242
    writable.kernel.write_file(b"secret", b"bytes")
    body = layout.CreateIn(os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o100644)
    for unique in (10, abi.RESENT_BIT | 10):
        writable.user = 4343
        assert writable.kernel.errno(Opcode.CREATE, ROOT, body, b"secret\0", unique=unique) == errno.ESTALE
        assert upper_file(writable, "secret").read_bytes() == b"bytes"
    writable.user = 4242
    assert writable.kernel.create(b"secret").entry.attr.size == 5


def test_create_exclusively_is_refused_for_every_kind_of_name(writable: MemoryMount) -> None:
    writable.kernel.write_file(b"new", b"")
    for name in (b"new", b"small", b"dir"):
        body = layout.CreateIn(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o100644)
        assert writable.kernel.errno(Opcode.CREATE, ROOT, body, name + b"\0") == errno.EEXIST
    resent = writable.kernel.call(Opcode.CREATE, ROOT, body, b"new\0", unique=abi.RESENT_BIT | 10)
    assert resent.error == 0, "the session before may have created it"


def test_another_user_owns_what_that_user_creates(writable: MemoryMount) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's layer has files of others")
    writable.user = 4242
    assert writable.kernel.create(b"new").entry.attr.uid == 4242
    assert upper_file(writable, "new").stat().st_uid == 4242


def test_a_file_of_the_origin_is_copied_up_when_it_is_opened_for_writing(
    writable: MemoryMount, origin: dict[str, bytes]
) -> None:
    lower = writable.kernel.lookup(b"big")
    assert writable.kernel.errno(Opcode.OPEN, lower.nodeid, layout.OpenIn(os.O_RDWR)) == errno.ESTALE
    assert writable.deferrals == ["node"]
    assert writable.invalidated == [(ROOT, b"big")]
    upper = writable.kernel.lookup(b"big")
    assert upper.nodeid & UPPER and upper.attr.ino == lower.attr.ino, (
        "programs still see the same inode number"
    )
    assert (upper.attr.size, upper.attr.mtime) == (lower.attr.size, lower.attr.mtime)
    writable.kernel.open(upper.nodeid, os.O_RDWR)
    assert writable.kernel.write(upper.nodeid, b"XYZ", offset=5) == 3
    expected = origin["big"][:5] + b"XYZ" + origin["big"][8:]
    assert upper_file(writable, "big").read_bytes() == expected
    assert Path(writable.client.folder, "source/big").read_bytes() == origin["big"]


def test_no_bytes_are_copied_for_a_file_that_is_truncated(writable: MemoryMount) -> None:
    node = writable.kernel.node("big")
    Path(writable.client.folder, "broken").touch()
    assert writable.kernel.errno(Opcode.OPEN, node, layout.OpenIn(os.O_WRONLY | os.O_TRUNC)) == errno.ESTALE
    assert writable.kernel.lookup(b"big").attr.size == 0


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC])
def test_an_open_of_a_file_that_was_demoted_meanwhile_makes_the_copy_that_the_kernel_finds(
    writable: MemoryMount, origin: dict[str, bytes], flags: int
) -> None:
    """The kernel looks a name up again once. It used to meet the file of the origin then, whose open for writing is
    ESTALE, too; so a program saw that."""
    node = _demoted(writable)
    assert writable.kernel.errno(Opcode.OPEN, node, layout.OpenIn(flags)) == errno.ESTALE
    again = writable.kernel.lookup(b"big")
    assert again.nodeid & UPPER
    writable.kernel.open(again.nodeid, flags)
    expected = b"" if flags & os.O_TRUNC else origin["big"]
    assert upper_file(writable, "big").read_bytes() == expected


def test_a_change_of_attributes_of_a_demoted_file_makes_the_copy_too(writable: MemoryMount) -> None:
    node = _demoted(writable)
    body = layout.SetattrIn(valid=abi.FATTR_MODE, mode=0o640)
    assert writable.kernel.errno(Opcode.SETATTR, node, body) == errno.ESTALE
    again = writable.kernel.lookup(b"big")
    assert again.nodeid & UPPER
    writable.kernel.call(Opcode.SETATTR, again.nodeid, body)
    assert stat.S_IMODE(upper_file(writable, "big").stat().st_mode) == 0o640


def test_an_open_of_a_demoted_file_for_reading_makes_no_copy(writable: MemoryMount) -> None:
    node = _demoted(writable)
    assert writable.kernel.errno(Opcode.OPEN, node, layout.OpenIn(os.O_RDONLY)) == errno.ESTALE
    assert not upper_file(writable, "big").exists()


def _demoted(mount: MemoryMount) -> int:
    """Return the node of a copy that the kernel knows, and that the node of Headrace removed then."""
    lower = mount.kernel.lookup(b"big")
    assert mount.kernel.errno(Opcode.OPEN, lower.nodeid, layout.OpenIn(os.O_RDWR)) == errno.ESTALE
    node: int = mount.kernel.lookup(b"big").nodeid
    upper_file(mount, "big").unlink()
    return node


def test_a_file_of_the_origin_is_read_as_on_a_read_only_mount(
    writable: MemoryMount, origin: dict[str, bytes]
) -> None:
    node = writable.kernel.node("dir/inner")
    assert writable.kernel.open(node).fh != FH_UPPER
    assert writable.kernel.read(node) == origin["dir/inner"]
    assert not upper_file(writable, "dir").exists()


def test_a_path_whose_mode_is_off_is_read_only(open_mount: OpenMount) -> None:
    mount = open_mount(write="off,/dir=back")
    node = mount.kernel.node("small")
    assert mount.kernel.errno(Opcode.OPEN, node, layout.OpenIn(os.O_RDWR)) == errno.EROFS
    body = layout.CreateIn(os.O_RDWR | os.O_CREAT, 0o100644)
    assert mount.kernel.errno(Opcode.CREATE, ROOT, body, b"new\0") == errno.EROFS
    assert mount.kernel.create(b"new", mount.kernel.node("dir")).open.fh == FH_UPPER


def test_all_opens_share_one_registration_in_passthrough(open_mount: OpenMount) -> None:
    mount = open_mount(Mode.PASSTHROUGH, write="back")
    created = mount.kernel.create(b"new")
    node, backing_id = created.entry.nodeid, created.open.backing_id
    assert created.open.open_flags & abi.FOPEN_PASSTHROUGH
    assert mount.backings.files == {backing_id: upper_file(mount, "new").stat().st_ino}
    again = mount.kernel.open(node, os.O_RDWR)
    assert (again.backing_id, again.open_flags & abi.FOPEN_PASSTHROUGH) == (backing_id, abi.FOPEN_PASSTHROUGH)
    mount.kernel.release(node, again.fh)
    assert mount.backings.closed == []
    mount.kernel.release(node, created.open.fh)
    assert mount.backings.closed == [backing_id], "the node must see that nobody has it open"


@pytest.mark.expected_warnings("passthrough refused, the session serves the file instead")
def test_the_session_serves_an_upper_file_whose_registration_is_refused(open_mount: OpenMount) -> None:
    """Its descriptor is closed with the last release, so that the node can demote the file."""
    mount = open_mount(Mode.PASSTHROUGH, write="back")
    mount.backings.failure = OSError(errno.ENFILE, os.strerror(errno.ENFILE))
    created = mount.kernel.create(b"new")
    node = created.entry.nodeid
    assert (created.open.backing_id, created.open.open_flags & abi.FOPEN_PASSTHROUGH) == (0, 0)
    mount.kernel.write(node, b"bytes")
    assert mount.kernel.read(node) == b"bytes"
    mount.kernel.release(node, created.open.fh)
    target = os.fsencode(upper_file(mount, "new"))
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    assert target not in [os.fsencode(os.readlink(link)) for link in links if os.path.islink(link)]
    mount.backings.failure = None
    assert mount.kernel.open(node, os.O_RDWR).open_flags & abi.FOPEN_PASSTHROUGH


def test_open_of_a_file_that_another_process_replaced_is_stale(writable: MemoryMount, tmp_path: Path) -> None:
    node = writable.kernel.write_file(b"new", b"old")
    other = tmp_path / "other"
    other.write_bytes(b"other")
    other.rename(upper_file(writable, "new"))
    assert writable.kernel.errno(Opcode.OPEN, node, layout.OpenIn(os.O_RDWR)) == errno.ESTALE
    for opcode, body in ((Opcode.READ, layout.ReadIn(0, 0, 10)), (Opcode.SETATTR, layout.SetattrIn(valid=1))):
        assert writable.kernel.errno(opcode, node, body) == errno.ESTALE


def test_an_open_file_is_served_after_its_name_is_gone(writable: MemoryMount) -> None:
    created = writable.kernel.create(b"new")
    node = created.entry.nodeid
    writable.kernel.write(node, b"bytes")
    assert writable.kernel.errno(Opcode.UNLINK, ROOT, b"new\0") == 0
    assert writable.kernel.read(node) == b"bytes"
    assert writable.kernel.attributes(node).nlink == 0
    assert writable.kernel.write(node, b"more", offset=5) == 4
    writable.kernel.release(node, created.open.fh)
    assert writable.kernel.errno(Opcode.GETATTR, node, layout.GetattrIn()) == errno.ESTALE


# ------------------------------------------------------------ reports and durability


def test_release_reports_a_changed_file_once(writable: MemoryMount) -> None:
    created = writable.kernel.create(b"new")
    node = created.entry.nodeid
    writable.client.reported.clear()
    writable.kernel.write(node, b"bytes")
    assert writable.client.reported == []
    second = writable.kernel.open(node)
    writable.kernel.release(node, second.fh)
    assert writable.client.reported == [b"/new"]
    writable.kernel.release(node, created.open.fh)
    assert writable.client.reported == [b"/new"], "nothing changed since"


def test_close_waits_for_nobody_in_mode_back(writable: MemoryMount) -> None:
    node = writable.kernel.create(b"new").entry.nodeid
    assert writable.kernel.open(node, os.O_WRONLY).open_flags & abi.FOPEN_NOFLUSH
    assert writable.kernel.errno(Opcode.FLUSH, node, layout.FlushIn(FH_UPPER)) == 0
    assert (writable.deferrals, writable.client.secured) == ([], [])


@pytest.mark.parametrize("opcode, body", [(Opcode.FLUSH, layout.FlushIn()), (Opcode.FSYNC, layout.FsyncIn())])
def test_close_and_fsync_wait_until_the_origin_has_the_file_in_mode_through(
    open_mount: OpenMount, opcode: Opcode, body: layout.FlushIn | layout.FsyncIn
) -> None:
    mount = open_mount(write="through")
    node = mount.kernel.create(b"new").entry.nodeid
    assert not mount.kernel.open(node, os.O_WRONLY).open_flags & abi.FOPEN_NOFLUSH
    mount.kernel.write(node, b"bytes")
    mount.client.secured.clear()
    mount.client.failure = OriginUnavailableError("a")
    with pytest.raises(OriginUnavailableError):
        mount.kernel.call(opcode, node, body)
    mount.client.failure = None
    assert mount.kernel.errno(opcode, node, body) == 0
    assert mount.client.secured == [b"/new"]
    assert mount.kernel.errno(opcode, node, body) == 0
    assert mount.client.secured == [b"/new"], "it is durable already"


@pytest.mark.parametrize("opcode, body", [(Opcode.FLUSH, layout.FlushIn()), (Opcode.FSYNC, layout.FsyncIn())])
def test_close_and_fsync_wait_where_an_earlier_session_opened_the_file(
    open_mount: OpenMount, opcode: Opcode, body: layout.FlushIn | layout.FsyncIn
) -> None:
    """A session that took over gets them for files that it has not opened."""
    mount = open_mount(write="through,/dir=back")
    node = mount.kernel.write_file(b"new", b"bytes")
    quick = mount.kernel.write_file(b"quick", b"bytes", mount.kernel.node("dir"))
    mount.client.secured.clear()
    mount.client.reported.clear()
    mount.client.failure = OriginUnavailableError("a")
    with pytest.raises(OriginUnavailableError):
        mount.kernel.call(opcode, node, body)
    assert mount.kernel.errno(opcode, quick, body) == 0
    mount.client.failure = None
    assert mount.kernel.errno(opcode, node, body) == 0
    assert mount.client.secured == [b"/new"]
    assert b"/new" in mount.client.reported, "what was written through the earlier session was not reported"
    assert mount.kernel.errno(Opcode.UNLINK, ROOT, b"new\0") == 0
    assert mount.kernel.errno(Opcode.FLUSH, node, layout.FlushIn()) == 0, "a file without a name"


def test_after_a_close_that_failed_the_next_open_of_the_file_waits_for_the_origin_too(
    open_mount: OpenMount,
) -> None:
    """Nothing was written since: the bytes of the earlier writer are what must be durable."""
    mount = open_mount(write="through")
    created = mount.kernel.create(b"new")
    node = created.entry.nodeid
    mount.kernel.write(node, b"bytes")
    mount.client.failure = OriginUnavailableError("a")
    with pytest.raises(OriginUnavailableError):
        mount.kernel.call(Opcode.FLUSH, node, layout.FlushIn())
    mount.kernel.release(node, created.open.fh)
    mount.kernel.open(node)
    with pytest.raises(OriginUnavailableError):
        mount.kernel.call(Opcode.FSYNC, node, layout.FsyncIn())
    mount.client.failure = None
    for _ in range(2):
        assert mount.kernel.errno(Opcode.FSYNC, node, layout.FsyncIn()) == 0
    assert mount.client.secured == [b"/new"]


def test_close_waits_where_this_session_opened_the_file_again(
    open_mount: OpenMount, handover: HandoverState
) -> None:
    """The writer opened it through the earlier session."""
    handover.save(init_flags=1, mode="splice")
    mount = open_mount(write="through")
    node = mount.kernel.write_file(b"new", b"bytes")
    mount.client.secured.clear()
    mount.kernel.open(node)
    for _ in range(2):
        assert mount.kernel.errno(Opcode.FLUSH, node, layout.FlushIn()) == 0
    assert mount.client.secured == [b"/new"]


def test_the_node_hears_of_an_open_file_that_other_nodes_will_copy(open_mount: OpenMount) -> None:
    mount = open_mount(write="back:2")
    mount.kernel.create(b"new")
    assert mount.client.begun == [b"/new"]


@pytest.mark.parametrize("flags", [0, abi.FSYNC_DATA_ONLY])
def test_fsync_waits_for_the_disk(writable: MemoryMount, flags: int) -> None:
    node = writable.kernel.write_file(b"new", b"bytes")
    assert writable.kernel.errno(Opcode.FSYNC, node, layout.FsyncIn(0, flags)) == 0
    assert writable.deferrals == [DiskTask]
    lower = writable.kernel.node("small")
    assert writable.kernel.errno(Opcode.FSYNC, lower, layout.FsyncIn()) == 0
    assert writable.deferrals == [], "nothing of it was written"


def test_fsyncdir_waits_for_the_disk_where_the_upper_layer_has_the_directory(writable: MemoryMount) -> None:
    assert writable.kernel.errno(Opcode.FSYNCDIR, writable.kernel.node("dir"), layout.FsyncIn()) == 0
    assert writable.deferrals == []
    assert writable.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o755), b"made\0") == 0
    assert writable.kernel.errno(Opcode.FSYNCDIR, writable.kernel.node("made"), layout.FsyncIn()) == 0
    assert writable.deferrals == [DiskTask]


def test_writers_are_slowed_down_while_persisting_is_behind(writable: MemoryMount) -> None:
    assert writable.kernel.create(b"first").open.fh == FH_UPPER
    assert writable.deferrals == []
    node_side = DirtyThrottle(f"{writable.client.upper}/pressure")
    node_side.set(11, 20)
    writable.kernel.create(b"second")
    assert writable.deferrals == ["node"]
    node_side.close()


# ------------------------------------------------------------ attributes


@pytest.mark.parametrize("is_open", [True, False])
def test_setattr_changes_what_its_bits_name(writable: MemoryMount, *, is_open: bool) -> None:
    node = writable.kernel.write_file(b"new", b"0123456789")
    if is_open:
        writable.kernel.open(node, os.O_RDWR)

    def changed(valid: int, **values: int) -> layout.Attr:
        attr: layout.Attr = writable.kernel.setattr(node, valid, **values).decoded(layout.AttrOut).attr
        assert bytes(attr) == bytes(writable.kernel.attributes(node))
        return attr

    assert changed(abi.FATTR_SIZE, size=4).size == 4
    assert upper_file(writable, "new").read_bytes() == b"0123"
    before = writable.kernel.attributes(node)  # that read may have changed the atime
    assert changed(abi.FATTR_SIZE, size=6).size == 6
    assert changed(abi.FATTR_MODE, mode=0o100600).mode == stat.S_IFREG | 0o600
    attr = changed(abi.FATTR_MTIME, mtime=11, mtimensec=12)
    assert (attr.mtime, attr.mtimensec, attr.atime) == (11, 12, before.atime)
    attr = changed(abi.FATTR_ATIME, atime=(1 << 64) - 5, atimensec=6)
    assert (attr.atime, attr.atimensec, attr.mtime) == ((1 << 64) - 5, 6, 11), "a time before 1970"
    attr = changed(abi.FATTR_UID | abi.FATTR_GID, uid=os.geteuid(), gid=os.getegid())
    assert (attr.uid, attr.gid) == (os.geteuid(), os.getegid())


def test_setattr_of_a_file_of_the_origin_copies_it_up(
    writable: MemoryMount, origin: dict[str, bytes]
) -> None:
    node = writable.kernel.node("small")
    assert writable.kernel.setattr(node, abi.FATTR_MODE, mode=0o600).error == errno.ESTALE
    again = writable.kernel.node("small")
    attr = writable.kernel.setattr(again, abi.FATTR_MODE, mode=0o600).decoded(layout.AttrOut).attr
    assert stat.S_IMODE(attr.mode) == 0o600
    assert writable.kernel.read(again) == origin["small"]


def test_truncation_of_a_file_of_the_origin_copies_no_bytes(writable: MemoryMount) -> None:
    Path(writable.client.folder, "broken").touch()
    node = writable.kernel.node("big")
    assert writable.kernel.setattr(node, abi.FATTR_SIZE, size=0).error == errno.ESTALE
    again = writable.kernel.setattr(writable.kernel.node("big"), abi.FATTR_SIZE, size=0)
    assert again.decoded(layout.AttrOut).attr.size == 0


@pytest.mark.parametrize("valid", [0, abi.FATTR_KILL_SUIDGID | abi.FATTR_SIZE, abi.FATTR_UID])
def test_set_id_bits_are_dropped_by_a_change(writable: MemoryMount, valid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("a user's layer has no set-id bits")
    node = writable.kernel.write_file(b"new", b"x")
    assert stat.S_IMODE(_with_mode(writable, node, 0o6755)) == 0o6755
    attr = writable.kernel.setattr(node, valid, size=1, uid=0).decoded(layout.AttrOut).attr
    assert stat.S_IMODE(attr.mode) == 0o755
    assert stat.S_IMODE(_with_mode(writable, node, 0o6745)) == 0o6745
    attr = writable.kernel.setattr(node, valid, size=1, uid=0).decoded(layout.AttrOut).attr
    assert stat.S_IMODE(attr.mode) == 0o2745, "without group execution the set-group-id bit means a lock"


def _with_mode(mount: MemoryMount, node: int, mode: int) -> int:
    mode_shown: int = mount.kernel.setattr(node, abi.FATTR_MODE, mode=mode).decoded(layout.AttrOut).attr.mode
    return mode_shown


@pytest.mark.parametrize("how", ["write", "open", "open again", "create"])
def test_a_write_of_another_user_drops_set_id_bits(writable: MemoryMount, how: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a user's layer has no set-id bits")
    node = writable.kernel.write_file(b"new", b"x")
    _with_mode(writable, node, 0o4755)
    if how == "create":
        body = layout.CreateIn(os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o100644, 0, abi.OPEN_KILL_SUIDGID)
        writable.kernel.call(Opcode.CREATE, ROOT, body, b"new\0")
    elif how == "write":
        writable.kernel.write(node, b"y", flags=abi.WRITE_KILL_SUIDGID)
    else:
        if how == "open again":
            writable.kernel.open(node, os.O_RDWR)
        writable.kernel.open(node, os.O_RDWR | os.O_TRUNC, kill_ids=True)
    assert stat.S_IMODE(writable.kernel.attributes(node).mode) == 0o755


@pytest.mark.parametrize("is_open", [True, False])
def test_extended_attributes_are_set_listed_and_removed(writable: MemoryMount, *, is_open: bool) -> None:
    node = writable.kernel.write_file(b"new", b"")
    if is_open:
        writable.kernel.open(node, os.O_RDWR)
    assert writable.kernel.set_xattr(node, NOTE, b"first\0value") == 0
    assert writable.kernel.xattr(node, NOTE) == Reply(0, b"first\0value")
    assert writable.kernel.xattr(node, NOTE, 3).error == errno.ERANGE
    assert writable.kernel.xattr(node, NOTE, 0).decoded(layout.GetxattrOut).size == 11
    assert writable.kernel.set_xattr(node, NOTE, b"x", os.XATTR_CREATE) == errno.EEXIST
    assert writable.kernel.set_xattr(node, b"user.none", b"x", os.XATTR_REPLACE) == errno.ENODATA
    names = writable.kernel.call(Opcode.LISTXATTR, node, layout.GetxattrIn(4096))
    assert names == Reply(0, NOTE + b"\0")
    assert writable.kernel.errno(Opcode.REMOVEXATTR, node, NOTE + b"\0") == 0
    assert writable.kernel.errno(Opcode.REMOVEXATTR, node, NOTE + b"\0") == errno.ENODATA
    assert writable.kernel.xattr(node, NOTE).error == errno.ENODATA


@pytest.mark.parametrize("call", ["getxattr", "listxattr"])
def test_attributes_are_read_while_another_thread_ends_the_last_use_of_the_file(
    writable: MemoryMount, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The number of its descriptor may be another file's then."""
    created = writable.kernel.create(b"new")
    node = created.entry.nodeid
    assert not writable.kernel.set_xattr(node, NOTE, b"value")
    assert isinstance(writable.operations, WritableOperations)
    others = contextlib.ExitStack()
    others.enter_context(writable.operations._open_files.use(node))
    writable.kernel.release(node, created.open.fh)
    read = getattr(os, call)

    def read_after_the_other(*arguments: object) -> object:
        others.close()
        return read(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(os, call, read_after_the_other)
        if call == "getxattr":
            assert writable.kernel.xattr(node, NOTE) == Reply(0, b"value")
        else:
            names = writable.kernel.call(Opcode.LISTXATTR, node, layout.GetxattrIn(4096))
            assert names == Reply(0, NOTE + b"\0")
    assert writable.kernel.xattr(node, NOTE) == Reply(0, b"value")


@pytest.mark.parametrize(
    "name, expected",
    [
        (b"user.headrace.base", errno.EPERM),
        (b"user.headrace.", errno.EPERM),
        (b"trusted.headrace.base", errno.ENOTSUP),
        (b"system.posix_acl_access", errno.ENOTSUP),
    ],
)
def test_nobody_sets_marks_of_the_layer(writable: MemoryMount, name: bytes, expected: int) -> None:
    node = writable.kernel.write_file(b"new", b"")
    assert writable.kernel.set_xattr(node, name, b"x") == expected
    assert os.listxattr(upper_file(writable, "new")) == []


def test_nobody_sees_or_removes_marks_of_the_layer(writable: MemoryMount) -> None:
    writable.kernel.errno(Opcode.OPEN, writable.kernel.node("small"), layout.OpenIn(os.O_RDWR))
    node = writable.kernel.node("small")
    (mark, *_) = (
        name for name in os.listxattr(upper_file(writable, "small")) if name.endswith("headrace.base")
    )
    assert writable.kernel.call(Opcode.LISTXATTR, node, layout.GetxattrIn(4096)) == Reply(0, b"")
    assert writable.kernel.xattr(node, mark.encode()).error == errno.ENODATA
    assert writable.kernel.errno(Opcode.REMOVEXATTR, node, mark.encode() + b"\0") == errno.ENODATA
    assert mark in os.listxattr(upper_file(writable, "small"))


def test_an_attribute_of_a_file_of_the_origin_copies_it_up(writable: MemoryMount) -> None:
    node = writable.kernel.node("small")
    assert writable.kernel.set_xattr(node, NOTE, b"x") == errno.ESTALE
    assert writable.kernel.set_xattr(writable.kernel.node("small"), NOTE, b"x") == 0
    assert os.getxattr(upper_file(writable, "small"), NOTE) == b"x"


# ------------------------------------------------------------ allocation and seeking


def test_fallocate_extends_and_punches(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"x" * 8192)
    assert writable.kernel.errno(Opcode.FALLOCATE, node, layout.FallocateIn(0, 0, 20_000, 0)) == 0
    assert writable.kernel.attributes(node).size == 20_000
    keep_size_and_punch = 3
    assert (
        writable.kernel.errno(Opcode.FALLOCATE, node, layout.FallocateIn(0, 0, 4096, keep_size_and_punch))
        == 0
    )
    assert writable.kernel.read(node, size=8192) == bytes(4096) + b"x" * 4096
    assert writable.deferrals == [DiskTask] and writable.kernel.attributes(node).size == 20_000


def test_a_long_fallocate_is_deferred(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"")
    for length, deferrals in ((FALLOCATED_AT_ONCE_BYTES, []), (FALLOCATED_AT_ONCE_BYTES + 1, [DiskTask])):
        assert writable.kernel.errno(Opcode.FALLOCATE, node, layout.FallocateIn(0, 0, length, 0)) == 0
        assert writable.deferrals == deferrals
        assert writable.kernel.attributes(node).size == length


def test_lseek_finds_data_and_holes(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"")
    writable.kernel.write(node, b"x", offset=1 << 20)
    hole = upper_file(writable, "new")
    fd = os.open(hole, os.O_RDONLY)
    for offset, whence in ((0, os.SEEK_DATA), (0, os.SEEK_HOLE), (1 << 20, os.SEEK_HOLE)):
        out = writable.kernel.call(Opcode.LSEEK, node, layout.LseekIn(0, offset, whence)).decoded(
            layout.LseekOut
        )
        assert out.offset == os.lseek(fd, offset, whence)
    os.close(fd)
    past_end = layout.LseekIn(0, 1 << 21, os.SEEK_DATA)
    assert writable.kernel.errno(Opcode.LSEEK, node, past_end) == errno.ENXIO


def test_a_file_of_the_origin_is_data_up_to_its_end(writable: MemoryMount, origin: dict[str, bytes]) -> None:
    """ENOSYS would end all LSEEKs of the mount, also those of files with holes."""
    node, end = writable.kernel.node("small"), len(origin["small"])
    for offset, whence, expected in ((0, os.SEEK_DATA, 0), (3, os.SEEK_DATA, 3), (3, os.SEEK_HOLE, end)):
        reply = writable.kernel.call(Opcode.LSEEK, node, layout.LseekIn(0, offset, whence))
        assert reply.decoded(layout.LseekOut).offset == expected
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        assert writable.kernel.errno(Opcode.LSEEK, node, layout.LseekIn(0, end, whence)) == errno.ENXIO


def test_what_can_not_be_done_truly_is_refused(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"x")
    body = layout.CopyFileRangeIn(0, 0, node, 0, 0, 1, 0)
    assert writable.kernel.errno(Opcode.COPY_FILE_RANGE, node, body) == errno.ENOSYS
    assert writable.kernel.errno(Opcode.TMPFILE, ROOT, layout.CreateIn(), b"\0") == errno.ENOSYS
    assert {Opcode.ACCESS, Opcode.INTERRUPT, Opcode.INIT}.isdisjoint(writable.table)
