"""Below a directory that others change, links lead nobody away, by the kernel's walk and by names alike."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from headrace.base import beneath
from headrace.base.beneath import EXCHANGE, NOREPLACE, LinklessMount, Root
from headrace.base.file_handles import file_handle
from headrace.base.mount_api import closing_descriptor, detached_mount


@pytest.fixture(params=["kernel", "names", pytest.param("mount", marks=pytest.mark.root)])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """names: as where openat2 is unknown. mount: as root has it."""
    if request.param == "names":
        monkeypatch.setattr(beneath, "_walk", lambda: beneath._by_names)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_bytes(b"not below")
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/file").write_bytes(b"below")
    (top / "a/out").symlink_to("../../out")
    (top / "a/link").symlink_to("b/file")
    if request.param != "mount":
        return Root(os.fsencode(top))
    mount = LinklessMount(os.fsencode(tmp_path))
    if mount.fd < 0:
        pytest.skip("needs Linux 5.12")
    return Root(os.fsencode(top), mount)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_calls_are_those_of_plain_paths(root: Root, tmp_path: Path) -> None:
    top, folder = tmp_path / "top", root.at(b"/a") / b"new"
    root.at(b"/").lstat()
    before = open_files()
    assert root.at(b"/a/b/file").lstat() == (top / "a/b/file").lstat()
    assert sorted(root.at(b"/a").names()) == [b"b", b"link", b"out"]
    assert root.at(b"/").names() == [b"a"]
    folder.mkdir(0o750)
    assert folder.is_directory() and stat.S_IMODE((top / "a/new").stat().st_mode) == 0o750
    root.at(b"/a/b/file").rename(folder / b"moved")
    assert (top / "a/new/moved").read_bytes() == b"below"
    (folder / b"moved").link(folder / b"twice")
    with pytest.raises(FileExistsError):
        (folder / b"moved").rename(folder / b"twice", NOREPLACE)
    (folder / b"twice").chmod(0o4755)
    (folder / b"twice").utime((5, 7))
    assert (top / "a/new/moved").stat().st_mtime_ns == 7
    assert (top / "a/new/moved").stat().st_mode & 0o7777 == 0o4755
    (folder / b"way").symlink(b"nowhere")
    assert (folder / b"way").readlink() == b"nowhere" and not (top / "a/new/way").exists()
    (folder / b"way").rename(folder / b"twice", EXCHANGE)
    assert (folder / b"twice").readlink() == b"nowhere"
    (folder / b"twice").unlink()
    root.at(b"/x/y/z").make_directories(0o755)
    assert (top / "x/y/z").is_dir()
    assert {os.fsdecode(path.path) for path, _ in root.at(b"/").walk()} >= {"/", "/a", "/a/new/way", "/x/y/z"}
    folder.remove_tree()
    assert not (top / "a/new").exists()
    folder.remove_tree()  # it may be gone
    assert open_files() == before


@pytest.mark.parametrize("path", [b"/a/out/file", b"/a/link/x", b"/a/out/new/deeper"])
def test_no_link_above_the_name_is_followed(root: Root, path: bytes) -> None:
    target, before = root.at(path), open_files()
    for call in (
        target.lstat,
        target.readlink,
        target.names,
        target.unlink,
        target.rmdir,
        target.utime,
        target.pinned,
        target.listxattr,
        lambda: target.open(os.O_RDWR | os.O_CREAT),
        lambda: target.mkdir(0o755),
        lambda: target.chmod(0o777),
        lambda: target.chown(0, 0),
        lambda: target.symlink(b"x"),
        lambda: target.getxattr("user.x"),
        lambda: target.setxattr("user.x", b""),
        lambda: target.rename(root.at(b"/taken")),
        lambda: root.at(b"/a/b/file").rename(target),
        lambda: root.at(b"/a/b/file").rename(target, EXCHANGE),
        lambda: root.at(b"/a/b/file").link(target),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)
    assert target.seen() is None and not list(target.walk())
    target.remove_tree()
    root.close()
    assert open_files() <= before


def test_a_link_that_is_the_name_is_a_link(root: Root, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = out.stat()
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError) as caught:
            root.at(b"/a/out").open(flags)
        assert caught.value.errno == errno.ELOOP
    link = root.at(b"/a/out")
    with pytest.raises(OSError):
        link.chmod(0o777)
    with pytest.raises(NotADirectoryError):
        link.names()
    link.utime((1, 1))
    if os.geteuid() == 0:
        link.chown(65534, 65534)
        assert link.lstat().st_uid == 65534
        link.setxattr("trusted.x", b"of the link")
        assert link.getxattr("trusted.x") == b"of the link"
    link.remove_tree()
    assert out.stat() == before
    assert (out / "file").read_bytes() == b"not below"


def test_what_is_pinned_stays_the_same_thing(root: Root, tmp_path: Path) -> None:
    with root.at(b"/a/b/file").pinned() as pin:
        root.at(b"/a/b/file").rename(root.at(b"/a/elsewhere"))
        root.at(b"/a/b/file").symlink(os.fsencode(tmp_path / "out/file"))
        os.chmod(pin.proc_path, 0o604)
        os.truncate(pin.proc_path, 2)
        assert pin.fstat().st_size == 2
    assert (tmp_path / "top/a/elsewhere").read_bytes() == b"be"
    assert (tmp_path / "out/file").read_bytes() == b"not below"


def test_a_held_folder_stays_that_folder(root: Root, tmp_path: Path) -> None:
    """By now it has another name, and a link out has its own."""
    before = open_files()
    held = root.at(b"/a/b").held()
    os.rename(tmp_path / "top/a/b", tmp_path / "top/elsewhere")
    os.symlink(tmp_path / "out", tmp_path / "top/a/b")
    os.close(held.at(b"/new").open(os.O_WRONLY | os.O_CREAT))
    held.at(b"/file").rename(held.at(b"/moved"))
    assert sorted(held.at(b"/").names()) == [b"moved", b"new"]
    assert sorted(os.listdir(tmp_path / "top/elsewhere")) == ["moved", "new"]
    assert os.listdir(tmp_path / "out") == ["file"]
    for path in (b"/a/b", b"/a/link", b"/a/none"):
        with pytest.raises(OSError):
            root.at(path).held()
    held.close()
    root.close()
    assert open_files() <= before


def test_a_pinned_link_has_no_mode(root: Root, tmp_path: Path) -> None:
    """Finding 21: what changes it reaches the link itself, or nothing."""
    file = tmp_path / "out/file"
    root.at(b"/way").symlink(os.fsencode(file))
    before = file.stat()
    with root.at(b"/way").pinned() as pin:
        for change in (
            lambda: os.chmod(pin.proc_path, 0o777),
            lambda: os.truncate(pin.proc_path, 0),
            lambda: os.setxattr(pin.proc_path, "user.x", b""),
        ):
            with pytest.raises(OSError):
                change()  # type: ignore[no-untyped-call]
        os.utime(pin.proc_path, ns=(3, 3))
        if os.geteuid() == 0:
            os.chown(pin.proc_path, 65534, 65534)
    assert file.stat() == before
    assert root.at(b"/way").lstat().st_mtime_ns == 3


@pytest.mark.parametrize("path", [b"/..", b"/a/..", b"/../out/file", b"/a/../../out/file", b"..", b"a"])
def test_odd_paths_lead_nowhere(root: Root, path: bytes) -> None:
    for call in (root.at(path).lstat, lambda: root.at(path).open(os.O_RDONLY)):
        with pytest.raises(OSError):
            call()
    with pytest.raises(ValueError, match="null"):
        root.at(b"/a\0/file").lstat()


def test_a_path_may_be_longer_than_one_call_takes(root: Root) -> None:
    """A folder that was moved into a deep one has such."""
    name, inner = b"n" * 250, root.at(b"/inner")
    deep = root.at(b"/outer" + (b"/" + name) * 14)
    deep.make_directories(0o755)
    root.at(b"/inner" + (b"/" + name) * 14).make_directories(0o755)
    inner.rename(deep / b"x")
    paths = [path for path, _ in root.at(b"/outer").walk()]
    assert len(paths) == 30
    assert len(paths[-1].path) > 4096
    (paths[-1] / b"file").mkdir(0o755)
    root.at(b"/outer").remove_tree()
    assert root.at(b"/").names() == [b"a"]


def test_deep_folders_take_no_more_of_python_than_others(root: Root) -> None:
    before, depth = sys.getrecursionlimit(), 260
    sys.setrecursionlimit(250)
    try:
        root.at(b"/d" * depth).make_directories(0o755)
        assert sum(1 for _ in root.at(b"/d").walk()) == depth
        root.at(b"/d").remove_tree()
    finally:
        sys.setrecursionlimit(before)
    assert not root.at(b"/d").exists()


def test_what_has_no_link_on_its_way_is_resolved_by_one_look(root: Root) -> None:
    for path in (b"/a/b/file", b"/a/b/none", b"/none/deeper", b"/"):
        target = root.at(path)
        assert target.resolved() is target is target.resolved(last=False)
    link = root.at(b"/a/link")
    assert link.resolved(last=False) is link and link.resolved().path == b"/a/b/file"
    assert root.at(b"/a/b/../b/file").resolved().path == b"/a/b/file"


def test_links_within_are_resolved_where_that_is_wanted(root: Root, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "by-path").symlink_to(top / "a/b")
    (top / "a/up").symlink_to("../a/./b//file")
    (top / "itself").symlink_to("itself")
    (top / "gone").symlink_to("a/none/x")
    assert root.at(b"/by-path/file").resolved().path == b"/a/b/file"
    assert root.at(b"/a/up").resolved().path == b"/a/b/file"
    assert root.at(b"/a/up").resolved(last=False).path == b"/a/up"
    assert root.at(b"/by-path/file").resolved(last=False).path == b"/a/b/file"
    assert root.at(b"/by-path/new").resolved(last=False).path == b"/a/b/new"
    assert root.at(b"/gone").resolved().path == b"/a/none/x"
    for path, number in ((b"/a/out/file", errno.EXDEV), (b"/itself", errno.ELOOP)):
        with pytest.raises(OSError) as caught:
            root.at(path).resolved()
        assert caught.value.errno == number
    (top / "etc").symlink_to("/etc")
    with pytest.raises(OSError) as caught:
        root.at(b"/etc/passwd").resolved()
    assert caught.value.errno == errno.EXDEV
    assert Root(b"/").at(os.fsencode(top) + b"/etc/passwd").resolved().path.endswith(b"/passwd")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_openat2_names_are_walked(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPERM is what an old filter of system calls says."""

    def refuse(root: int, path: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(beneath, "_by_kernel", refuse)
    assert beneath._walk.__wrapped__() is beneath._by_names


def handle_of(root: Root, path: bytes) -> bytes:
    with root.at(path).pinned() as pin:
        return file_handle(pin.fd)


def test_a_later_file_has_another_handle(tmp_path: Path) -> None:
    """Perhaps it has the inode number of the first one."""
    root = Root(os.fsencode(tmp_path))
    (tmp_path / "file").touch()
    (tmp_path / "link").hardlink_to(tmp_path / "file")
    first = handle_of(root, b"/file")
    assert first == handle_of(root, b"/link") != b""
    for name in ("file", "link"):
        (tmp_path / name).unlink()
    (tmp_path / "file").touch()
    assert handle_of(root, b"/file") not in (first, b"")


@pytest.mark.root
def test_a_file_system_whose_handles_open_no_file_has_handles(tmp_path: Path) -> None:
    for name in ("lower/first", "lower/second", "empty"):
        (tmp_path / name).mkdir(parents=True)
    layers = [("lowerdir+", str(tmp_path / name)) for name in ("lower", "empty")]
    with closing_descriptor(detached_mount("overlay", layers)) as view:
        root = Root(b"/proc/self/fd/%d" % view)
        first, second = handle_of(root, b"/first"), handle_of(root, b"/second")
        assert first != second
        assert handle_of(root, b"/first") == first
        root.close()
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 5):
        assert b"" not in (first, second)
