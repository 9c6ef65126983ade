"""Names that something is mounted on keep their nodes, whatever the origin does below them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.base.model import Entry, FileId, Kind
from headrace.fuse.abi import MOUNTPOINTS_XATTR
from headrace.fuse.handover_state import NAMES_BYTES_MAX, HandoverState
from headrace.fuse.mountpoints import KEPT_TTL_S, sealed_paths
from headrace.seal.catalogue import Catalogue, Place, SealId, SealRecord
from tests.unit.fuse.conftest import OpenMount
from tests.unit.fuse.fake_kernel import ROOT
from tests.unit.fuse.memory_mount import MemoryMount


def keep(mount: MemoryMount, *paths: bytes) -> None:
    """Keep paths from now on, as before a mount."""
    mount.kept_paths[:] = paths
    mount.user = 0
    reply = mount.kernel.xattr(ROOT, MOUNTPOINTS_XATTR.encode())
    mount.user = os.geteuid()
    assert (reply.error, reply.body) == (0, b"%d" % len(paths))


def vanish(mount: MemoryMount, *paths: str) -> None:
    for path in paths:
        mount.client.remove_at_origin(path)


@pytest.fixture(params=["", "/out=back"])
def any_mount(request: pytest.FixtureRequest, open_mount: OpenMount) -> MemoryMount:
    """A read-only mount, and one that can be written elsewhere."""
    return open_mount(write=request.param)


def test_a_name_keeps_its_node_after_the_origin_lost_it(any_mount: MemoryMount) -> None:
    node = any_mount.kernel.node("dir/sub")
    keep(any_mount, b"/dir/sub")
    vanish(any_mount, "/dir/sub/deep", "/dir/sub", "/dir/inner", "/dir")
    lost = any_mount.kernel.lookup(b"dir")
    assert (lost.entry_valid, any_mount.kernel.node("dir/sub")) == (KEPT_TTL_S, node)
    assert any_mount.kernel.attributes(node).mode & 0o170000 == 0o040000
    for plus in (False, True):
        assert [name.name for name in any_mount.kernel.names(lost.nodeid, plus=plus)][2:] == [b"sub"]
        assert b"dir" in [name.name for name in any_mount.kernel.names(plus=plus)]
        assert [name.name for name in any_mount.kernel.names(node, plus=plus)] == [b".", b".."]
    assert any_mount.kernel.lookup(b"deep", node).nodeid == 0


def test_what_nothing_is_mounted_on_any_more_vanishes(any_mount: MemoryMount) -> None:
    keep(any_mount, b"/dir")
    vanish(any_mount, "/dir")
    any_mount.kept_paths.clear()
    assert any_mount.kernel.lookup(b"dir").nodeid == 0
    assert b"dir" not in [name.name for name in any_mount.kernel.names()]


def test_names_stay_while_the_places_can_not_be_read(open_mount: OpenMount) -> None:
    mount = open_mount()
    keep(mount, b"/dir")
    vanish(mount, "/dir")

    def unreadable() -> list[bytes]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    mount.mountpoints._paths = unreadable
    assert mount.kernel.node("dir")


def test_a_directory_that_never_existed_can_be_mounted_on(any_mount: MemoryMount) -> None:
    keep(any_mount, b"/never/there")
    node = any_mount.kernel.node("never/there")
    assert node not in (0, any_mount.kernel.node("never"))
    keep(any_mount, b"/never/there", b"/never/too")
    assert any_mount.kernel.node("never/there") == node
    names = any_mount.kernel.names(any_mount.kernel.node("never"))
    assert [name.name for name in names][2:] == [b"there", b"too"]


def test_a_directory_that_came_back_shows_what_it_has_under_the_old_node(any_mount: MemoryMount) -> None:
    client = any_mount.client
    keep(any_mount, b"/dir/sub")
    node, sub = any_mount.kernel.node("dir"), any_mount.kernel.node("dir/sub")
    inner = client.id_of("/dir/inner")
    vanish(any_mount, "/dir/sub/deep", "/dir/sub", "/dir/inner", "/dir")
    client.add_at_origin("/dir", 900, Kind.DIRECTORY)
    client.add_at_origin("/dir/inner", 901, Kind.FILE)
    assert any_mount.kernel.node("dir") == node and inner != 901
    assert any_mount.kernel.lookup(b"inner", node).attr.ino == 901
    assert [name.name for name in any_mount.kernel.names(node)][2:] == [b"inner", b"sub"]
    assert any_mount.kernel.node("dir/sub") == sub


def test_a_node_that_fails_leaves_the_names(mount: MemoryMount) -> None:
    keep(mount, b"/dir/sub")
    node = mount.kernel.node("dir/sub")
    mount.client.options["miss"] = True
    mount.client.lookup = _away  # type: ignore[method-assign]
    assert mount.kernel.node("dir/sub") == node
    with pytest.raises(OriginUnavailableError):
        mount.kernel.lookup(b"small")


def _away(parent: FileId, name: bytes, cancel: object = None) -> Entry | None:
    raise OriginUnavailableError("the origin", why="it is away")


def test_the_next_session_keeps_the_nodes(open_mount: OpenMount) -> None:
    first = open_mount()
    keep(first, b"/dir/sub", b"/never")
    nodes = [first.kernel.node(path) for path in ("dir", "dir/sub", "never")]
    second = open_mount()
    second.kept_paths[:] = first.kept_paths
    vanish(second, "/dir/sub/deep", "/dir/sub", "/dir/inner", "/dir")
    assert [second.kernel.node(path) for path in ("dir", "dir/sub", "never")] == nodes


def test_only_root_makes_the_session_look(mount: MemoryMount) -> None:
    mount.user = 1000
    assert mount.kernel.xattr(ROOT, MOUNTPOINTS_XATTR.encode()).error == errno.ENODATA


def test_names_that_are_not_directories_are_hidden_by_one(mount: MemoryMount) -> None:
    keep(mount, b"/small/x")
    assert mount.kernel.lookup(b"small").attr.mode & 0o170000 == 0o040000


def test_too_many_names_are_kept_by_this_session_only(handover: HandoverState) -> None:
    handover.keep_names(b"x")
    handover.keep_names(b"x" * (NAMES_BYTES_MAX + 1))
    assert handover.kept_names == b""


def test_only_places_of_users_below_the_mount_are_kept(tmp_path: Path) -> None:
    catalogue = Catalogue(str(tmp_path / "seals"))
    for version, automatic in ((1, False), (2, True)):
        seal = SealId("a", version)
        with catalogue.draft(seal) as draft:
            record = SealRecord("a", version, "/", "", "", 0, 0, 0.0, 2, automatic=automatic)
            catalogue.publish(draft, record)
        in_place = [f"/mnt/data{version}", "/mnt", "/mntother/data"]
        places = [Place("/mnt/at"), *(Place(path, in_place=True) for path in in_place)]
        catalogue.change_places(seal, places.__add__)
    assert sealed_paths(catalogue, "/mnt") == [b"/data1"]
    (tmp_path / "seals/a@1/places.json").write_bytes(b"{")
    assert sealed_paths(catalogue, "/mnt") == []
    shutil.rmtree(tmp_path / "seals")
    assert sealed_paths(catalogue, "/mnt") == []
