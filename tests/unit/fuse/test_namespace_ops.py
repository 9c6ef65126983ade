"""Names of a writable mount: what the upper layer and the origin have together, and each change of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import NodeUnavailableError, OriginUnavailableError
from headrace.fuse import abi
from headrace.fuse.abi import Opcode
from headrace.fuse.namespace_ops import NamespaceOperations
from headrace.fuse.node_ids import NODE_SHIFT, UPPER
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version
from headrace.overlay.upper import Upper
from headrace.wire.messages import Written
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import ROOT, Reply
from tests.unit.fuse.memory_mount import MemoryMount

OpenMount = Callable[..., MemoryMount]
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
RESENT = abi.RESENT_BIT | 10


def make_directory(mount: MemoryMount, name: bytes, parent: int = ROOT, mode: int = 0o755) -> int:
    entry = mount.kernel.call(Opcode.MKDIR, parent, layout.MkdirIn(mode), name + b"\0").decoded(
        layout.EntryOut
    )
    node: int = entry.nodeid
    return node


def upper_path(mount: MemoryMount, path: str) -> Path:
    return Path(mount.client.upper, "tree", path)


def names_of(mount: MemoryMount, node: int = ROOT) -> list[bytes]:
    return [row.name for row in mount.kernel.names(node)][2:]


# ------------------------------------------------------------ lookup and listings


def test_a_name_of_the_upper_layer_hides_the_origins(writable: MemoryMount) -> None:
    lower = writable.kernel.lookup(b"small")
    assert not lower.nodeid & UPPER
    assert stat.S_IMODE(lower.attr.mode) == 0o644, "its owner may write to it"
    assert writable.kernel.setattr(lower.nodeid, abi.FATTR_SIZE, size=3).error == errno.ESTALE
    upper = writable.kernel.lookup(b"small")
    assert upper.nodeid & UPPER
    assert (upper.entry_valid, upper.attr_valid) == (1, 1), "another session may change it"


def test_a_missing_name_is_kept_for_a_second_where_it_may_appear(open_mount: OpenMount) -> None:
    mount = open_mount(write="off,/dir=back")
    assert mount.kernel.lookup(b"missing").entry_valid == 3600
    missing = mount.kernel.lookup(b"missing", mount.kernel.node("dir"))
    assert bytes(missing) == bytes(layout.EntryOut(entry_valid=1))


@pytest.mark.parametrize("path", ["small", "dir/inner", "missing"])
def test_lookup_that_waits_for_the_node_finds_the_same(writable: MemoryMount, path: str) -> None:
    directory, _, name = path.rpartition("/")
    parent = writable.kernel.node(directory)
    fast = bytes(writable.kernel.lookup(name.encode(), parent))
    writable.client.options["miss"] = True
    assert bytes(writable.kernel.lookup(name.encode(), parent)) == fast
    assert writable.deferrals == ["node"]


@pytest.mark.parametrize("plus", [False, True])
def test_a_listing_keeps_a_file_that_the_upper_layer_gives_up_meanwhile(
    writable: MemoryMount, monkeypatch: pytest.MonkeyPatch, *, plus: bool
) -> None:
    assert isinstance(writable.operations, NamespaceOperations)
    view = writable.operations._tree.view
    upper_path(writable, "big").write_bytes(b"x")
    names = [row.name for row in writable.kernel.names(plus=plus)]
    given_up = view.names(b"/")
    assert (b"big", True) in given_up
    upper_path(writable, "big").unlink()
    monkeypatch.setattr(view, "names", lambda path: given_up)
    assert [row.name for row in writable.kernel.names(plus=plus)] == names


def test_lookup_in_a_directory_of_the_upper_layer_asks_the_origin_for_nothing_it_has_not(
    writable: MemoryMount,
) -> None:
    node = make_directory(writable, b"made")
    writable.client.options["miss"] = True
    assert writable.kernel.lookup(b"missing", node).nodeid == 0
    writable.kernel.write_file(b"new", b"", node)
    assert writable.kernel.lookup(b"new", node).nodeid & UPPER


def test_a_listing_merges_both_layers(writable: MemoryMount) -> None:
    writable.kernel.write_file(b"new", b"")
    make_directory(writable, b"aa")
    writable.kernel.errno(Opcode.UNLINK, ROOT, b"empty\0")
    for plus in (False, True):
        for size in (400, 4096):
            rows = writable.kernel.names(size=size, plus=plus)
            assert [row.name for row in rows] == [b".", b"..", b"aa", b"big", b"dir", b"new", b"small"]
            assert [row.offset for row in rows] == list(range(1, 8))
            assert [row.type for row in rows] == [4, 4, 4, 8, 4, 8, 8]
            for row in rows[2:]:
                entry = writable.kernel.lookup(row.name)
                assert row.number == entry.attr.ino
                assert row.entry is None or bytes(row.entry.attr) == bytes(entry.attr)
                assert row.entry is None or row.entry.nodeid == entry.nodeid


@pytest.mark.parametrize("where", ["upper layer", "origin"])
def test_a_file_that_is_removed_while_a_listing_is_read_skips_no_other(
    open_mount: OpenMount, origin: dict[str, bytes], tmp_path: Path, where: str
) -> None:
    expected = [b"name-%02d" % number for number in range(20)]
    (tmp_path / "source/many").mkdir()
    for name in expected if where == "origin" else ():
        (tmp_path / "source/many" / os.fsdecode(name)).touch()
    mount = open_mount(write="back")
    node = mount.kernel.node("many")
    for name in expected if where == "upper layer" else ():
        mount.kernel.write_file(name, b"", node)
    opened = mount.kernel.call(Opcode.OPENDIR, node, layout.OpenIn()).decoded(layout.OpenOut)
    assert opened.open_flags == 0, "the kernel keeps no listing that other sessions change"
    names: list[bytes] = []
    offset = 0
    while body := mount.kernel.call(Opcode.READDIR, node, layout.ReadIn(opened.fh, offset, 4096)).body:
        record = layout.Dirent.from_buffer_copy(body)
        name = body[24 : 24 + record.namelen]
        offset = record.off  # one name of each page only: the program seeks back to it
        if name.startswith(b"."):
            continue
        names.append(name)
        if where == "origin":
            mount.client.remove_at_origin(f"/many/{os.fsdecode(name)}")
        else:
            mount.kernel.errno(Opcode.UNLINK, node, name + b"\0")
    assert names == expected


def test_the_parent_of_a_directory_is_in_its_listing(writable: MemoryMount) -> None:
    inner = make_directory(writable, b"in", make_directory(writable, b"out"))
    dots = writable.kernel.names(inner)[:2]
    assert [row.number for row in dots] == [writable.kernel.attributes(writable.kernel.node(path)).ino
                                            for path in ("out/in", "out")]  # fmt: skip


def test_opendir_waits_for_a_listing_that_is_not_fresh(writable: MemoryMount) -> None:
    writable.client.options["miss"] = True
    assert writable.kernel.call(Opcode.OPENDIR, ROOT, layout.OpenIn()).error == 0
    assert writable.deferrals == ["node"]


def test_getattr_follows_the_name(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"bytes")
    assert writable.kernel.attributes(node).size == 5
    assert writable.kernel.attributes(writable.kernel.node("dir")).mode == stat.S_IFDIR | 0o755
    assert writable.kernel.attributes(writable.kernel.node("small")).size == 10
    assert writable.kernel.errno(Opcode.UNLINK, ROOT, b"new\0") == 0
    assert writable.kernel.errno(Opcode.GETATTR, node, layout.GetattrIn()) == errno.ESTALE


@pytest.mark.parametrize("node", [UPPER | 1, 12345, 1 << 48 | 12345, (1 << 64) - 1])
def test_an_unknown_node_is_stale_for_every_request(writable: MemoryMount, node: int) -> None:
    bodies: dict[Opcode, tuple[bytes | layout.GetattrIn, ...]] = {
        Opcode.GETATTR: (layout.GetattrIn(),),
        Opcode.LOOKUP: (b"name\0",),
        Opcode.OPENDIR: (bytes(8),),
        Opcode.MKDIR: (bytes(8), b"name\0"),
        Opcode.UNLINK: (b"name\0",),
        Opcode.RMDIR: (b"name\0",),
        Opcode.READLINK: (),
    }
    for opcode, parts in bodies.items():
        assert writable.kernel.errno(opcode, node, *parts) == errno.ESTALE, opcode.name
    assert writable.kernel.rename(b"small", b"name", parents=(ROOT, node)) == errno.ESTALE


# ------------------------------------------------------------ creating


def test_mkdir_makes_a_directory_with_its_mode(writable: MemoryMount) -> None:
    entry = writable.kernel.call(Opcode.MKDIR, ROOT, layout.MkdirIn(0o750), b"made\0").decoded(
        layout.EntryOut
    )
    assert entry.attr.mode == stat.S_IFDIR | 0o750
    assert upper_path(writable, "made").is_dir()
    assert writable.client.reported == [b"/made"]
    assert writable.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o750), b"made\0") == errno.EEXIST
    assert writable.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o750), b"dir\0") == errno.EEXIST


def test_a_new_name_below_a_directory_of_the_origin_makes_that_directory(writable: MemoryMount) -> None:
    node = writable.kernel.node("dir/sub")
    created = writable.kernel.create(b"new", node)
    assert upper_path(writable, "dir/sub/new").exists()
    assert writable.kernel.node("dir/sub") == node, "a directory keeps its node"
    assert writable.kernel.attributes(node).ino == node
    assert names_of(writable, node) == [b"deep", b"new"]
    assert created.entry.nodeid & UPPER


@pytest.mark.parametrize("mode", [stat.S_IFIFO | 0o640, stat.S_IFSOCK | 0o600, stat.S_IFREG | 0o644])
def test_mknod_makes_what_its_mode_says(writable: MemoryMount, mode: int) -> None:
    entry = writable.kernel.call(Opcode.MKNOD, ROOT, layout.MknodIn(mode), b"made\0").decoded(layout.EntryOut)
    assert entry.attr.mode == mode
    assert writable.kernel.names()[-2].type == stat.S_IFMT(mode) >> 12


def test_mknod_of_a_device_makes_none_on_the_disk(writable: MemoryMount) -> None:
    number = 5 << 8 | 0x12 | 0x300 << 12  # new_encode_dev(MKDEV(5, 0x312))
    body = layout.MknodIn(stat.S_IFCHR | 0o600, number)
    reply = writable.kernel.call(Opcode.MKNOD, ROOT, body, b"made\0")
    if MARKS.single_owner:
        assert reply == Reply(errno.EPERM, b"")
        return
    attr = reply.decoded(layout.EntryOut).attr
    assert (attr.mode, attr.rdev) == (stat.S_IFCHR | 0o600, number)
    assert stat.S_ISFIFO(upper_path(writable, "made").lstat().st_mode)


def test_nobody_makes_a_whiteout(writable: MemoryMount) -> None:
    body = layout.MknodIn(stat.S_IFCHR | 0o600, 0)
    assert writable.kernel.errno(Opcode.MKNOD, ROOT, body, b"made\0") == errno.EPERM


def test_symlink_and_readlink(writable: MemoryMount) -> None:
    entry = writable.kernel.call(Opcode.SYMLINK, ROOT, b"made\0", b"../any where\0").decoded(layout.EntryOut)
    assert entry.attr.mode == stat.S_IFLNK | 0o777
    assert writable.kernel.call(Opcode.READLINK, entry.nodeid) == Reply(0, b"../any where")
    assert upper_path(writable, "made").readlink() == Path("../any where")
    assert writable.kernel.errno(Opcode.READLINK, writable.kernel.write_file(b"new", b"")) == errno.EINVAL


def test_link_gives_a_file_a_second_name(writable: MemoryMount, origin: dict[str, bytes]) -> None:
    node = writable.kernel.write_file(b"new", b"bytes")
    entry = writable.kernel.call(Opcode.LINK, ROOT, layout.LinkIn(node), b"linked\0").decoded(layout.EntryOut)
    assert (entry.nodeid, entry.attr.nlink) == (node, 2)
    assert writable.kernel.errno(Opcode.UNLINK, ROOT, b"new\0") == 0
    assert writable.kernel.read(node) == b"bytes"
    assert writable.kernel.attributes(node).nlink == 1


def test_link_of_a_file_of_the_origin_copies_it_up(writable: MemoryMount, origin: dict[str, bytes]) -> None:
    """The kernel looks the name up again at ESTALE, and repeats the request with the new node."""
    lower = writable.kernel.node("small")
    assert writable.kernel.errno(Opcode.LINK, ROOT, layout.LinkIn(lower), b"linked\0") == errno.ESTALE
    assert writable.deferrals == ["node"]
    upper = writable.kernel.node("small")
    entry = writable.kernel.call(Opcode.LINK, ROOT, layout.LinkIn(upper), b"linked\0").decoded(
        layout.EntryOut
    )
    assert (entry.nodeid, entry.attr.nlink) == (upper, 2)
    assert upper_path(writable, "linked").read_bytes() == origin["small"]


@pytest.mark.parametrize("length, expected", [(255, 0), (256, errno.ENAMETOOLONG)])
def test_a_new_name_has_at_most_255_bytes(writable: MemoryMount, length: int, expected: int) -> None:
    name = b"x" * length + b"\0"
    assert writable.kernel.errno(Opcode.LOOKUP, ROOT, name) == expected
    assert writable.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o755), name) == expected
    writable.kernel.write_file(b"new", b"")
    assert writable.kernel.rename(b"new", b"y" * length) == expected


def test_a_path_longer_than_the_origins_keys_is_refused(writable: MemoryMount) -> None:
    node = ROOT
    for _ in range(4):
        node = make_directory(writable, b"d" * 250, node)
    assert (
        writable.kernel.errno(Opcode.MKDIR, node, layout.MkdirIn(0o755), b"e" * 30 + b"\0")
        == errno.ENAMETOOLONG
    )


# ------------------------------------------------------------ removing


@pytest.mark.parametrize("path", ["small", "dir/inner"])
def test_a_removed_file_of_the_origin_stays_hidden(writable: MemoryMount, path: str) -> None:
    directory, _, name = path.rpartition("/")
    parent = writable.kernel.node(directory)
    assert writable.kernel.errno(Opcode.UNLINK, parent, name.encode() + b"\0") == 0
    assert writable.client.reported == [f"/{path}".encode()]
    assert bytes(writable.kernel.lookup(name.encode(), parent)) == bytes(layout.EntryOut(entry_valid=1))
    assert name.encode() not in names_of(writable, parent)
    assert writable.kernel.errno(Opcode.UNLINK, parent, name.encode() + b"\0") == errno.ENOENT
    assert Path(writable.client.folder, "source", path).exists(), "the node removes it at the origin, later"
    assert writable.kernel.write_file(name.encode(), b"again", parent) & UPPER


def test_each_call_removes_its_kind_only(writable: MemoryMount) -> None:
    make_directory(writable, b"made")
    writable.kernel.write_file(b"new", b"")
    for name in (b"made\0", b"dir\0"):
        assert writable.kernel.errno(Opcode.UNLINK, ROOT, name) == errno.EISDIR
    for name in (b"new\0", b"small\0"):
        assert writable.kernel.errno(Opcode.RMDIR, ROOT, name) == errno.ENOTDIR
    for opcode in (Opcode.UNLINK, Opcode.RMDIR):
        assert writable.kernel.errno(opcode, ROOT, b"missing\0") == errno.ENOENT


def test_only_an_empty_directory_is_removed(writable: MemoryMount) -> None:
    parent = writable.kernel.node("dir/sub")
    assert writable.kernel.errno(Opcode.RMDIR, writable.kernel.node("dir"), b"sub\0") == errno.ENOTEMPTY
    assert writable.kernel.errno(Opcode.UNLINK, parent, b"deep\0") == 0
    assert writable.kernel.errno(Opcode.RMDIR, writable.kernel.node("dir"), b"sub\0") == 0
    assert writable.kernel.lookup(b"sub", writable.kernel.node("dir")).nodeid == 0
    directory = make_directory(writable, b"made")
    writable.kernel.write_file(b"new", b"", directory)
    assert writable.kernel.errno(Opcode.RMDIR, ROOT, b"made\0") == errno.ENOTEMPTY


def test_rmdir_waits_for_a_listing_that_is_not_fresh(writable: MemoryMount) -> None:
    parent = writable.kernel.node("dir")
    writable.client.options["miss"] = True
    assert writable.kernel.errno(Opcode.RMDIR, parent, b"sub\0") == errno.ENOTEMPTY
    assert writable.deferrals == ["node"]


def test_a_removed_directory_keeps_its_attributes_for_who_has_it_open(writable: MemoryMount) -> None:
    node = make_directory(writable, b"made", mode=0o711)
    number = writable.kernel.attributes(node).ino
    assert writable.kernel.errno(Opcode.RMDIR, ROOT, b"made\0") == 0
    attr = writable.kernel.attributes(node)
    assert (attr.ino, attr.mode) == (number, stat.S_IFDIR | 0o711)
    writable.kernel.notify(Opcode.FORGET, node, layout.ForgetIn(1))
    assert writable.kernel.errno(Opcode.GETATTR, node, layout.GetattrIn()) == errno.ESTALE


# ------------------------------------------------------------ renaming


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search of the whole upper layer, which finds every node, and takes long in a large one."""
    monkeypatch.setattr(Upper, "walk", lambda *_: pytest.fail("the upper layer was searched"))


@pytest.mark.usefixtures("unsearched")
def test_rename_moves_a_file_and_its_node(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"old", b"bytes")
    assert writable.kernel.rename(b"old", b"new", parents=(ROOT, writable.kernel.node("dir"))) == 0
    assert writable.kernel.attributes(node).size == 5
    assert writable.kernel.lookup(b"old").nodeid == 0
    assert writable.kernel.node("dir/new") == node
    assert writable.kernel.read(node) == b"bytes"
    assert writable.client.reported[-2:] == [b"/dir/new", b"/old"]


def test_rename_by_the_old_request_is_the_same(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"old", b"bytes")
    assert writable.kernel.errno(Opcode.RENAME, ROOT, layout.RenameIn(ROOT), b"old\0new\0") == 0
    assert writable.kernel.node("new") == node


def test_rename_replaces_a_file_unless_it_may_not(writable: MemoryMount) -> None:
    replaced = writable.kernel.write_file(b"target", b"replaced")
    writable.kernel.write_file(b"source", b"moved")
    for name in (b"target", b"small", b"dir"):
        assert writable.kernel.rename(b"source", name, NOREPLACE) == errno.EEXIST
    assert writable.kernel.rename(b"source", b"target") == 0
    assert writable.kernel.read(writable.kernel.node("target")) == b"moved"
    assert writable.kernel.errno(Opcode.GETATTR, replaced, layout.GetattrIn()) == errno.ESTALE
    assert writable.kernel.rename(b"target", b"free", NOREPLACE) == 0


@pytest.mark.usefixtures("unsearched")
def test_rename_exchanges_two_files(writable: MemoryMount) -> None:
    first = writable.kernel.write_file(b"first", b"1")
    second = writable.kernel.write_file(b"second", b"22")
    assert writable.kernel.rename(b"first", b"second", EXCHANGE) == 0
    assert (writable.kernel.attributes(first).size, writable.kernel.attributes(second).size) == (1, 2)
    assert (writable.kernel.node("first"), writable.kernel.node("second")) == (second, first)
    assert writable.kernel.read(first) == b"1"
    assert writable.kernel.rename(b"first", b"missing", EXCHANGE) == errno.ENOENT


def test_rename_with_a_flag_that_is_not_supported_is_invalid(writable: MemoryMount) -> None:
    writable.kernel.write_file(b"first", b"1")
    for flags in (WHITEOUT, NOREPLACE | EXCHANGE, 1 << 31):
        assert writable.kernel.rename(b"first", b"free", flags) == errno.EINVAL
    assert writable.kernel.lookup(b"free").nodeid == 0


def test_rename_of_a_file_of_the_origin_copies_it_up(writable: MemoryMount, origin: dict[str, bytes]) -> None:
    assert writable.kernel.rename(b"small", b"moved") == 0
    assert writable.deferrals == ["node"]
    assert writable.invalidated == [(ROOT, b"moved")]
    assert writable.kernel.read(writable.kernel.node("moved")) == origin["small"]
    assert writable.kernel.lookup(b"small").nodeid == 0


@pytest.mark.parametrize("way", ["rename", "link", "exchange"])
def test_a_file_that_returns_to_its_name_replaces_nothing_that_is_gone(
    writable: MemoryMount, way: str
) -> None:
    """Its first version was removed at the origin meanwhile. With that as its base, its put would be a conflict."""
    writable.kernel.errno(Opcode.OPEN, writable.kernel.node("small"), layout.OpenIn(os.O_RDWR))
    assert writable.kernel.rename(b"small", b"other") == 0
    assert isinstance(writable.operations, NamespaceOperations)
    small, other = (writable.operations.tree.upper.at(path) for path in (b"/small", b"/other"))
    assert base_version(other, b"/small") is not None
    writable.client.remove_at_origin("/small")
    small.unlink()  # the whiteout, as the node does
    if way == "rename":
        assert writable.kernel.rename(b"other", b"small") == 0
    elif way == "link":
        body = layout.LinkIn(writable.kernel.node("other"))
        assert writable.kernel.errno(Opcode.LINK, ROOT, body, b"small\0") == 0
    else:
        writable.kernel.write_file(b"small", b"new")
        assert writable.kernel.rename(b"other", b"small", EXCHANGE) == 0
    assert base_version(small, b"/small") is None


def test_rename_of_a_directory_of_the_origin_copies_all_of_it_up(
    writable: MemoryMount, origin: dict[str, bytes]
) -> None:
    assert writable.kernel.rename(b"dir", b"moved") == 0
    assert writable.deferrals == ["node"]
    assert names_of(writable, writable.kernel.node("moved")) == [b"inner", b"sub"]
    assert writable.kernel.read(writable.kernel.node("moved/sub/deep")) == origin["dir/sub/deep"]
    assert writable.kernel.lookup(b"dir").nodeid == 0


def test_rename_that_fails_at_the_origin_changes_nothing(writable: MemoryMount) -> None:
    Path(writable.client.folder, "broken").touch()
    with pytest.raises(OriginUnavailableError):
        writable.kernel.rename(b"big", b"moved")
    assert b"big" in names_of(writable) and b"moved" not in names_of(writable)
    assert Upper(writable.client.upper).work.at(b"/").names() == []


def test_rename_follows_the_kinds_of_its_names(writable: MemoryMount) -> None:
    directory = make_directory(writable, b"made")
    writable.kernel.write_file(b"new", b"")
    assert writable.kernel.rename(b"new", b"made") == errno.EISDIR
    assert writable.kernel.rename(b"made", b"new") == errno.ENOTDIR
    assert writable.kernel.rename(b"made", b"dir") == errno.ENOTEMPTY
    assert writable.kernel.rename(b"made", b"below", parents=(ROOT, directory)) == errno.EINVAL
    assert writable.kernel.rename(b"missing", b"new") == errno.ENOENT


def test_rename_between_areas_is_left_to_a_copy(open_mount: OpenMount) -> None:
    mount = open_mount(write="back,/dir=local")
    mount.kernel.write_file(b"new", b"")
    assert mount.kernel.rename(b"new", b"new", parents=(ROOT, mount.kernel.node("dir"))) == errno.EXDEV


def test_names_of_a_path_whose_mode_is_off_are_not_changed(open_mount: OpenMount) -> None:
    mount = open_mount(write="off,/dir=back")
    assert mount.kernel.errno(Opcode.UNLINK, ROOT, b"small\0") == errno.EROFS
    assert mount.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o755), b"made\0") == errno.EROFS
    assert mount.kernel.rename(b"small", b"moved") == errno.EROFS
    assert mount.kernel.errno(Opcode.UNLINK, mount.kernel.node("dir"), b"inner\0") == 0


# ------------------------------------------------------------ resent requests, leases, other sessions


def test_a_change_that_the_earlier_session_made_is_done_when_it_is_sent_again(writable: MemoryMount) -> None:
    mkdir = (Opcode.MKDIR, ROOT, layout.MkdirIn(0o755), b"made\0")
    assert writable.kernel.call(*mkdir).error == 0
    assert writable.kernel.call(*mkdir).error == errno.EEXIST
    assert writable.kernel.call(*mkdir, unique=RESENT).error == 0
    for opcode, name in ((Opcode.RMDIR, b"made\0"), (Opcode.UNLINK, b"small\0")):
        assert writable.kernel.errno(opcode, ROOT, name) == 0
        assert writable.kernel.errno(opcode, ROOT, name, unique=RESENT) == 0
        assert writable.kernel.errno(opcode, ROOT, name) == errno.ENOENT
    writable.kernel.write_file(b"old", b"")
    rename = (Opcode.RENAME2, ROOT, layout.Rename2In(ROOT, 0), b"old\0new\0")
    assert writable.kernel.errno(*rename) == 0
    assert writable.kernel.errno(*rename, unique=RESENT) == 0
    assert writable.kernel.errno(*rename) == errno.ENOENT


def test_an_exchange_that_the_earlier_session_made_is_not_undone(open_mount: OpenMount) -> None:
    """It waits for the origin as the first one did, and the kernel may know the names as they were before a copy."""
    mount = open_mount(write="through")
    for name, data in ((b"first", b"1"), (b"second", b"22")):
        mount.kernel.write_file(name, data)
    exchange = (Opcode.RENAME2, ROOT, layout.Rename2In(ROOT, EXCHANGE), b"first\0second\0")
    assert mount.kernel.errno(*exchange, unique=10) == 0
    mount.client.reported, mount.client.secured = [], []
    assert mount.kernel.errno(*exchange, unique=RESENT) == 0
    assert mount.kernel.read(mount.kernel.node("first")) == b"22"
    assert mount.client.reported == mount.client.secured == [b"/second", b"/first"]
    assert mount.invalidated == [(ROOT, b"second"), (ROOT, b"first")]
    assert mount.kernel.errno(*exchange, unique=12) == 0
    assert mount.kernel.read(mount.kernel.node("first")) == b"1"


@pytest.fixture
def leased(writable: MemoryMount) -> MemoryMount:
    """A mount of a cluster's node. The client acquires each directory lease that it claims."""
    flags, upper = DirectoryFlags(f"{writable.client.upper}/marks"), Upper(writable.client.upper)
    flags.begin(1)
    flags.extend_leases(1e8)

    def acquire(directory: bytes) -> None:
        for mark in (MARKS.leased, MARKS.published):
            assert flags.set(upper.at(directory), directory, mark)

    writable.client.on_claim = acquire
    return writable


def test_an_exclusive_name_waits_for_the_directory_lease(leased: MemoryMount) -> None:
    make_directory(leased, b"first")
    assert leased.deferrals == ["node"]
    assert leased.client.claimed == [b"/"]
    make_directory(leased, b"second")
    assert (leased.deferrals, leased.client.claimed) == ([], [b"/"])


@pytest.mark.parametrize("name", [b"small", b"dir"])
def test_a_name_of_the_origin_that_is_renamed_exclusively_waits_for_the_lease(
    leased: MemoryMount, name: bytes
) -> None:
    """The source is copied up first, and the lease is acquired after that."""
    assert leased.kernel.rename(name, b"moved", NOREPLACE) == 0
    assert leased.client.claimed == [b"/"]
    assert leased.kernel.lookup(name).nodeid == 0
    assert leased.kernel.lookup(b"moved").nodeid != 0
    leased.kernel.write_file(b"new", b"")
    assert leased.kernel.rename(b"new", b"moved", NOREPLACE) == errno.EEXIST


def test_a_lease_that_can_not_be_acquired_is_the_answer(leased: MemoryMount) -> None:
    leased.client.failure = NodeUnavailableError("a")
    body = layout.MkdirIn(0o755)
    assert leased.kernel.errno(Opcode.MKDIR, ROOT, body, b"made\0") == errno.EHOSTDOWN
    assert not upper_path(leased, "made").exists()


def test_a_name_is_published_before_its_reply(leased: MemoryMount) -> None:
    leased.client.on_claim = lambda directory: None
    leased.kernel.create(b"new")
    assert (leased.deferrals, leased.client.secured) == (["node"], [b"/new"])
    leased.client.failure = NodeUnavailableError("a")
    assert leased.kernel.errno(Opcode.UNLINK, ROOT, b"new\0") == 0, (
        "the mode promises nothing: it is published later"
    )


def test_a_change_in_mode_through_waits_for_the_origin(open_mount: OpenMount) -> None:
    mount = open_mount(write="through")
    make_directory(mount, b"made")
    assert (mount.deferrals, mount.client.secured) == (["node"], [b"/made"])
    mount.client.failure = OriginUnavailableError("a")
    with pytest.raises(OriginUnavailableError):
        mount.kernel.call(Opcode.UNLINK, ROOT, b"small\0")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_removed_node_leads_to_no_file_that_others_make(writable: MemoryMount, is_replaced: bool) -> None:
    """The kernel has the name until the answer to a removal, which may wait."""
    for attempt in range(20):
        name, other = b"new-%d" % attempt, b"other-%d" % attempt
        node = writable.kernel.write_file(name, b"bytes")
        writable.kernel.write_file(other, b"bytes")
        number = os.stat(upper_path(writable, name.decode())).st_ino
        if is_replaced:
            assert writable.kernel.rename(other, name) == 0
        else:
            assert writable.kernel.errno(Opcode.UNLINK, ROOT, name + b"\0") == 0
        later = Path(upper_path(writable, f"later-{attempt}"))
        later.touch()
        if later.stat().st_ino == number:
            break
    else:
        pytest.skip("the file system doesn't use an inode number again")
    assert writable.kernel.errno(Opcode.OPEN, node, layout.OpenIn(os.O_RDONLY)) == errno.ESTALE
    entry = writable.kernel.lookup(later.name.encode())
    assert (entry.nodeid, entry.attr.ino) == (node + (1 << NODE_SHIFT), UPPER | number)


def test_changes_of_other_sessions_are_told_from_the_own_ones(writable: MemoryMount) -> None:
    make_directory(writable, b"made")
    writable.kernel.write_file(b"new", b"")
    operations = writable.operations
    assert isinstance(operations, NamespaceOperations)
    paths = [b"/made", b"/new", b"/gone"]
    assert operations.changes_of_others(Written(paths, source=writable.client.source)) == []
    assert operations.changes_of_others(Written(paths, source=5)) == [b"/new", b"/gone"]


def test_a_changed_name_is_invalidated_in_the_node_of_its_directory(writable: MemoryMount) -> None:
    directory = make_directory(writable, b"made")
    operations = writable.operations
    assert isinstance(operations, NamespaceOperations)
    for path in (b"/new", b"/made/new", b"/dir/new", b"/missing/new"):
        operations.invalidate_name(path)
    assert writable.invalidated == [
        (ROOT, b"new"),
        (directory, b"new"),
        (writable.kernel.node("dir"), b"new"),
    ]


def test_forget_drops_what_the_session_knows_of_a_node(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"")
    writable.kernel.lookup(b"new")
    other = writable.kernel.write_file(b"other", b"")
    items = (layout.ForgetOne(node, 2), layout.ForgetOne(other, 1))
    writable.kernel.notify(Opcode.BATCH_FORGET, 0, layout.BatchForgetIn(len(items)), *items)
    assert os.path.exists(upper_path(writable, "new"))
    operations = writable.operations
    assert isinstance(operations, NamespaceOperations)
    assert not operations._nodes._records.keys() & {node, other}
    assert writable.kernel.attributes(node).ino == node, "it is searched for in the upper layer"


def test_the_next_session_knows_what_was_removed_while_it_was_open(writable: MemoryMount) -> None:
    """Without passthrough the inode number of such a file is free after this session."""
    unlinked, replaced = (writable.kernel.write_file(name, b"bytes") for name in (b"unlinked", b"replaced"))
    kept = writable.kernel.write_file(b"kept", b"bytes")
    assert writable.kernel.errno(Opcode.MKDIR, ROOT, layout.MkdirIn(0o755), b"made\0") == 0
    directory = writable.kernel.node("made")
    assert writable.kernel.errno(Opcode.LINK, ROOT, layout.LinkIn(kept), b"other\0") == 0
    assert writable.kernel.errno(Opcode.UNLINK, ROOT, b"unlinked\0") == 0
    assert writable.kernel.errno(Opcode.UNLINK, ROOT, b"other\0") == 0
    assert writable.kernel.errno(Opcode.RMDIR, ROOT, b"made\0") == 0
    assert writable.kernel.rename(b"kept", b"replaced") == 0
    generations = writable.handover.generations
    nodes = (unlinked, replaced, directory, kept)
    assert [generations.is_newest(node) for node in nodes] == [False, False, False, True]
