"""A read-only mount answers each request of the kernel with the origin's names and bytes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import CancelledByUserError, OriginUnavailableError
from headrace.base.model import ROOT_ID, Kind
from headrace.fuse import abi
from headrace.fuse.abi import Opcode
from headrace.fuse.operations import DiskTask, Mode, PendingRead
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import ROOT, Name, Reply, decoded_names
from tests.unit.fuse.memory_mount import MemoryMount

MIB = 1 << 20
CHANGES = (
    *(Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR, Opcode.RENAME),
    *(Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR, Opcode.REMOVEXATTR, Opcode.CREATE, Opcode.FALLOCATE),
    *(Opcode.RENAME2, Opcode.COPY_FILE_RANGE, Opcode.TMPFILE),
)
OpenMount = Callable[..., MemoryMount]


def test_lookup_of_a_file_replies_with_its_entry(mount: MemoryMount, origin: dict[str, bytes]) -> None:
    entry = mount.kernel.lookup(b"big")
    id = mount.client.id_of("/big")
    assert entry.nodeid == mount.handover.incarnation << 48 | id
    assert (entry.generation, entry.entry_valid, entry.attr_valid) == (1, 3600, 1 << 31)
    source = Path(mount.client.folder, "source/big").stat()
    attr = entry.attr
    assert (attr.ino, attr.size, attr.blocks) == (id, len(origin["big"]), (len(origin["big"]) + 511) // 512)
    assert (attr.mode, attr.nlink, attr.rdev) == (stat.S_IFREG | 0o444, 1, 0)
    assert (attr.uid, attr.gid) == (os.getuid(), os.getgid())
    assert attr.mtime * 10**9 + attr.mtimensec == source.st_mtime_ns
    assert mount.deferrals == []


def test_lookup_of_a_directory_replies_with_the_id_of_the_index(mount: MemoryMount) -> None:
    entry = mount.kernel.lookup(b"dir")
    assert entry.nodeid == entry.attr.ino == mount.client.id_of("/dir")
    assert (entry.attr.mode, entry.attr.nlink) == (stat.S_IFDIR | 0o555, 2)


def test_lookup_of_a_missing_name_is_kept_by_the_kernel(mount: MemoryMount) -> None:
    entry = mount.kernel.lookup(b"missing")
    assert bytes(entry) == bytes(layout.EntryOut(entry_valid=3600))


def test_lookup_waits_for_the_node_only_where_the_index_can_not_answer(mount: MemoryMount) -> None:
    fast = bytes(mount.kernel.lookup(b"small"))
    mount.client.options["miss"] = True
    assert bytes(mount.kernel.lookup(b"small")) == fast
    assert mount.deferrals == ["node"]
    assert bytes(mount.kernel.lookup(b"small")) == fast
    assert mount.deferrals == []


def test_a_cancelled_lookup_ends(mount: MemoryMount) -> None:
    mount.client.options["miss"] = True
    Path(mount.client.folder, "stuck").touch()
    cancel = Cancel()
    cancel.set()
    with pytest.raises(CancelledByUserError):
        mount.finish(mount.begin(Opcode.LOOKUP, ROOT, b"small\0", unique=2), cancel)
    cancel.close()


@pytest.mark.parametrize("length, expected", [(255, 0), (256, errno.ENAMETOOLONG)])
def test_a_name_has_at_most_255_bytes(mount: MemoryMount, length: int, expected: int) -> None:
    assert mount.kernel.errno(Opcode.LOOKUP, ROOT, b"x" * length + b"\0") == expected


def test_forget_gets_no_reply(mount: MemoryMount) -> None:
    node = mount.kernel.node("small")
    mount.kernel.notify(Opcode.FORGET, node, layout.ForgetIn(1))
    mount.kernel.notify(
        Opcode.BATCH_FORGET, 0, layout.BatchForgetIn(2), layout.ForgetOne(node, 1), layout.ForgetOne(5, 2)
    )
    assert mount.device.is_silent()


def test_getattr_replies_with_the_attributes_of_the_lookup(mount: MemoryMount) -> None:
    entry = mount.kernel.lookup(b"small")
    out = mount.kernel.call(Opcode.GETATTR, entry.nodeid, layout.GetattrIn()).decoded(layout.AttrOut)
    assert bytes(out.attr) == bytes(entry.attr)
    assert out.attr_valid == 1 << 31
    directory = mount.kernel.call(Opcode.GETATTR, ROOT, layout.GetattrIn()).decoded(layout.AttrOut)
    assert (directory.attr.ino, directory.attr_valid) == (ROOT_ID, 1)


@pytest.mark.parametrize("node", [12345, 1 << 48 | 12345, (1 << 64) - 1])
def test_getattr_of_an_unknown_node_is_stale(mount: MemoryMount, node: int) -> None:
    assert mount.kernel.errno(Opcode.GETATTR, node, layout.GetattrIn()) == errno.ESTALE


# ------------------------------------------------------------ open, read, release


def test_open_in_splice_keeps_the_kernels_pages(mount: MemoryMount) -> None:
    opened = mount.kernel.open(mount.kernel.node("small"))
    assert opened.open_flags == abi.FOPEN_KEEP_CACHE | abi.FOPEN_NOFLUSH
    assert opened.backing_id == 0
    assert mount.client.touched == [mount.client.id_of("/small")] * len(mount.client.touched) != []


def test_open_in_passthrough_registers_the_cache_file_once(open_mount: OpenMount) -> None:
    mount = open_mount(Mode.PASSTHROUGH)
    node, id = mount.kernel.node("small"), mount.client.id_of("/small")
    first, second = mount.kernel.open(node), mount.kernel.open(node)
    assert bytes(first) == bytes(second)
    assert first.open_flags == abi.FOPEN_PASSTHROUGH | abi.FOPEN_NOFLUSH
    cache_file = mount.client.complete_path(id)
    assert cache_file is not None
    assert mount.backings.files == {first.backing_id: os.stat(cache_file).st_ino}
    mount.kernel.release(node, first.fh)
    mount.kernel.release(node, second.fh)
    mount.inodes.evict([id])
    assert mount.backings.closed == [first.backing_id]


def test_an_evicted_file_stays_registered_until_its_last_release(open_mount: OpenMount) -> None:
    mount = open_mount(Mode.PASSTHROUGH)
    node = mount.kernel.node("small")
    opened = mount.kernel.open(node)
    mount.inodes.evict([mount.client.id_of("/small")])
    assert mount.backings.closed == []
    mount.kernel.release(node, opened.fh)
    assert mount.backings.closed == [opened.backing_id]


@pytest.mark.expected_warnings("passthrough refused, the session serves the file instead")
def test_the_session_serves_a_file_whose_registration_is_refused(
    open_mount: OpenMount, origin: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    mount = open_mount(Mode.PASSTHROUGH)
    mount.backings.failure = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    node = mount.kernel.node("small")
    assert mount.kernel.open(node).open_flags == abi.FOPEN_KEEP_CACHE | abi.FOPEN_NOFLUSH
    assert mount.kernel.read(node) == origin["small"]
    assert "passthrough refused" in caplog.text


def test_open_is_not_needed_in_noopen(open_mount: OpenMount) -> None:
    mount = open_mount(Mode.NOOPEN)
    assert mount.kernel.errno(Opcode.OPEN, mount.kernel.node("small"), layout.OpenIn()) == errno.ENOSYS


def test_open_and_read_of_an_unknown_node_fail_as_lookups_of_it_do(mount: MemoryMount) -> None:
    node = 1 << 48 | 999
    for opcode, body in ((Opcode.OPEN, layout.OpenIn()), (Opcode.READ, layout.ReadIn(0, 0, 10))):
        with pytest.raises(FileNotFoundError):
            mount.kernel.call(opcode, node, body)
    assert mount.device.is_silent()


@pytest.mark.parametrize("mode", [Mode.SPLICE, Mode.NOOPEN])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("path", ["small", "empty", "big", "dir/inner", "dir/sub/deep"])
def test_reads_return_the_origins_bytes(
    open_mount: OpenMount, origin: dict[str, bytes], mode: Mode, path: str, *, is_open: bool
) -> None:
    """A new session also reads files that an earlier one opened."""
    mount, data = open_mount(mode), origin[path]
    node = mount.kernel.node(path)
    if is_open and mode is not Mode.NOOPEN:
        mount.kernel.open(node)
    for offset in (0, 1, MIB - 5, MIB, len(data) - 1, len(data), len(data) + 1, 1 << 40):
        for size in (1, 4096, 1 << 17):
            if offset >= 0:
                assert mount.kernel.read(node, offset=offset, size=size) == data[offset : offset + size]


def test_a_read_waits_for_missing_blocks_only(mount: MemoryMount) -> None:
    node = mount.kernel.node("big")
    mount.kernel.open(node)
    mount.kernel.read(node, size=4096)
    assert mount.deferrals == [DiskTask, "node"]
    mount.kernel.read(node, offset=8192, size=4096)
    assert mount.deferrals == [DiskTask]
    mount.kernel.read(node, offset=2 * MIB, size=4096)
    assert mount.deferrals == [DiskTask, "node"]
    assert mount.client.filled[mount.client.id_of("/big")] == {0, 2}


def test_a_small_read_without_open_begins_at_once(open_mount: OpenMount, origin: dict[str, bytes]) -> None:
    mount = open_mount(Mode.NOOPEN)
    id = mount.client.id_of("/big")
    mount.client.complete(id)
    node = mount.kernel.node("big")
    assert mount.kernel.read(node, offset=7, size=1 << 17) == origin["big"][7 : 7 + (1 << 17)]
    assert mount.deferrals == [PendingRead]
    for size, kind in ((1 << 18, PendingRead), ((1 << 18) + 1, DiskTask)):
        assert isinstance(mount.begin(Opcode.READ, node, layout.ReadIn(0, 0, size), unique=2), kind)


def test_a_read_that_fails_at_the_origin_replies_nothing(mount: MemoryMount) -> None:
    """The session then replies with the errno of the error."""
    node = mount.kernel.node("big")
    mount.kernel.open(node)
    Path(mount.client.folder, "broken").touch()
    with pytest.raises(OriginUnavailableError):
        mount.kernel.read(node)
    assert mount.device.is_silent()
    Path(mount.client.folder, "broken").unlink()
    assert mount.kernel.read(node, size=1) != b""


def test_a_cancelled_read_ends(mount: MemoryMount) -> None:
    node = mount.kernel.node("big")
    mount.kernel.open(node)
    Path(mount.client.folder, "stuck").touch()
    cancel = Cancel()
    cancel.set()
    with pytest.raises(CancelledByUserError):
        mount.finish(mount.begin(Opcode.READ, node, layout.ReadIn(0, 0, 4096), unique=2), cancel)
    cancel.close()
    assert mount.device.is_silent()


# ------------------------------------------------------------ directories


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [400, 4096])
def test_a_directory_is_read_in_pages(mount: MemoryMount, size: int, *, plus: bool) -> None:
    names = mount.kernel.names(size=size, plus=plus)
    assert [row.name for row in names] == [b".", b"..", b"big", b"dir", b"empty", b"small"]
    assert [row.type for row in names] == [4, 4, 8, 4, 8, 8]
    assert [row.offset for row in names] == [1, 2, 3, 4, 5, 6]
    ids = [mount.client.id_of(path) for path in ("/big", "/dir", "/empty", "/small")]
    assert [row.number for row in names] == [ROOT_ID, ROOT_ID, *ids]


def test_readdirplus_looks_each_name_up(mount: MemoryMount) -> None:
    for row in mount.kernel.names(plus=True):
        assert row.entry is not None
        looked_up = layout.EntryOut() if row.name in (b".", b"..") else mount.kernel.lookup(row.name)
        assert bytes(row.entry) == bytes(looked_up)


def test_the_parent_of_a_directory_is_its_dots(mount: MemoryMount) -> None:
    rows = mount.kernel.names(mount.kernel.node("dir/sub"))
    sub, parent = mount.client.id_of("/dir/sub"), mount.client.id_of("/dir")
    assert [(row.name, row.number) for row in rows[:2]] == [(b".", sub), (b"..", parent)]


def test_a_program_seeks_in_a_directory(mount: MemoryMount) -> None:
    from_start = mount.kernel.names()
    fh = 99  # of an earlier session
    for offset in range(7):
        page = mount.kernel.call(Opcode.READDIR, ROOT, layout.ReadIn(fh, offset, 4096))
        rest = from_start[offset:]
        assert page.body.endswith(b"small\0\0\0") or not rest
        assert len(page.body) == sum(24 + (len(row.name) + 7) // 8 * 8 for row in rest)


def page_of(mount: MemoryMount, fh: int, offset: int, size: int = 4096) -> list[Name]:
    body = mount.kernel.call(Opcode.READDIR, ROOT, layout.ReadIn(fh, offset, size)).body
    return decoded_names(body, plus=False)


def test_a_directory_that_is_rewound_shows_all_its_names_again(mount: MemoryMount) -> None:
    fh = mount.kernel.call(Opcode.OPENDIR, ROOT, layout.OpenIn()).decoded(layout.OpenOut).fh
    first = page_of(mount, fh, 0, 120)
    assert [row.name for row in first] == [b".", b"..", b"big", b"dir"][: len(first)]
    mount.client.add_at_origin("/a", 77, Kind.FILE)
    names: list[Name] = []
    while page := page_of(mount, fh, names[-1].offset if names else 0, 120):
        names += page
    assert [row.name for row in names] == [b".", b"..", b"a", b"big", b"dir", b"empty", b"small"]


def test_a_file_that_is_removed_while_a_page_is_read_skips_no_other(mount: MemoryMount) -> None:
    fh = mount.kernel.call(Opcode.OPENDIR, ROOT, layout.OpenIn()).decoded(layout.OpenOut).fh
    assert [row.name for row in page_of(mount, fh, 0)][2:] == [b"big", b"dir", b"empty", b"small"]
    mount.client.remove_at_origin("/big")
    assert [row.name for row in page_of(mount, fh, 4)] == [b"empty", b"small"], "its buffer held four names"


def test_the_end_of_a_directory_stays_its_end(mount: MemoryMount) -> None:
    fh = 99  # of an earlier session
    assert [page_of(mount, fh, 6) for _ in range(2)] == [[], []]
    assert [page_of(mount, fh, 1000) for _ in range(2)] == [[], []]


def test_opendir_caches_what_is_fresh_and_waits_for_the_rest(mount: MemoryMount) -> None:
    opened = mount.kernel.call(Opcode.OPENDIR, ROOT, layout.OpenIn()).decoded(layout.OpenOut)
    assert opened.open_flags == abi.FOPEN_CACHE_DIR | abi.FOPEN_KEEP_CACHE
    mount.client.options["miss"] = True
    again = mount.kernel.call(Opcode.OPENDIR, ROOT, layout.OpenIn()).decoded(layout.OpenOut)
    assert (again.open_flags, mount.deferrals) == (abi.FOPEN_CACHE_DIR, ["node"])
    assert again.fh != opened.fh


# ------------------------------------------------------------ the rest


def test_statfs_counts_pages(mount: MemoryMount) -> None:
    out = mount.kernel.call(Opcode.STATFS, ROOT).decoded(layout.StatfsOut)
    assert (out.bsize, out.frsize, out.namelen) == (4096, 4096, 255)
    assert (out.blocks * 4096, out.bfree * 4096, out.bavail) == (1 << 30, 1 << 29, out.bfree)
    assert out.files == len(mount.client._entries)


@pytest.mark.parametrize("name", [b"user.headrace.cached", b"user.headrace.version", b"user.headrace.origin"])
def test_getxattr_replies_with_the_state_of_a_file(mount: MemoryMount, name: bytes) -> None:
    node = mount.kernel.node("small")
    state = mount.client.file_state(mount.client.id_of("/small"))
    value = state[name.rpartition(b".")[2].decode()].encode()
    assert mount.kernel.xattr(node, name) == Reply(0, value)
    assert mount.kernel.xattr(node, name, len(value)) == Reply(0, value)
    assert mount.kernel.xattr(node, name, len(value) - 1).error == errno.ERANGE
    assert mount.kernel.xattr(node, name, 0).decoded(layout.GetxattrOut).size == len(value)


@pytest.mark.parametrize(
    "name", [b"user.other", b"user.headrace.", b"user.headrace.socket", b"security.selinux", b""]
)
def test_getxattr_of_another_name_finds_none(mount: MemoryMount, name: bytes) -> None:
    assert mount.kernel.xattr(mount.kernel.node("small"), name).error == errno.ENODATA


def test_listxattr_names_what_files_have(mount: MemoryMount) -> None:
    listed = b"user.headrace.cached\0user.headrace.origin\0user.headrace.version\0"
    node = mount.kernel.node("small")
    assert mount.kernel.call(Opcode.LISTXATTR, node, layout.GetxattrIn(4096)) == Reply(0, listed)
    assert mount.kernel.errno(Opcode.LISTXATTR, node, layout.GetxattrIn(len(listed) - 1)) == errno.ERANGE
    size = mount.kernel.call(Opcode.LISTXATTR, node, layout.GetxattrIn(0)).decoded(layout.GetxattrOut)
    assert size.size == len(listed)
    assert mount.kernel.call(Opcode.LISTXATTR, ROOT, layout.GetxattrIn(4096)) == Reply(0, b"")


@pytest.mark.parametrize("opcode", CHANGES)
def test_no_change_reaches_a_read_only_mount(mount: MemoryMount, opcode: Opcode) -> None:
    """MS_RDONLY refuses most of these before; the answer holds for what the kernel does not check."""
    assert mount.kernel.errno(opcode, ROOT, bytes(200)) == errno.EROFS


def test_each_opcode_is_answered_or_unknown(mount: MemoryMount) -> None:
    """The kernel sends ACCESS, LSEEK, FLUSH and the like once: ENOSYS makes it answer them itself."""
    unknown = set(Opcode) - set(mount.table)
    assert unknown == {
        *(Opcode.READLINK, Opcode.FSYNC, Opcode.FLUSH, Opcode.INIT, Opcode.FSYNCDIR, Opcode.ACCESS),
        *(Opcode.INTERRUPT, Opcode.DESTROY, Opcode.LSEEK),
    }
